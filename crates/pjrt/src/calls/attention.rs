//! Attention and its gradients, some rows of scores at a time.
//!
//! Queries are `[batch, sequence, heads, head]`, keys and values `[batch, keys, key heads, head]`,
//! all of `f32` or all of `bf16`; consecutive query heads share a key head. Attributes: `sizes` has
//! batch, query heads, key heads, queries, keys and head, `causal` is 1 if a query attends to keys up
//! to its own position only, and `scale` is that of scores.
//!
//! The forward call gives the output, and the log-sum-exp of the scores of each query `[batch,
//! heads, sequence]`. The other takes queries, keys, values, those two and the gradient of the
//! output, and gives the gradients of queries, keys and values. Scores of a block of queries stay in
//! cache; those of keys that none of its queries attends to are not computed.

use super::exponential::{exponentials, largest, score_gradients};
use super::frame::Frame;
use super::matmul::{Float, Matrix, Output};
use crate::sys;
use half::bf16;
use rayon::prelude::*;

/// The custom call target of attention.
pub const ATTENTION: &str = "fullshard.attention";

/// The custom call target of its gradients.
pub const ATTENTION_GRADIENTS: &str = "fullshard.attention_gradients";

/// Queries per block.
const ROWS: usize = 128;

/// The sizes of a call.
#[derive(Clone, Copy)]
struct Attention {
    batch: usize,
    heads: usize,
    key_heads: usize,
    queries: usize,
    keys: usize,
    head: usize,
    causal: bool,
    scale: f32,
    threads: usize,
}

/// Queries, keys or values of all heads.
#[derive(Clone, Copy)]
struct Heads<'a, T> {
    values: &'a [T],
    heads: usize,
    sequence: usize,
    head: usize,
}

/// Where a head writes its result, which no other does.
#[derive(Clone, Copy)]
struct Place<T>(*mut T);

// SAFETY: whoever writes has to know that nobody else does.
unsafe impl<T> Send for Place<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Place<T> {}

impl<T> Place<T> {
    fn at(&self, offset: usize) -> *mut T {
        self.0.wrapping_add(offset)
    }
}

/// Runs attention on `threads` threads.
pub(super) fn forward(frame: &Frame<'_>, threads: usize) -> Result<(), String> {
    match frame.any_operand(0)?.dtype {
        sys::TYPE_BF16 => forward_in::<bf16>(frame, threads),
        _ => forward_in::<f32>(frame, threads),
    }
}

/// Runs its gradients on `threads` threads.
pub(super) fn gradients(frame: &Frame<'_>, threads: usize) -> Result<(), String> {
    match frame.any_operand(0)?.dtype {
        sys::TYPE_BF16 => gradients_in::<bf16>(frame, threads),
        _ => gradients_in::<f32>(frame, threads),
    }
}

fn forward_in<T: Float>(frame: &Frame<'_>, threads: usize) -> Result<(), String> {
    let attention = Attention::new(frame, threads)?;
    let [query, key, value] = attention.inputs::<T>(frame)?;
    let (output, stats) = (frame.result::<T>(0)?, frame.result::<f32>(1)?);
    let rows = attention.batch * attention.heads * attention.queries;
    check(output.elements, rows * attention.head)?;
    check(stats.elements, rows)?;
    let (output, stats) = (Place(output.data), Place(stats.data));
    attention.for_each(attention.heads, |batch, head| {
        let own = head / (attention.heads / attention.key_heads);
        let inputs = [query.of(batch, head), key.of(batch, own), value.of(batch, own)];
        // SAFETY: the sizes were checked, and every head writes its own rows.
        unsafe {
            let output = output.at(query.offset(batch, head));
            let stats = stats.at((batch * attention.heads + head) * attention.queries);
            attention.head_forward(inputs, output, stats);
        }
    });
    Ok(())
}

