//! Batched matmuls on the CPU, in any orientation.
//!
//! A call has two operands of `f32` and a result of `f32`, or two of `bf16` and a result of either:
//! sums are in `f32`. Its attributes describe the layout: `sizes`
//! has two batch sizes, rows, columns and the contracted size `k`; `lhs` and `rhs` have the strides
//! of both batches, then of rows and `k`, and of `k` and columns; `offsets` has the start of each
//! operand. Results are dense.

#[cfg(target_arch = "x86_64")]
mod avx512;
mod mixed;

use super::frame::{Element, Elements, Frame};
use crate::sys;
use gemm_common::Parallelism;
use half::bf16;
use mixed::Destination;

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
    let sizes = frame.integers::<5>("sizes")?;
    let matmul = Matmul::new(sizes, frame.integers("lhs")?, frame.integers("rhs")?)?;
    match [frame.any_operand(0)?.dtype, frame.any_result(0)?.dtype] {
        [sys::TYPE_BF16, sys::TYPE_BF16] => matmul.run(frame, |sizes, lhs, rhs, data| {
            let result = Destination::Bf16 { data, row: matmul.columns };
            // SAFETY: `check` verified it.
            unsafe { mixed::multiply(sizes, lhs, rhs, result, threads) };
        }),
        [sys::TYPE_BF16, _] => matmul.run(frame, |sizes, lhs: Matrix<bf16>, rhs, data| {
            let result = (data, matmul.columns);
            // SAFETY: `check` verified it.
            unsafe { bf16::multiply_to(sizes, lhs, rhs, result, Output::Overwrite, threads) };
        }),
        _ => matmul.run(frame, |sizes, lhs: Matrix<f32>, rhs, data| {
            let result = (data, matmul.columns);
            // SAFETY: `check` verified it.
            unsafe { f32::multiply_to(sizes, lhs, rhs, result, Output::Overwrite, threads) };
        }),
    }
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

    /// Runs every matmul of the batch by a function of sizes, operands and result.
    fn run<T: Element, R: Element>(
        &self,
        frame: &Frame<'_>,
        multiply: impl Fn([usize; 3], Matrix<T>, Matrix<T>, *mut R),
    ) -> Result<(), String> {
        let [left, right] = frame.integers("offsets")?;
        let lhs = frame.operand::<T>(0)?.from(left)?;
        let rhs = frame.operand::<T>(1)?.from(right)?;
        let result = frame.result::<R>(0)?;
        self.check(&lhs, &rhs, &result)?;
        let [lhs_outer, lhs_inner, lhs_row, lhs_k] = self.lhs;
        let [rhs_outer, rhs_inner, rhs_k, rhs_column] = self.rhs;
        for outer in 0..self.batches[0] {
            for inner in 0..self.batches[1] {
                let (o, i) = (outer as isize, inner as isize);
                let matrix = (outer * self.batches[1] + inner) * self.rows * self.columns;
                // SAFETY: `check` verified that every element is inside its tensor.
                let (lhs, rhs, result) = unsafe {
                    (
                        lhs.data.offset(o * lhs_outer + i * lhs_inner),
                        rhs.data.offset(o * rhs_outer + i * rhs_inner),
                        result.data.add(matrix),
                    )
                };
                let lhs = Matrix { data: lhs.cast_const(), row: lhs_row, column: lhs_k };
                let rhs = Matrix { data: rhs.cast_const(), row: rhs_k, column: rhs_column };
                multiply([self.rows, self.columns, self.k], lhs, rhs, result);
            }
        }
        Ok(())
    }

    /// Rejects a matmul that would read or write out of bounds.
    fn check<T, R>(
        &self,
        lhs: &Elements<T>,
        rhs: &Elements<T>,
        result: &Elements<R>,
    ) -> Result<(), String> {
        let [outer, inner] = self.batches;
        let dense = [inner * self.rows * self.columns, self.rows * self.columns, self.columns, 1];
        let dense = dense.map(|stride| stride as isize);
        let tensors = [
            (lhs.elements, self.lhs, [outer, inner, self.rows, self.k]),
            (rhs.elements, self.rhs, [outer, inner, self.k, self.columns]),
            (result.elements, dense, [outer, inner, self.rows, self.columns]),
        ];
        for (elements, strides, sizes) in tensors {
            if sizes.contains(&0) {
                return Err("a matmul dimension has size 0".into());
            }
            let last = sizes.iter().zip(strides).try_fold(0_usize, |last, (size, stride)| {
                last.checked_add((size - 1).checked_mul(stride.unsigned_abs())?)
            });
            if last.is_none_or(|last| last >= elements) {
                return Err(format!("strides go beyond a tensor of {elements} elements"));
            }
        }
        Ok(())
    }
}

/// An operand matrix with its row and column strides.
#[derive(Clone, Copy)]
pub(super) struct Matrix<T> {
    pub data: *const T,
    pub row: isize,
    pub column: isize,
}

// SAFETY: whoever uses the data has to know that it is live, on any thread.
unsafe impl<T> Send for Matrix<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Matrix<T> {}

impl<T> Matrix<T> {
    /// The part that starts at a row and column.
    pub(super) fn from(self, row: usize, column: usize) -> Matrix<T> {
        let offset = row as isize * self.row + column as isize * self.column;
        Matrix { data: self.data.wrapping_offset(offset), ..self }
    }

    /// Columns as rows.
    pub(super) fn transposed(self) -> Matrix<T> {
        Matrix { data: self.data, row: self.column, column: self.row }
    }
}

/// How a matmul writes its result.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Output {
    Overwrite,
    Accumulate,
}

/// Floats of matmuls with sums in `f32`.
pub(super) trait Float: Element {
    /// The nearest to a number.
    fn narrow(value: f32) -> Self;

    /// The same number.
    fn widen(self) -> f32;

    /// One matmul of the given rows, columns and `k`, into a result with the given row stride.
    ///
    /// # Safety
    /// All reads and writes must be inside live memory, and the result must not be aliased.
    unsafe fn multiply_to(
        sizes: [usize; 3],
        lhs: Matrix<Self>,
        rhs: Matrix<Self>,
        result: (*mut f32, usize),
        output: Output,
        threads: usize,
    );
}

impl Float for bf16 {
    #[inline(always)]
    fn narrow(value: f32) -> bf16 {
        bf16::from_f32(value)
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }

    unsafe fn multiply_to(
        sizes: [usize; 3],
        lhs: Matrix<bf16>,
        rhs: Matrix<bf16>,
        (data, row): (*mut f32, usize),
        output: Output,
        threads: usize,
    ) {
        let result = Destination::F32 { data, row, output };
        // SAFETY: the caller promises it.
        unsafe { mixed::multiply(sizes, lhs, rhs, result, threads) };
    }
}

impl Float for f32 {
    #[inline(always)]
    fn narrow(value: f32) -> f32 {
        value
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    unsafe fn multiply_to(
        [rows, columns, k]: [usize; 3],
        lhs: Matrix<f32>,
        rhs: Matrix<f32>,
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
}
