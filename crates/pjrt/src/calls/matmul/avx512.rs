//! Matmuls with AVX-512 BF16, whose instruction multiplies pairs and adds both products to a sum. A
//! tile of the result stays in registers for all of `k`; what it reads is packed before, pairs next to
//! one another.

use super::mixed::Destination;
use super::{Matrix, Output};
use half::bf16;
use std::arch::x86_64::{
    __m256i, __m512bh, __m512i, _mm256_mask_storeu_epi16, _mm256_maskz_loadu_epi16, _mm512_add_ps,
    _mm512_cvtepu16_epi32, _mm512_cvtneps_pbh, _mm512_dpbf16_ps, _mm512_loadu_si512,
    _mm512_mask_storeu_epi32, _mm512_mask_storeu_ps, _mm512_maskz_loadu_epi16,
    _mm512_maskz_loadu_ps, _mm512_or_si512, _mm512_set1_epi32, _mm512_setzero_ps,
    _mm512_setzero_si512, _mm512_shuffle_i32x4, _mm512_slli_epi32, _mm512_unpackhi_epi32,
    _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
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
        // SAFETY: these lines are there.
        unsafe {
            match lines {
                Matrix { data, row, column: 1 } => pack_along(data, row, slots, count, k),
                Matrix { data, row: 1, column } => pack_across(data, column, slots, count, k),
                _ => pack_any(lines, slots, count, k),
            }
        }
    }
}

/// The mask of the first lanes.
fn first(lanes: usize) -> u32 {
    ((1_u64 << lanes.min(32)) - 1) as u32
}

/// Packs lines whose elements are next to one another: transposes 16 pairs of 16 lines at a time.
///
/// # Safety
/// As of [`pack`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn pack_along<const PANEL: usize>(
    data: *const bf16,
    row: isize,
    slots: &mut [[u32; PANEL]],
    count: usize,
    k: usize,
) {
    for line in (0..PANEL).step_by(LANES) {
        for pair in (0..slots.len()).step_by(LANES) {
            let mut lines = [_mm512_setzero_si512(); LANES];
            let elements = first(k - 2 * pair);
            for (i, found) in lines.iter_mut().enumerate().take(count.saturating_sub(line)) {
                let start = (line + i) as isize * row + 2 * pair as isize;
                // SAFETY: the line has these elements. On this CPU the first of a pair is the lower.
                *found = unsafe {
                    _mm512_maskz_loadu_epi16(elements, data.wrapping_offset(start).cast())
                };
            }
            let lanes = first(LANES.min(PANEL - line)) as u16;
            for (slot, pairs) in slots[pair..].iter_mut().zip(transposed(lines)) {
                // SAFETY: the slot has these lanes.
                unsafe { _mm512_mask_storeu_epi32(slot[line..].as_mut_ptr().cast(), lanes, pairs) };
            }
        }
    }
}

/// Packs lines that are next to one another.
///
/// # Safety
/// As of [`pack`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn pack_across<const PANEL: usize>(
    data: *const bf16,
    column: isize,
    slots: &mut [[u32; PANEL]],
    count: usize,
    k: usize,
) {
    for (i, slot) in slots.iter_mut().enumerate() {
        for line in (0..PANEL).step_by(LANES) {
            let lines = first(count.saturating_sub(line).min(LANES)) as u16;
            let element = |i: usize| {
                let start = i as isize * column + line as isize;
                let lines = if i < k { lines } else { 0 };
                // SAFETY: these lines have this element.
                let found =
                    unsafe { _mm256_maskz_loadu_epi16(lines, data.wrapping_offset(start).cast()) };
                _mm512_cvtepu16_epi32(found)
            };
            let upper = _mm512_slli_epi32::<16>(element(2 * i + 1));
            let pairs = _mm512_or_si512(element(2 * i), upper);
            let lanes = first(LANES.min(PANEL - line)) as u16;
            // SAFETY: the slot has these lanes.
            unsafe { _mm512_mask_storeu_epi32(slot[line..].as_mut_ptr().cast(), lanes, pairs) };
        }
    }
}

/// The columns of 16 rows of 16 numbers.
#[target_feature(enable = "avx512f")]
fn transposed(rows: [__m512i; LANES]) -> [__m512i; LANES] {
    // Numbers, then pairs of them, then quarters and halves of registers change places.
    let mut quads = rows;
    for i in (0..LANES).step_by(4) {
        let a = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        let b = _mm512_unpacklo_epi32(rows[i + 2], rows[i + 3]);
        let c = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
        let d = _mm512_unpackhi_epi32(rows[i + 2], rows[i + 3]);
        quads[i] = _mm512_unpacklo_epi64(a, b);
        quads[i + 1] = _mm512_unpackhi_epi64(a, b);
        quads[i + 2] = _mm512_unpacklo_epi64(c, d);
        quads[i + 3] = _mm512_unpackhi_epi64(c, d);
    }
    let mut columns = quads;
    for i in 0..4 {
        let (a, b, c, d) = (quads[i], quads[i + 4], quads[i + 8], quads[i + 12]);
        let (low, high) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0x88>(c, d));
        columns[i] = _mm512_shuffle_i32x4::<0x88>(low, high);
        columns[i + 8] = _mm512_shuffle_i32x4::<0xdd>(low, high);
        let (low, high) = (_mm512_shuffle_i32x4::<0xdd>(a, b), _mm512_shuffle_i32x4::<0xdd>(c, d));
        columns[i + 4] = _mm512_shuffle_i32x4::<0x88>(low, high);
        columns[i + 12] = _mm512_shuffle_i32x4::<0xdd>(low, high);
    }
    columns
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
    slots.fill([0; PANEL]);
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