fn gradients_in<T: Float>(frame: &Frame<'_>, threads: usize) -> Result<(), String> {
    let attention = Attention::new(frame, threads)?;
    let [query, key, value] = attention.inputs::<T>(frame)?;
    let output = attention.heads_of::<T>(frame, 3, attention.heads, attention.queries)?;
    let stats = frame.operand::<f32>(4)?;
    let gradient = attention.heads_of::<T>(frame, 5, attention.heads, attention.queries)?;
    let results = [frame.result::<T>(0)?, frame.result(1)?, frame.result(2)?];
    check(stats.elements, attention.batch * attention.heads * attention.queries)?;
    for (result, input) in results.iter().zip([&query, &key, &value]) {
        check(result.elements, input.values.len())?;
    }
    // SAFETY: the call is running.
    let stats = unsafe { stats.values() };
    let [of_query, of_key, of_value] = results.map(|result| Place(result.data));
    let shared = attention.heads / attention.key_heads;
    attention.for_each(attention.key_heads, |batch, own| {
        let size = attention.keys * attention.head;
        let mut sums = [vec![0.0_f32; size], vec![0.0_f32; size]];
        for head in own * shared..(own + 1) * shared {
            let first = (batch * attention.heads + head) * attention.queries;
            let rows = Rows {
                query: query.of(batch, head),
                key: key.of(batch, own),
                value: value.of(batch, own),
                output: output.of(batch, head),
                gradient: gradient.of(batch, head),
                stats: &stats[first..][..attention.queries],
            };
            // SAFETY: the sizes were checked, and every head writes its own rows.
            unsafe {
                let of_query = of_query.at(query.offset(batch, head));
                attention.head_gradients(rows, of_query, &mut sums);
            }
        }
        for (sums, place) in sums.iter().zip([of_key, of_value]) {
            // SAFETY: as above, of the keys and values that these heads share.
            unsafe {
                let place = place.at(key.offset(batch, own));
                write(sums, attention.head, place, key.row(), |_, sum| sum);
            }
        }
    });
    Ok(())
}

fn check(found: usize, expected: usize) -> Result<(), String> {
    match found == expected && expected > 0 {
        true => Ok(()),
        false => Err(format!("attention has a tensor of {found} elements, not {expected}")),
    }
}

impl<T: Float> Heads<'_, T> {
    /// Elements from one position to the next.
    fn row(&self) -> usize {
        self.heads * self.head
    }

    fn offset(&self, batch: usize, head: usize) -> usize {
        batch * self.sequence * self.row() + head * self.head
    }

    /// One head, positions by elements.
    fn of(&self, batch: usize, head: usize) -> Matrix<T> {
        let data = self.values[self.offset(batch, head)..].as_ptr();
        Matrix { data, row: self.row() as isize, column: 1 }
    }
}

/// What the gradients of a head are computed from.
struct Rows<'a, T> {
    query: Matrix<T>,
    key: Matrix<T>,
    value: Matrix<T>,
    output: Matrix<T>,
    gradient: Matrix<T>,
    stats: &'a [f32],
}

impl Attention {
    fn new(frame: &Frame<'_>, threads: usize) -> Result<Attention, String> {
        let sizes = frame.integers::<6>("sizes")?;
        let [batch, heads, key_heads, queries, keys, head] =
            sizes.map(|size| usize::try_from(size).unwrap_or(0));
        if sizes.iter().any(|&size| size <= 0) || !heads.is_multiple_of(key_heads) {
            return Err(format!("attention cannot have the sizes {sizes:?}"));
        }
        let causal = frame.integer("causal")? == 1;
        if causal && queries != keys {
            return Err(format!("{queries} queries cannot attend to {keys} keys up to their own"));
        }
        let scale = frame.float("scale")?;
        Ok(Attention { batch, heads, key_heads, queries, keys, head, causal, scale, threads })
    }

