//! Matmuls with AVX-512 BF16, whose instruction multiplies pairs and adds both products to a sum. A
//! tile of the result stays in registers for all of `k`; what it reads is packed before, pairs next to
//! one another.

use super::mixed::Destination;
use super::{Matrix, Output};
use half::bf16;
use std::arch::x86_64::{
    __m256i, __m512bh, __m512i, _mm256_mask_storeu_epi16, _mm512_add_ps, _mm512_cvtneps_pbh,
    _mm512_dpbf16_ps, _mm512_loadu_si512, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps,
    _mm512_set1_epi32, _mm512_setzero_ps,
};
use std::mem::transmute;

/// The rows and columns of a tile, of which 28 registers have the sums.
pub const ROWS: usize = 14;
pub const COLUMNS: usize = 2 * LANES;
const LANES: usize = 16;

/// The bytes of packed rows that stay in the second cache while they meet all columns of a
/// block, and those of such a block.
const ROW_BYTES: usize = 384 << 10;
const COLUMN_BYTES: usize = 4 << 20;

/// Whether the CPU has the instructions.
pub fn is_supported() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512bf16")
}

/// # Safety
/// The CPU has the instructions; otherwise as of [`super::mixed::multiply`].
pub unsafe fn multiply(
    [rows, columns, k]: [usize; 3],
    lhs: Matrix<bf16>,
    rhs: Matrix<bf16>,
    result: Destination,
) {
    let pairs = k.div_ceil(2);
    let block = |bytes: usize, panel: usize| (bytes / (4 * pairs)).max(1).next_multiple_of(panel);
    let row_block = block(ROW_BYTES, ROWS);
    let column_block = block(COLUMN_BYTES, COLUMNS);
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for column in (0..columns).step_by(column_block) {
        let columns = column_block.min(columns - column);
        // SAFETY: these columns are inside.
        unsafe { pack::<COLUMNS>(rhs.from(0, column).transposed(), columns, k, &mut right) };
        for row in (0..rows).step_by(row_block) {
            let rows = row_block.min(rows - row);
            // SAFETY: these rows are inside.
            unsafe { pack::<ROWS>(lhs.from(row, 0), rows, k, &mut left) };
            let result = result.at(row, column);
            // SAFETY: both are packed, and the result is as large.
            unsafe { tiles([rows, columns, pairs], &left, &right, result) };
        }
    }
}

/// # Safety
/// Both sides are packed, and all of the result is live.
unsafe fn tiles(
    [rows, columns, pairs]: [usize; 3],
    left: &[u32],
    right: &[u32],
    result: Destination,
) {
    for (j, right) in right.chunks_exact(COLUMNS * pairs).enumerate() {
        for (i, left) in left.chunks_exact(ROWS * pairs).enumerate() {
            let size = [ROWS.min(rows - i * ROWS), COLUMNS.min(columns - j * COLUMNS)];
            // SAFETY: the caller promises it.
            unsafe { tile(left, right, size, result.at(i * ROWS, j * COLUMNS)) };
        }
    }
}

/// Packs lines of a matrix, `PANEL` at a time: of each panel first the first pair of elements of
/// every line, then the second. What is missing is zero.
///
/// # Safety
/// The CPU has the instructions, and the matrix has as many lines of `k` elements, all live.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn pack<const PANEL: usize>(
    lines: Matrix<bf16>,
    count: usize,
    k: usize,
    packed: &mut Vec<u32>,
) {
    let pairs = k.div_ceil(2);
    packed.resize(count.div_ceil(PANEL) * PANEL * pairs, 0);
    for (i, panel) in packed.chunks_exact_mut(PANEL * pairs).enumerate() {
        let (slots, _) = panel.as_chunks_mut::<PANEL>();
        let lines = lines.from(i * PANEL, 0);
        let count = PANEL.min(count - i * PANEL);
        if count < PANEL {
            slots.fill([0; PANEL]);
        }
        // SAFETY: these lines are there.
        unsafe {
            match lines {
                Matrix { data, row, column: 1 } => pack_along(data.cast(), row, slots, count, k),
                Matrix { data, row: 1, column } if count == PANEL => {
                    pack_across(data.cast(), column, slots, k);
                }
                _ => {
                    slots.fill([0; PANEL]);
                    pack_any(lines, slots, count, k);
                }
            }
        }
    }
}

