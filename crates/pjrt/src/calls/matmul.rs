//! Batched matmuls on the CPU, in any orientation.
//!
//! A call has two `f32` operands and an `f32` result. Its attributes describe the layout: `sizes`
//! has two batch sizes, rows, columns and the contracted size `k`; `lhs` and `rhs` have the strides
//! of both batches, then of rows and `k`, and of `k` and columns; `offsets` has the start of each
//! operand. Results are dense.

use super::frame::{Floats, Frame};
use gemm_common::Parallelism;

/// The custom call target of matmuls.
pub const MATMUL: &str = "fullshard.matmul";

/// The attributes of a call.
struct Matmul {
    batches: [usize; 2],
    rows: usize,
    columns: usize,
    k: usize,
    lhs: [isize; 4],
    rhs: [isize; 4],
}

/// Runs a call on `threads` threads.
pub(super) fn run(frame: &Frame<'_>, threads: usize) -> Result<(), String> {
    let (lhs, rhs, result) = (frame.operand(0)?, frame.operand(1)?, frame.result(0)?);
    let sizes = frame.integers::<5>("sizes")?;
    let matmul = Matmul::new(sizes, frame.integers("lhs")?, frame.integers("rhs")?)?;
    let (lhs, rhs) = {
        let [left, right] = frame.integers("offsets")?;
        (lhs.from(left)?, rhs.from(right)?)
    };
    matmul.check(&lhs, &rhs, &result)?;
    matmul.compute(lhs.data, rhs.data, result.data, threads);
    Ok(())
}

impl Matmul {
    fn new(sizes: [i64; 5], lhs: [i64; 4], rhs: [i64; 4]) -> Result<Matmul, String> {
        let negative = |sizes: &[i64]| sizes.iter().any(|&size| size < 0);
        if negative(&sizes) || negative(&lhs) || negative(&rhs) {
            return Err("sizes and strides must not be negative".into());
        }
        let [outer, inner, rows, columns, k] = sizes.map(|size| size as usize);
        let (lhs, rhs) = (lhs.map(|stride| stride as isize), rhs.map(|stride| stride as isize));
        Ok(Matmul { batches: [outer, inner], rows, columns, k, lhs, rhs })
    }

    /// Rejects a matmul that would read or write out of bounds.
    fn check(&self, lhs: &Floats, rhs: &Floats, result: &Floats) -> Result<(), String> {
        let [outer, inner] = self.batches;
        let dense = [inner * self.rows * self.columns, self.rows * self.columns, self.columns, 1];
        let dense = dense.map(|stride| stride as isize);
        let tensors = [
            (lhs, self.lhs, [outer, inner, self.rows, self.k]),
            (rhs, self.rhs, [outer, inner, self.k, self.columns]),
            (result, dense, [outer, inner, self.rows, self.columns]),
        ];
        for (floats, strides, sizes) in tensors {
            if sizes.contains(&0) {
                return Err("a matmul dimension has size 0".into());
            }
            let last = sizes.iter().zip(strides).try_fold(0_usize, |last, (size, stride)| {
                last.checked_add((size - 1).checked_mul(stride.unsigned_abs())?)
            });
            if last.is_none_or(|last| last >= floats.elements) {
                return Err(format!("strides go beyond a tensor of {} elements", floats.elements));
            }
        }
        Ok(())
    }

    fn compute(&self, lhs: *const f32, rhs: *const f32, result: *mut f32, threads: usize) {
        let [lhs_outer, lhs_inner, lhs_row, lhs_k] = self.lhs;
        let [rhs_outer, rhs_inner, rhs_k, rhs_column] = self.rhs;
        let (rows, columns) = (self.rows, self.columns);
        for outer in 0..self.batches[0] {
            for inner in 0..self.batches[1] {
                let (o, i) = (outer as isize, inner as isize);
                let matrix = (outer * self.batches[1] + inner) * rows * columns;
                // SAFETY: `check` verified that every element is inside its tensor, and the
                // plugin allocates results separately.
                unsafe {
                    let lhs = lhs.offset(o * lhs_outer + i * lhs_inner);
                    let rhs = rhs.offset(o * rhs_outer + i * rhs_inner);
                    let lhs = Matrix { data: lhs, row: lhs_row, column: lhs_k };
                    let rhs = Matrix { data: rhs, row: rhs_k, column: rhs_column };
                    let sizes = [rows, columns, self.k];
                    let result = (result.add(matrix), columns);
                    multiply(sizes, lhs, rhs, result, Output::Overwrite, threads);
                }
            }
        }
    }
}

/// An operand matrix with its row and column strides.
pub(super) struct Matrix {
    pub data: *const f32,
    pub row: isize,
    pub column: isize,
}

/// How a matmul writes its result.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Output {
    Overwrite,
    Accumulate,
}

/// One matmul of the given rows, columns and `k`, into a result with the given row stride.
///
/// # Safety
/// All reads and writes must be inside live memory, and the result must not be aliased.
pub(super) unsafe fn multiply(
    [rows, columns, k]: [usize; 3],
    lhs: Matrix,
    rhs: Matrix,
    (result, result_row): (*mut f32, usize),
    output: Output,
    threads: usize,
) {
    let parallelism = match threads {
        0 | 1 => Parallelism::None,
        threads => Parallelism::Rayon(threads),
    };
    let accumulate = output == Output::Accumulate;
    // The operands are swapped, since the kernel is column-major and the result row-major.
    // SAFETY: the caller promises it.
    unsafe {
        gemm_f32::gemm::f32::get_gemm_fn()(
            columns,
            rows,
            k,
            result,
            result_row as isize,
            1,
            accumulate,
            rhs.data,
            rhs.row,
            rhs.column,
            lhs.data,
            lhs.row,
            lhs.column,
            if accumulate { 1.0 } else { 0.0 },
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}