    fn inputs<'a, T: Float>(&self, frame: &'a Frame<'_>) -> Result<[Heads<'a, T>; 3], String> {
        Ok([
            self.heads_of(frame, 0, self.heads, self.queries)?,
            self.heads_of(frame, 1, self.key_heads, self.keys)?,
            self.heads_of(frame, 2, self.key_heads, self.keys)?,
        ])
    }

    fn heads_of<'a, T: Float>(
        &self,
        frame: &'a Frame<'_>,
        index: usize,
        heads: usize,
        sequence: usize,
    ) -> Result<Heads<'a, T>, String> {
        let operand = frame.operand::<T>(index)?;
        check(operand.elements, self.batch * sequence * heads * self.head)?;
        // SAFETY: the call is running.
        let values = unsafe { operand.values() };
        Ok(Heads { values, heads, sequence, head: self.head })
    }

    /// Runs a function for each of these heads of each sequence.
    fn for_each(&self, heads: usize, run: impl Fn(usize, usize) + Sync) {
        let all = 0..self.batch * heads;
        let run = |i: usize| run(i / heads, i % heads);
        match self.threads {
            0 | 1 => all.for_each(run),
            _ => all.into_par_iter().for_each(run),
        }
    }

    /// The blocks of queries: the first, how many, and the number of keys that they attend to.
    fn blocks(&self) -> impl Iterator<Item = [usize; 3]> {
        let Attention { queries, keys, causal, .. } = *self;
        (0..queries).step_by(ROWS).map(move |first| {
            let rows = ROWS.min(queries - first);
            [first, rows, if causal { first + rows } else { keys }]
        })
    }

    /// The keys that a query attends to, of those of its block.
    fn limit(&self, query: usize, keys: usize) -> usize {
        if self.causal { query + 1 } else { keys }
    }

    /// # Safety
    /// All tensors are as large as the sizes, and nothing else uses the results.
    unsafe fn head_forward<T: Float>(
        &self,
        [query, key, value]: [Matrix<T>; 3],
        output: *mut T,
        stats: *mut f32,
    ) {
        let mut scores = vec![0.0_f32; ROWS * self.keys];
        let mut weights = vec![T::narrow(0.0); ROWS * self.keys];
        let mut sums = vec![0.0_f32; ROWS * self.head];
        let mut totals = [0.0_f32; ROWS];
        for [first, rows, keys] in self.blocks() {
            // SAFETY: these rows and keys are there, and the scores have room for them.
            unsafe { self.scores(query.from(first, 0), key, [rows, keys], &mut scores) };
            for row in 0..rows {
                let limit = self.limit(first + row, keys);
                let scores = &scores[row * keys..][..limit];
                let weights = &mut weights[row * keys..][..keys];
                let shift = self.scale * largest(scores);
                let total = exponentials(scores, self.scale, shift, &mut weights[..limit]);
                weights[limit..].fill(T::narrow(0.0));
                totals[row] = total;
                // SAFETY: there is a number per query.
                unsafe { *stats.add(first + row) = shift + total.ln() };
            }
            let weights = Matrix { data: weights.as_ptr(), row: keys as isize, column: 1 };
            let (sizes, result) = ([rows, self.head, keys], (sums.as_mut_ptr(), self.head));
            // SAFETY: the buffers have these sizes.
            unsafe { T::multiply_to(sizes, weights, value, result, Output::Overwrite, 1) };
            let stride = self.heads * self.head;
            let sums = &sums[..rows * self.head];
            // SAFETY: these rows of the output are there.
            unsafe {
                let output = output.add(first * stride);
                write(sums, self.head, output, stride, |row, sum| sum / totals[row]);
            }
        }
    }

    /// # Safety
    /// As of [`Attention::head_forward`].
    unsafe fn head_gradients<T: Float>(
        &self,
        inputs: Rows<'_, T>,
        of_query: *mut T,
        [of_key, of_value]: &mut [Vec<f32>; 2],
    ) {
        let Rows { query, key, value, output, gradient, stats } = inputs;
        let mut scores = vec![0.0_f32; ROWS * self.keys];
        let mut through = vec![0.0_f32; ROWS * self.keys];
        let mut weights = vec![T::narrow(0.0); ROWS * self.keys];
        let mut of_scores = vec![T::narrow(0.0); ROWS * self.keys];
        let mut sums = vec![0.0_f32; ROWS * self.head];
        for [first, rows, keys] in self.blocks() {
            let (query, gradient) = (query.from(first, 0), gradient.from(first, 0));
            // SAFETY: these rows and keys are there, and the buffers have room for them.
            unsafe {
                self.scores(query, key, [rows, keys], &mut scores);
                self.scores(gradient, value, [rows, keys], &mut through);
            }
            for row in 0..rows {
                let limit = self.limit(first + row, keys);
                let at = row * keys;
                // SAFETY: these rows are there.
                let delta = unsafe { self.dot(output.from(first + row, 0), gradient.from(row, 0)) };
                let (weights, of_scores) =
                    (&mut weights[at..][..keys], &mut of_scores[at..][..keys]);
                weights[limit..].fill(T::narrow(0.0));
                of_scores[limit..].fill(T::narrow(0.0));
                score_gradients(
                    [&scores[at..][..limit], &through[at..][..limit]],
                    [self.scale, stats[first + row], delta],
                    [&mut weights[..limit], &mut of_scores[..limit]],
                );
            }
            let matrix = |data: &[T]| Matrix { data: data.as_ptr(), row: keys as isize, column: 1 };
            let (weights, of_scores) = (matrix(&weights), matrix(&of_scores));
            let (by_key, add) = ([keys, self.head, rows], Output::Accumulate);
            let [of_key, of_value] = [&mut *of_key, &mut *of_value].map(|x| x.as_mut_ptr());
            let sums_place = (sums.as_mut_ptr(), self.head);
            // SAFETY: the buffers have these sizes.
            unsafe {
                let to = (of_value, self.head);
                T::multiply_to(by_key, weights.transposed(), gradient, to, add, 1);
                let to = (of_key, self.head);
                T::multiply_to(by_key, of_scores.transposed(), query, to, add, 1);
                let sizes = [rows, self.head, keys];
                T::multiply_to(sizes, of_scores, key, sums_place, Output::Overwrite, 1);
            }
            let stride = self.heads * self.head;
            // SAFETY: these rows of the gradient are there.
            unsafe {
                let of_query = of_query.add(first * stride);
                write(&sums[..rows * self.head], self.head, of_query, stride, |_, sum| sum);
            }
        }
    }

    /// The products of some rows with keys, not scaled.
    ///
    /// # Safety
    /// As many rows and keys are there.
    unsafe fn scores<T: Float>(
        &self,
        rows: Matrix<T>,
        keys: Matrix<T>,
        [count, limit]: [usize; 2],
        scores: &mut [f32],
    ) {
        let sizes = [count, limit, self.head];
        let result = (scores.as_mut_ptr(), limit);
        // SAFETY: the caller promises it.
        unsafe { T::multiply_to(sizes, rows, keys.transposed(), result, Output::Overwrite, 1) };
    }

    /// # Safety
    /// Both point to the elements of a head.
    unsafe fn dot<T: Float>(&self, a: Matrix<T>, b: Matrix<T>) -> f32 {
        // SAFETY: the caller promises it.
        let (a, b) = unsafe {
            let row = |x: Matrix<T>| std::slice::from_raw_parts(x.data, self.head);
            (row(a), row(b))
        };
        a.iter().zip(b).map(|(a, b)| a.widen() * b.widen()).sum()
    }
}

/// Writes rows of `width` elements to rows that are `stride` elements apart.
///
/// # Safety
/// They are there, and nothing else uses them.
unsafe fn write<T: Float>(
    sums: &[f32],
    width: usize,
    place: *mut T,
    stride: usize,
    result: impl Fn(usize, f32) -> f32,
) {
    for (row, sums) in sums.chunks_exact(width).enumerate() {
        // SAFETY: the caller promises it.
        let place = unsafe { std::slice::from_raw_parts_mut(place.add(row * stride), width) };
        for (place, &sum) in place.iter_mut().zip(sums) {
            *place = T::narrow(result(row, sum));
        }
    }
}
