//! Matmuls of `bf16` matrices with sums in `f32`: by the instructions of the CPU for it, or else in
//! `f32`.

#[cfg(target_arch = "x86_64")]
use super::avx512;
use super::{Float, Matrix, Output};
use half::bf16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;
use std::ops::Range;
use std::slice;

/// The multiple of rows or columns that a thread has.
const PART: usize = 32;

/// Where the result goes. Its rows are contiguous, and the start of the next is `row` elements away.
#[derive(Clone, Copy)]
pub(super) enum Destination {
    F32 { data: *mut f32, row: usize, output: Output },
    Bf16 { data: *mut bf16, row: usize },
}

// SAFETY: whoever uses the data has to know that it is live and not aliased, on any thread.
unsafe impl Send for Destination {}
// SAFETY: as above.
unsafe impl Sync for Destination {}

impl Destination {
    /// The part that starts at a row and column.
    pub(super) fn at(self, first: usize, column: usize) -> Destination {
        match self {
            Destination::F32 { data, row, output } => {
                Destination::F32 { data: data.wrapping_add(first * row + column), row, output }
            }
            Destination::Bf16 { data, row } => {
                Destination::Bf16 { data: data.wrapping_add(first * row + column), row }
            }
        }
    }
}

/// One matmul of the given rows, columns and `k`.
///
/// # Safety
/// All reads and writes must be inside live memory, and the result must not be aliased.
pub(super) unsafe fn multiply(
    sizes: [usize; 3],
    lhs: Matrix<bf16>,
    rhs: Matrix<bf16>,
    result: Destination,
    threads: usize,
) {
    let [rows, columns, k] = sizes;
    let run = |[rows, columns]: [Range<usize>; 2]| {
        let sizes = [rows.len(), columns.len(), k];
        let (lhs, rhs) = (lhs.from(rows.start, 0), rhs.from(0, columns.start));
        let result = result.at(rows.start, columns.start);
        // SAFETY: parts of the whole, which the caller answers for; those of threads are disjoint.
        unsafe { multiply_part(sizes, lhs, rhs, result) };
    };
    match threads {
        0 | 1 => run([0..rows, 0..columns]),
        _ if rows > columns => {
            parts(rows, threads).into_par_iter().for_each(|rows| run([rows, 0..columns]));
        }
        _ => parts(columns, threads).into_par_iter().for_each(|columns| run([0..rows, columns])),
    }
}

/// Ranges of about the same size, multiples of what kernels like.
fn parts(size: usize, count: usize) -> Vec<Range<usize>> {
    let each = size.div_ceil(count).next_multiple_of(PART);
    (0..size).step_by(each).map(|start| start..size.min(start + each)).collect()
}

/// # Safety
/// As of [`multiply`].
unsafe fn multiply_part(
    sizes: [usize; 3],
    lhs: Matrix<bf16>,
    rhs: Matrix<bf16>,
    result: Destination,
) {
    #[cfg(target_arch = "x86_64")]
    if avx512::is_supported() {
        // SAFETY: the CPU has the instructions, and the caller promises the rest.
        return unsafe { avx512::multiply(sizes, lhs, rhs, result) };
    }
    // SAFETY: the caller promises it.
    unsafe { multiply_widened(sizes, lhs, rhs, result) };
}

/// By way of `f32` copies.
///
/// # Safety
/// As of [`multiply`].
unsafe fn multiply_widened(
    sizes: [usize; 3],
    lhs: Matrix<bf16>,
    rhs: Matrix<bf16>,
    result: Destination,
) {
    let [rows, columns, k] = sizes;
    let (mut left, mut right) = (Vec::new(), Vec::new());
    // SAFETY: the caller promises it.
    let (lhs, rhs) =
        unsafe { (lhs.widened([rows, k], &mut left), rhs.widened([k, columns], &mut right)) };
    match result {
        Destination::F32 { data, row, output } => {
            // SAFETY: the caller promises it.
            unsafe { f32::multiply_to(sizes, lhs, rhs, (data, row), output, 1) };
        }
        Destination::Bf16 { data, row } => {
            let mut sums = vec![0.0_f32; rows * columns];
            let result = (sums.as_mut_ptr(), columns);
            // SAFETY: the sums have as many elements.
            unsafe { f32::multiply_to(sizes, lhs, rhs, result, Output::Overwrite, 1) };
            for (i, sums) in sums.chunks(columns).enumerate() {
                for (j, sum) in sums.iter().enumerate() {
                    // SAFETY: the caller promises it.
                    unsafe { *data.add(i * row + j) = bf16::from_f32(*sum) };
                }
            }
        }
    }
}

