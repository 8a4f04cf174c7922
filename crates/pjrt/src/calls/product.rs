//! Products of matrices on the CPU, in any orientation and in batches.
//!
//! A call has two operands and a result of `f32` and says in its attributes where things are:
//! `sizes` has two batch sizes, rows, columns and what is summed over; `lhs` and `rhs` have the
//! strides of both batches, then of rows and sums, and of sums and columns; `offsets` has where
//! each begins. Results are dense.

use super::frame::{Floats, Frame};
use gemm::Parallelism;

/// The name that programs call products by.
pub const PRODUCT: &str = "fullshard.product";

/// What a call says of itself.
struct Product {
    batches: [usize; 2],
    rows: usize,
    columns: usize,
    sums: usize,
    lhs: [isize; 4],
    rhs: [isize; 4],
}

/// Carries out a call on so many threads.
pub(super) fn run(frame: &Frame<'_>, threads: usize) -> Result<(), String> {
    let (lhs, rhs, result) = (frame.operand(0)?, frame.operand(1)?, frame.result(0)?);
    let sizes = frame.integers::<5>("sizes")?;
    let product = Product::new(sizes, frame.integers("lhs")?, frame.integers("rhs")?)?;
    let (lhs, rhs) = {
        let [left, right] = frame.integers("offsets")?;
        (lhs.from(left)?, rhs.from(right)?)
    };
    product.check(&lhs, &rhs, &result)?;
    product.compute(lhs.data, rhs.data, result.data, threads);
    Ok(())
}

impl Product {
    fn new(sizes: [i64; 5], lhs: [i64; 4], rhs: [i64; 4]) -> Result<Product, String> {
        let whole = |sizes: &[i64]| sizes.iter().all(|&size| size >= 0);
        if !whole(&sizes) || !whole(&lhs) || !whole(&rhs) {
            return Err("sizes and strides must not be negative".into());
        }
        let [outer, inner, rows, columns, sums] = sizes.map(|size| size as usize);
        let (lhs, rhs) = (lhs.map(|stride| stride as isize), rhs.map(|stride| stride as isize));
        Ok(Product { batches: [outer, inner], rows, columns, sums, lhs, rhs })
    }

    /// Refuses a product that would read or write beyond its tensors.
    fn check(&self, lhs: &Floats, rhs: &Floats, result: &Floats) -> Result<(), String> {
        let [outer, inner] = self.batches;
        let dense = [inner * self.rows * self.columns, self.rows * self.columns, self.columns, 1];
        let dense = dense.map(|stride| stride as isize);
        let tensors = [
            (lhs, self.lhs, [outer, inner, self.rows, self.sums]),
            (rhs, self.rhs, [outer, inner, self.sums, self.columns]),
            (result, dense, [outer, inner, self.rows, self.columns]),
        ];
        for (floats, strides, sizes) in tensors {
            if sizes.contains(&0) {
                return Err("a product of nothing".into());
            }
            let last = sizes.iter().zip(strides).try_fold(0_usize, |last, (size, stride)| {
                last.checked_add((size - 1).checked_mul(stride.unsigned_abs())?)
            });
            if last.is_none_or(|last| last >= floats.elements) {
                return Err(format!("strides lead beyond a tensor of {} numbers", floats.elements));
            }
        }
        Ok(())
    }

    fn compute(&self, lhs: *const f32, rhs: *const f32, result: *mut f32, threads: usize) {
        let [lhs_outer, lhs_inner, lhs_row, lhs_sum] = self.lhs;
        let [rhs_outer, rhs_inner, rhs_sum, rhs_column] = self.rhs;
        let (rows, columns) = (self.rows, self.columns);
        for outer in 0..self.batches[0] {
            for inner in 0..self.batches[1] {
                let (o, i) = (outer as isize, inner as isize);
                let matrix = (outer * self.batches[1] + inner) * rows * columns;
                // SAFETY: `check` has seen that every element is inside its tensor, and the
                // plugin gives results memory of their own.
                unsafe {
                    let lhs = lhs.offset(o * lhs_outer + i * lhs_inner);
                    let rhs = rhs.offset(o * rhs_outer + i * rhs_inner);
                    let lhs = Matrix { data: lhs, row: lhs_row, column: lhs_sum };
                    let rhs = Matrix { data: rhs, row: rhs_sum, column: rhs_column };
                    let sizes = [rows, columns, self.sums];
                    let result = (result.add(matrix), columns);
                    multiply(sizes, lhs, rhs, result, Before::Nothing, threads);
                }
            }
        }
    }
}

/// A matrix that is read, and how far apart its rows and columns are.
pub(super) struct Matrix {
    pub data: *const f32,
    pub row: isize,
    pub column: isize,
}

/// What is in a result before a product comes to it.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Before {
    Nothing,
    /// What the product is added to.
    Sum,
}

/// One product of so many rows, columns and sums, into a result whose rows are so far apart.
///
/// # Safety
/// All that is read and written must be inside memory that is live, and nobody else may have the
/// result.
pub(super) unsafe fn multiply(
    [rows, columns, sums]: [usize; 3],
    lhs: Matrix,
    rhs: Matrix,
    (result, result_row): (*mut f32, usize),
    before: Before,
    threads: usize,
) {
    let parallelism = match threads {
        0 | 1 => Parallelism::None,
        threads => Parallelism::Rayon(threads),
    };
    let adds = before == Before::Sum;
    // SAFETY: the caller's promise.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            sums,
            result,
            1,
            result_row as isize,
            adds,
            lhs.data,
            lhs.column,
            lhs.row,
            rhs.data,
            rhs.column,
            rhs.row,
            if adds { 1.0 } else { 0.0 },
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}
