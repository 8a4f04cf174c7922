//! Programs: tensor programs traced, differentiated and sharded in Rust, and written as
//! StableHLO text that XLA compiles.
//!
//! Models are plain math on [`Tensor`]s. Every op checks its operands at the call and reports the
//! offending types and module.
//!
//! ```
//! use fullshard_graph::{Argument, DType, Program, TensorType, value_and_grad};
//!
//! # fn main() -> fullshard_graph::Result<()> {
//! let matrix = |rows, columns| Argument::new(TensorType::new(DType::F32, &[rows, columns]));
//! // One step of linear regression by gradient descent.
//! let step = Program::trace("step", &[matrix(3, 1), matrix(8, 3), matrix(8, 1)], |arguments| {
//!     let [weights, inputs, targets] = arguments.as_slice() else { unreachable!() };
//!     let (loss, gradients) = value_and_grad(&[weights], |weights| {
//!         (inputs.matmul(&weights[0])? - targets)?.square()?.mean_all()
//!     })?;
//!     Ok(vec![(weights - (&gradients[0] * 0.1)?)?, loss])
//! })?;
//! assert!(step.to_text().contains("stablehlo.dot_general"));
//! # Ok(()) }
//! ```
//!
//! - [`Program::trace`] traces a program; [`Program::to_text`] writes it.
//! - [`value_and_grad`] and [`vjp`] differentiate, through everything below.
//! - [`scan`] loops over layers, [`remat`] and [`transient`] recompute values to save memory,
//!   [`Function`] emits a function once for all its calls, [`custom_vjp`] defines a custom
//!   gradient, [`cond`] and [`while_loop`] branch and loop.
//! - [`Mesh`] names the axes of a device mesh; [`MeshExt::manual`] runs a region on each device
//!   with [`Group`]'s collectives. Over the axes that it leaves automatic the compiler shards what
//!   [`Tensor::constrain`] annotates, and [`MeshExt::per_shard`] runs what it cannot shard.
//! - [`Key`] generates random numbers from a seed, a name and an index. They are the same on any
//!   mesh and when recomputed.
//! - [`module`] names a part of a program; errors and compiled instructions carry the name.
#![forbid(unsafe_code)]

mod control;
mod error;
mod grad;
mod graph;
mod manual;
mod mesh;
mod named;
mod op;
mod ops;
mod program;
mod random;
mod sink;
mod tensor;
mod text;
mod trace;
pub mod triton;

pub use control::{
    Function, Policy, Scan, ScanResults, cond, custom_vjp, remat, scan, transient, while_loop,
};
pub use error::{Error, Result};
pub use fullshard_core::{DType, Mesh, MeshError, Sharding, TensorType};
pub use grad::{Pullback, value_and_grad, value_aux_and_grad, vjp};
pub use mesh::{Group, MeshExt};
pub use named::NamedValues;
pub use op::{Comparison, Reduction};
pub use ops::{
    Attribute, Convolution, CustomCallBuilder, Scalar, barrier, concatenate, constant, custom_call,
    einsum, full, iota, ones, precise_einsum, select, zeros,
};
pub use program::{Argument, Dialect, Program};
pub use random::{Draw, Key, threefry};
pub use tensor::Tensor;
pub use text::{MATMUL, MPI_PREFIX, PAD, PROCESS_INDEX, ProcessCall};
pub use trace::{module, module_path};