impl Matrix<bf16> {
    /// A dense copy in `f32`, in the order of memory.
    ///
    /// # Safety
    /// All of it is live.
    unsafe fn widened(self, [rows, columns]: [usize; 2], dense: &mut Vec<f32>) -> Matrix<f32> {
        if self.row == 1 && self.column != 1 {
            // SAFETY: as the caller promises.
            return unsafe { self.transposed().widened([columns, rows], dense) }.transposed();
        }
        dense.resize(rows * columns, 0.0);
        for (row, dense) in dense.chunks_exact_mut(columns).enumerate() {
            let start = self.from(row, 0).data;
            if self.column == 1 {
                // SAFETY: as the caller promises.
                let values = unsafe { slice::from_raw_parts(start, columns) };
                values.convert_to_f32_slice(dense);
            } else {
                for (i, value) in dense.iter_mut().enumerate() {
                    // SAFETY: as the caller promises.
                    *value = unsafe { *start.offset(i as isize * self.column) }.to_f32();
                }
            }
        }
        Matrix { data: dense.as_ptr(), row: columns as isize, column: 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, seed: u32) -> Vec<bf16> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            bf16::from_f32((state >> 8) as f32 / 8_388_608.0 - 1.0)
        };
        (0..count).map(|_| next()).collect()
    }

    /// # Safety
    /// As of [`multiply`].
    unsafe fn on_three_threads(
        sizes: [usize; 3],
        lhs: Matrix<bf16>,
        rhs: Matrix<bf16>,
        result: Destination,
    ) {
        // SAFETY: the caller promises it.
        unsafe { multiply(sizes, lhs, rhs, result, 3) };
    }

    /// Both ways, on one thread and on several, agree with sums in `f64`.
    #[test]
    fn all_ways_give_the_definition() {
        for sizes @ [rows, columns, k] in
            [[1, 1, 1], [14, 32, 2], [13, 31, 3], [15, 33, 64], [97, 50, 31], [40, 500, 129]]
        {
            for transposed in [[false, false], [true, false], [false, true], [true, true]] {
                let (left, right) = (numbers(rows * k, 1), numbers(k * columns, 2));
                let view = |data: &[bf16], rows: usize, columns: usize, transposed: bool| {
                    let data = data.as_ptr();
                    match transposed {
                        true => Matrix { data, row: 1, column: rows as isize },
                        false => Matrix { data, row: columns as isize, column: 1 },
                    }
                };
                let lhs = view(&left, rows, k, transposed[0]);
                let rhs = view(&right, k, columns, transposed[1]);
                let at = |matrix: Matrix<bf16>, row: usize, column: usize| {
                    // SAFETY: the element is inside.
                    f64::from(unsafe { *matrix.from(row, column).data })
                };
                let expected = |i: usize, j: usize| -> f64 {
                    (0..k).map(|l| at(lhs, i, l) * at(rhs, l, j)).sum()
                };
                type Multiply = unsafe fn([usize; 3], Matrix<bf16>, Matrix<bf16>, Destination);
                let ways: [Multiply; 3] = [multiply_part, multiply_widened, on_three_threads];
                for way in ways {
                    let mut sums = vec![0.5_f32; rows * columns];
                    let mut rounded = vec![bf16::ZERO; rows * columns];
                    let (data, row) = (sums.as_mut_ptr(), columns);
                    let result = Destination::F32 { data, row, output: Output::Accumulate };
                    // SAFETY: all have these sizes.
                    unsafe { way(sizes, lhs, rhs, result) };
                    let result = Destination::Bf16 { data: rounded.as_mut_ptr(), row };
                    // SAFETY: as above.
                    unsafe { way(sizes, lhs, rhs, result) };
                    for (i, (sum, rounded)) in sums.iter().zip(&rounded).enumerate() {
                        let expected = expected(i / columns, i % columns);
                        let error = (f64::from(*sum) - 0.5 - expected).abs();
                        assert!(error < 1e-5, "{sizes:?} {transposed:?}: {sum}, not {expected}");
                        let error = (f64::from(*rounded) - expected).abs();
                        assert!(
                            error <= expected.abs() / 256.0 + 1e-6,
                            "{rounded}, not {expected}"
                        );
                    }
                }
            }
        }
    }
}