/// Packs lines whose elements are next to one another.
///
/// # Safety
/// As of [`pack`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn pack_along<const PANEL: usize>(
    data: *const u16,
    row: isize,
    slots: &mut [[u32; PANEL]],
    count: usize,
    k: usize,
) {
    #[allow(clippy::needless_range_loop, reason = "the line is an index of every slot")]
    for line in 0..count {
        let line_data = data.wrapping_offset(line as isize * row);
        for (i, slot) in slots.iter_mut().take(k / 2).enumerate() {
            // SAFETY: both are there. On this CPU the first is the lower half.
            slot[line] = unsafe { line_data.cast::<u32>().add(i).read_unaligned() };
        }
        if k % 2 == 1 {
            // SAFETY: the line has `k` elements.
            slots[k / 2][line] = u32::from(unsafe { *line_data.add(k - 1) });
        }
    }
}

/// Packs a full panel of lines that are next to one another.
///
/// # Safety
/// As of [`pack`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn pack_across<const PANEL: usize>(
    data: *const u16,
    column: isize,
    slots: &mut [[u32; PANEL]],
    k: usize,
) {
    for (i, slot) in slots.iter_mut().enumerate() {
        let first = data.wrapping_offset(2 * i as isize * column);
        // SAFETY: every line has this element.
        let first = unsafe { first.cast::<[u16; PANEL]>().read_unaligned() };
        let mut second = [0; PANEL];
        if 2 * i + 1 < k {
            let data = data.wrapping_offset((2 * i + 1) as isize * column);
            // SAFETY: as above.
            second = unsafe { data.cast::<[u16; PANEL]>().read_unaligned() };
        }
        for line in 0..PANEL {
            slot[line] = u32::from(first[line]) | u32::from(second[line]) << 16;
        }
    }
}

/// Packs lines with any strides.
///
/// # Safety
/// As of [`pack`].
unsafe fn pack_any<const PANEL: usize>(
    lines: Matrix<bf16>,
    slots: &mut [[u32; PANEL]],
    count: usize,
    k: usize,
) {
    for i in 0..k {
        for (line, slot) in slots[i / 2].iter_mut().take(count).enumerate() {
            // SAFETY: the line has this element.
            let element = unsafe { *lines.from(line, i).data };
            *slot |= u32::from(element.to_bits()) << (16 * (i % 2));
        }
    }
}

/// The tile of a panel of rows and one of columns.
///
/// # Safety
/// The CPU has the instructions, and as much of the result as `rows` and `columns` is live.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn tile(left: &[u32], right: &[u32], [rows, columns]: [usize; 2], result: Destination) {
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    let (left, right) = (left.as_chunks::<ROWS>().0, right.as_chunks::<COLUMNS>().0);
    // By index, since sums only stay in registers if the loop over rows is unrolled.
    for i in 0..left.len().min(right.len()) {
        let (left, right) = (&left[i], right[i].as_ptr());
        // SAFETY: there are 32 elements of 32 bits, and registers of any type have 512 bits.
        let columns: [__m512bh; 2] = unsafe {
            [
                transmute::<__m512i, __m512bh>(_mm512_loadu_si512(right.cast())),
                transmute::<__m512i, __m512bh>(_mm512_loadu_si512(right.add(LANES).cast())),
            ]
        };
        for row in 0..ROWS {
            // SAFETY: both have 512 bits.
            let pair: __m512bh = unsafe { transmute(_mm512_set1_epi32(left[row].cast_signed())) };
            sums[row][0] = _mm512_dpbf16_ps(sums[row][0], pair, columns[0]);
            sums[row][1] = _mm512_dpbf16_ps(sums[row][1], pair, columns[1]);
        }
    }
    for (row, sums) in sums.iter().enumerate().take(rows) {
        for (half, &sum) in sums.iter().enumerate() {
            let lanes = columns.saturating_sub(half * LANES).min(LANES);
            let mask = ((1_u32 << lanes) - 1) as u16;
            // SAFETY: only as many columns as there are, of a row that is there, are touched.
            unsafe {
                match result.at(row, half * LANES) {
                    Destination::F32 { data, output, .. } => {
                        let sum = match output {
                            Output::Overwrite => sum,
                            Output::Accumulate => {
                                _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, data))
                            }
                        };
                        _mm512_mask_storeu_ps(data, mask, sum);
                    }
                    Destination::Bf16 { data, .. } => {
                        let rounded: __m256i = transmute(_mm512_cvtneps_pbh(sum));
                        _mm256_mask_storeu_epi16(data.cast(), mask, rounded);
                    }
                }
            }
        }
    }
}
