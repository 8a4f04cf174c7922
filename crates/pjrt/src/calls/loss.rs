//! The fused cross-entropy loss with its gradients, from the hidden states before the LM head.
//!
//! A call has hidden states `[tokens, width]`, the head `[vocabulary, width]`, which may have more
//! rows than that, and labels `[tokens]` of `i32`; labels that are not a token are ignored. Its
//! results are the loss per token, the gradients of their sum with respect to hidden states and
//! head, and exponentials `[chunk, vocabulary]`, which are scratch space for the tokens of a chunk.
//!
//! Hidden states and head are of `f32` or `bf16`, as are the exponentials then. Everything else is in
//! `f32`.
//!
//! Logits are computed in blocks of columns, and become exponentials and a part of the first
//! gradient while they are in cache; the second waits until all sums are known. Exponentials are of
//! logits minus a shift, which is the largest logit of the first block and only changes when a
//! later one is much larger. They are not divided by their sums: matmul results are.

use super::exponential::{exponentials, largest};
use super::frame::Frame;
use super::matmul::{Float, Matrix, Output};
use crate::sys;
use half::bf16;
use rayon::prelude::*;
use std::ops::Range;

/// The custom call target of the loss.
pub const LOSS: &str = "fullshard.loss";

/// Columns of logits per block.
const COLUMNS: usize = 1024;

/// How far a logit may exceed the shift.
const SLACK: f32 = 30.0;

/// The tensors of one chunk of tokens.
struct Loss<'a, T> {
    width: usize,
    vocabulary: usize,
    hidden: &'a [T],
    head: &'a [T],
    labels: &'a [i32],
    losses: &'a mut [f32],
    grad_hidden: &'a mut [f32],
    grad_head: &'a mut [f32],
    exponentials: &'a mut [T],
    /// Logits of a block of columns.
    logits: Vec<f32>,
    /// How the gradient of the head is written.
    head_output: Output,
    threads: usize,
}

/// Running softmax state of a token.
#[derive(Clone)]
struct Token {
    /// Its label, if not ignored.
    label: Option<usize>,
    /// The logit of the label.
    label_logit: f32,
    shift: f32,
    /// The sum of exponentials.
    total: f32,
}

/// A token with its logits of a block, exponentials, and gradient.
type Row<'a, T> = (((&'a mut Token, &'a [f32]), &'a mut [T]), &'a mut [f32]);

/// Runs a call on `threads` threads.
pub(super) fn run(frame: &Frame<'_>, threads: usize) -> Result<(), String> {
    match frame.any_operand(0)?.dtype {
        sys::TYPE_BF16 => run_in::<bf16>(frame, threads),
        _ => run_in::<f32>(frame, threads),
    }
}

fn run_in<T: Float>(frame: &Frame<'_>, threads: usize) -> Result<(), String> {
    let (hidden, head) = (frame.operand::<T>(0)?, frame.operand::<T>(1)?);
    let labels = frame.operand::<i32>(2)?;
    let [losses, grad_hidden] = [frame.result::<f32>(0)?, frame.result(1)?];
    let (grad_head, exponentials) = (frame.result::<f32>(2)?, frame.result::<T>(3)?);
    let tokens = labels.elements.max(1);
    let width = hidden.elements / tokens;
    let vocabulary = grad_head.elements / width.max(1);
    let chunk = exponentials.elements / vocabulary.max(1);
    let sizes = [
        (hidden.elements, tokens * width),
        (head.elements.min(vocabulary * width), vocabulary * width),
        (losses.elements, tokens),
        (grad_hidden.elements, tokens * width),
        (grad_head.elements, vocabulary * width),
        (exponentials.elements, chunk * vocabulary),
    ];
    if labels.elements == 0 || sizes.iter().any(|&(found, needed)| needed == 0 || found != needed) {
        return Err("the tensor sizes of the loss do not match".into());
    }
    // SAFETY: the call is running, and the plugin allocates results separately.
    let (hidden, head, labels) = unsafe { (hidden.values(), head.values(), labels.values()) };
    // SAFETY: as above.
    let (losses, grad_hidden) = unsafe { (losses.values_mut(), grad_hidden.values_mut()) };
    // SAFETY: as above.
    let (grad_head, exponentials) = unsafe { (grad_head.values_mut(), exponentials.values_mut()) };
    let rows = chunk * width;
    let chunks = labels.chunks(chunk).zip(hidden.chunks(rows));
    let chunks = chunks.zip(losses.chunks_mut(chunk).zip(grad_hidden.chunks_mut(rows)));
    for (i, ((labels, hidden), (losses, grad_hidden))) in chunks.enumerate() {
        let exponentials = &mut exponentials[..labels.len() * vocabulary];
        let head_output = if i == 0 { Output::Overwrite } else { Output::Accumulate };
        let chunk = Loss {
            width,
            vocabulary,
            hidden,
            head,
            labels,
            losses,
            grad_hidden,
            grad_head,
            exponentials,
            logits: vec![0.0; labels.len() * COLUMNS.min(vocabulary)],
            head_output,
            threads,
        };
        chunk.compute();
    }
    Ok(())
}

