//! Kernels of our own for NVIDIA GPUs, in the intermediate language of Triton, which XLA compiles.
//!
//! XLA's fusions read a row once for its sums and once more for what is computed from them, and
//! sum over tokens in a pass of their own. A kernel here is a function of [`Value`]s: scalars and
//! blocks of numbers that one of the programs of its grid computes. [`kernel`] traces it and emits a
//! custom call. Whoever calls it must have another form for what kernels do not support, and for
//! other platforms.
//!
//! ```
//! use fullshard_graph::triton::{Grid, kernel};
//! use fullshard_graph::{Argument, DType, Program, TensorType};
//!
//! # fn main() -> fullshard_graph::Result<()> {
//! let rows = TensorType::new(DType::Bf16, &[4096, 1024]);
//! let program = Program::trace("doubled", &[Argument::new(rows.clone())], |x| {
//!     let grid = Grid { programs: 4096, warps: 4 };
//!     kernel("double_row", grid, &[&x[0]], &[rows], |k, x, doubled| {
//!         let row = k.program() * 1024 + k.range(1024);
//!         doubled[0].at(&row).store(&(x[0].at(&row).load().float() * 2.0));
//!     })
//! })?;
//! assert!(program.to_text().contains("__gpu$xla.gpu.triton"));
//! # Ok(()) }
//! ```

mod body;
mod operators;
mod value;

pub use body::Builder;
pub use operators::Operand;
pub use value::{Address, Pointer, Value};

use crate::error::{Error, Result};
use crate::ops::{Attribute, custom_call};
use crate::tensor::Tensor;
use fullshard_core::TensorType;
use std::rc::Rc;

/// The call target of a kernel in Triton's language.
pub const TARGET: &str = "__gpu$xla.gpu.triton";

/// The most elements of a tensor: kernels count them in 32 bits.
pub const MOST_ELEMENTS: usize = i32::MAX as usize;

/// The alignment of buffers in bytes, which loads of 16 bytes need.
const ALIGNMENT: usize = 16;

/// How a kernel is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// The number of programs, each of which runs the kernel.
    pub programs: usize,
    /// The warps of 32 threads that a program has: a power of two.
    pub warps: usize,
}

/// Traces a kernel, given pointers to its operands and results, and emits a call of it. Tensors are
/// row-major. Calls with equal kernels and operands are one call to the compiler.
pub fn kernel(
    name: &str,
    grid: Grid,
    operands: &[&Tensor],
    results: &[TensorType],
    trace: impl FnOnce(&Builder, &[Pointer], &[Pointer]),
) -> Result<Vec<Tensor>> {
    let types: Vec<&TensorType> = operands.iter().map(|x| x.ty()).chain(results).collect();
    let text = text(name, grid, &types, |builder, pointers| {
        let (operands, results) = pointers.split_at(operands.len());
        trace(builder, operands, results);
    })?;
    let number = |value: usize| Attribute::Int32(value as i32);
    custom_call(TARGET)
        .attribute("name", Attribute::Text(name.to_owned()))
        .attribute("ir", Attribute::Text(text))
        .attribute("num_stages", number(1))
        .attribute("num_warps", number(grid.warps))
        .attribute("grid_x", number(grid.programs))
        .attribute("grid_y", number(1))
        .attribute("grid_z", number(1))
        .attribute("debug", Attribute::Bool(false))
        .call(operands, results)
}

/// The module of a kernel over tensors of these types. What the compiler would not survive or
/// silently get wrong is an error.
fn text(
    name: &str,
    grid: Grid,
    types: &[&TensorType],
    trace: impl FnOnce(&Builder, &[Pointer]),
) -> Result<String> {
    let reject = |reason: String| Err(Error::new(name, reason));
    if grid.programs == 0 || grid.programs > MOST_ELEMENTS {
        return reject(format!("a kernel cannot have {} programs", grid.programs));
    }
    if !grid.warps.is_power_of_two() || grid.warps > 32 {
        return reject(format!("{} warps are no power of two up to 32", grid.warps));
    }
    if let Some(ty) = types.iter().find(|ty| ty.elements() > MOST_ELEMENTS) {
        return reject(format!("{ty} has more elements than 32 bits count"));
    }
    let builder = Builder::default();
    let pointers: Vec<Pointer> =
        types.iter().enumerate().map(|(i, ty)| Pointer::parameter(&builder, i, ty.dtype)).collect();
    trace(&builder, &pointers);
    let parameters: Vec<String> = pointers.iter().map(Pointer::declaration).collect();
    let lines = builder.finish().map_err(|reason| Error::new(name, reason))?;
    Ok(format!(
        "module {{\n  tt.func public @{name}({}) {{\n{lines}    tt.return\n  }}\n}}\n",
        parameters.join(", ")
    ))
}

/// The rows of each program if there are about this many programs, and how many all rows need.
pub fn split_rows(rows: usize, programs: usize) -> (usize, usize) {
    let each = rows.div_ceil(programs.max(1)).max(1);
    (each, rows.div_ceil(each))
}

/// What values of one kernel share.
type Shared = Rc<body::Body>;