impl<T: Float> Loss<'_, T> {
    fn compute(mut self) {
        let mut tokens: Vec<Token> =
            self.labels.iter().map(|&label| Token::new(label, self.vocabulary)).collect();
        self.grad_hidden.fill(0.0);
        for start in (0..self.vocabulary).step_by(COLUMNS) {
            let columns = start..self.vocabulary.min(start + COLUMNS);
            self.logits(&columns);
            self.update(&mut tokens, &columns);
            self.add_to_grad_hidden(&columns);
        }
        let scaled = self.finish(&tokens);
        self.head_gradient(&scaled, &tokens);
    }

    /// Computes a block of columns of logits.
    fn logits(&mut self, columns: &Range<usize>) {
        let width = self.width as isize;
        let head = &self.head[columns.start * self.width..];
        let lhs = Matrix { data: self.hidden.as_ptr(), row: width, column: 1 };
        let rhs = Matrix { data: head.as_ptr(), row: 1, column: width };
        let sizes = [self.labels.len(), columns.len(), self.width];
        let result = (self.logits.as_mut_ptr(), columns.len());
        // SAFETY: the sizes are those of the tensors, and the columns are inside.
        unsafe { T::multiply_to(sizes, lhs, rhs, result, Output::Overwrite, self.threads) };
    }

    /// Turns these columns into exponentials and sums them.
    fn update(&mut self, tokens: &mut [Token], columns: &Range<usize>) {
        let (vocabulary, width) = (self.vocabulary, self.width);
        let update = |(((token, logits), row), gradient): Row<'_, T>| {
            token.update(logits, row, columns, gradient);
        };
        if self.threads > 1 {
            let logits = self.logits.par_chunks_exact(columns.len());
            let rows = self.exponentials.par_chunks_exact_mut(vocabulary);
            let gradients = self.grad_hidden.par_chunks_exact_mut(width);
            tokens.par_iter_mut().zip(logits).zip(rows).zip(gradients).for_each(update);
        } else {
            let logits = self.logits.chunks_exact(columns.len());
            let rows = self.exponentials.chunks_exact_mut(vocabulary);
            let gradients = self.grad_hidden.chunks_exact_mut(width);
            tokens.iter_mut().zip(logits).zip(rows).zip(gradients).for_each(update);
        }
    }

    /// Adds the contribution of these columns to the gradient of hidden states, not yet divided.
    fn add_to_grad_hidden(&mut self, columns: &Range<usize>) {
        let (width, vocabulary) = (self.width, self.vocabulary as isize);
        let exponentials = &self.exponentials[columns.start..];
        let head = &self.head[columns.start * width..];
        let lhs = Matrix { data: exponentials.as_ptr(), row: vocabulary, column: 1 };
        let rhs = Matrix { data: head.as_ptr(), row: width as isize, column: 1 };
        let sizes = [self.labels.len(), width, columns.len()];
        let result = (self.grad_hidden.as_mut_ptr(), width);
        // SAFETY: the sizes are those of the tensors, and the columns are inside.
        unsafe { T::multiply_to(sizes, lhs, rhs, result, Output::Accumulate, self.threads) };
    }

    /// Writes losses and the gradient of hidden states. Returns hidden states divided by the sums.
    fn finish(&mut self, tokens: &[Token]) -> Vec<T> {
        let width = self.width;
        let mut scaled = self.hidden.to_vec();
        let rows = self.grad_hidden.chunks_exact_mut(width).zip(scaled.chunks_exact_mut(width));
        for ((token, loss), (gradient, scaled)) in tokens.iter().zip(&mut *self.losses).zip(rows) {
            let Some(label) = token.label else {
                *loss = 0.0;
                gradient.fill(0.0);
                scaled.fill(T::narrow(0.0));
                continue;
            };
            *loss = token.total.ln() + (token.shift - token.label_logit);
            scaled.iter_mut().for_each(|x| *x = T::narrow(x.widen() / token.total));
            let row = &self.head[label * width..][..width];
            let pairs = gradient.iter_mut().zip(row);
            pairs.for_each(|(x, head)| *x = *x / token.total - head.widen());
        }
        scaled
    }

    /// Writes the gradient of the head, or accumulates into it.
    fn head_gradient(&mut self, scaled: &[T], tokens: &[Token]) {
        let width = self.width;
        let lhs =
            Matrix { data: self.exponentials.as_ptr(), row: 1, column: self.vocabulary as isize };
        let rhs = Matrix { data: scaled.as_ptr(), row: width as isize, column: 1 };
        let sizes = [self.vocabulary, width, tokens.len()];
        let result = (self.grad_head.as_mut_ptr(), width);
        // SAFETY: the sizes are those of the tensors.
        unsafe { T::multiply_to(sizes, lhs, rhs, result, self.head_output, self.threads) };
        for (token, hidden) in tokens.iter().zip(self.hidden.chunks_exact(width)) {
            if let Some(label) = token.label {
                let row = &mut self.grad_head[label * width..][..width];
                row.iter_mut().zip(hidden).for_each(|(x, hidden)| *x -= hidden.widen());
            }
        }
    }
}

impl Token {
    fn new(label: i32, vocabulary: usize) -> Token {
        let label = usize::try_from(label).ok().filter(|&label| label < vocabulary);
        Token { label, label_logit: 0.0, shift: f32::NEG_INFINITY, total: 0.0 }
    }

    /// Turns a block of a row of logits into exponentials. If the shift changes, earlier
    /// exponentials and their gradient are rescaled.
    fn update<T: Float>(
        &mut self,
        logits: &[f32],
        row: &mut [T],
        columns: &Range<usize>,
        gradient: &mut [f32],
    ) {
        if let Some(label) = self.label.filter(|label| columns.contains(label)) {
            self.label_logit = logits[label - columns.start];
        }
        let largest = largest(logits);
        if largest > self.shift + SLACK {
            let factor = (self.shift - largest).exp();
            let earlier = row[..columns.start].iter_mut();
            earlier.for_each(|x| *x = T::narrow(x.widen() * factor));
            gradient.iter_mut().for_each(|x| *x *= factor);
            self.total *= factor;
            self.shift = largest;
        }
        self.total += exponentials(logits, 1.0, self.shift, &mut row[columns.clone()]);
    }
}
