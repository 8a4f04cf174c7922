//! The loss of predicting tokens, with its gradients, from what goes into the head.
//!
//! A call has hidden states `[tokens, width]`, the head `[vocabulary, width]`, which may have more
//! rows than that, and labels `[tokens]` of `i32`, of which those that are no token do not count.
//! Its results are each token's loss, the gradients of their sum with regard to hidden states and
//! head, and exponentials `[at once, vocabulary]`, which nobody else has a use for, of as many
//! tokens as are worked on at once.
//!
//! Logits are computed some columns at a time, and become exponentials and a part of the first
//! gradient while they are in the caches; the second waits until all sums are known. Exponentials
//! are of logits less a shift, which is the largest logit of the first columns and is only moved
//! when a later one is much larger. They are not divided by their sums: products are.

use super::exponential::{exponentials, largest};
use super::frame::Frame;
use super::product::{Before, Matrix, multiply};
use rayon::prelude::*;
use std::ops::Range;

/// The name that programs call the loss by.
pub const LOSS: &str = "fullshard.loss";

/// The columns of logits that are computed at once.
const COLUMNS: usize = 1024;

/// How far a logit may be above the shift.
const SLACK: f32 = 30.0;

/// The tensors of a call, or of those of its tokens that are worked on at once.
struct Loss<'a> {
    width: usize,
    vocabulary: usize,
    hidden: &'a [f32],
    head: &'a [f32],
    labels: &'a [i32],
    losses: &'a mut [f32],
    of_hidden: &'a mut [f32],
    of_head: &'a mut [f32],
    exponentials: &'a mut [f32],
    /// What is in the gradient of the head already.
    before: Before,
    threads: usize,
}

/// What is known of a token's logits.
#[derive(Clone)]
struct Token {
    /// Its label, if that counts.
    label: Option<usize>,
    /// The logit of the label.
    right: f32,
    shift: f32,
    /// The sum of exponentials.
    total: f32,
}

/// Carries out a call on so many threads.
pub(super) fn run(frame: &Frame<'_>, threads: usize) -> Result<(), String> {
    let (hidden, head, labels) = (frame.operand(0)?, frame.operand(1)?, frame.integer_operand(2)?);
    let [losses, of_hidden] = [frame.result(0)?, frame.result(1)?];
    let [of_head, exponentials] = [frame.result(2)?, frame.result(3)?];
    let tokens = labels.len().max(1);
    let width = hidden.elements / tokens;
    let vocabulary = of_head.elements / width.max(1);
    let at_once = exponentials.elements / vocabulary.max(1);
    let sizes = [
        (hidden.elements, tokens * width),
        (head.elements.min(vocabulary * width), vocabulary * width),
        (losses.elements, tokens),
        (of_hidden.elements, tokens * width),
        (of_head.elements, vocabulary * width),
        (exponentials.elements, at_once * vocabulary),
    ];
    if labels.is_empty() || sizes.iter().any(|&(found, needed)| needed == 0 || found != needed) {
        return Err("the sizes of the loss do not fit together".into());
    }
    // SAFETY: the call is under way, and the plugin gives results memory of their own.
    let (hidden, head, losses, of_hidden, of_head, exponentials) = unsafe {
        let results = (losses.numbers_mut(), of_hidden.numbers_mut(), of_head.numbers_mut());
        let (losses, of_hidden, of_head) = results;
        (hidden.numbers(), head.numbers(), losses, of_hidden, of_head, exponentials.numbers_mut())
    };
    let rows = at_once * width;
    let parts = labels.chunks(at_once).zip(hidden.chunks(rows));
    let parts = parts.zip(losses.chunks_mut(at_once).zip(of_hidden.chunks_mut(rows)));
    for (part, ((labels, hidden), (losses, of_hidden))) in parts.enumerate() {
        let exponentials = &mut exponentials[..labels.len() * vocabulary];
        let before = if part == 0 { Before::Nothing } else { Before::Sum };
        let part = Loss {
            width,
            vocabulary,
            hidden,
            head,
            labels,
            losses,
            of_hidden,
            of_head,
            exponentials,
            before,
            threads,
        };
        part.compute();
    }
    Ok(())
}

impl Loss<'_> {
    fn compute(mut self) {
        let mut tokens: Vec<Token> =
            self.labels.iter().map(|&label| Token::new(label, self.vocabulary)).collect();
        self.of_hidden.fill(0.0);
        for start in (0..self.vocabulary).step_by(COLUMNS) {
            let columns = start..self.vocabulary.min(start + COLUMNS);
            self.logits(&columns);
            self.take_in(&mut tokens, &columns);
            self.add_to_hidden(&columns);
        }
        let scaled = self.finish(&tokens);
        self.head_gradient(&scaled, &tokens);
    }

    /// Computes some columns of logits.
    fn logits(&mut self, columns: &Range<usize>) {
        let (width, vocabulary) = (self.width as isize, self.vocabulary);
        let head = &self.head[columns.start * self.width..];
        let lhs = Matrix { data: self.hidden.as_ptr(), row: width, column: 1 };
        let rhs = Matrix { data: head.as_ptr(), row: 1, column: width };
        let sizes = [self.labels.len(), columns.len(), self.width];
        let result = (self.exponentials[columns.start..].as_mut_ptr(), vocabulary);
        // SAFETY: the sizes are those of the tensors, and the columns are inside.
        unsafe { multiply(sizes, lhs, rhs, result, Before::Nothing, self.threads) };
    }

    /// Turns these columns into exponentials and adds them up.
    fn take_in(&mut self, tokens: &mut [Token], columns: &Range<usize>) {
        let (vocabulary, width) = (self.vocabulary, self.width);
        let take_in = |((token, row), gradient): ((&mut Token, &mut [f32]), &mut [f32])| {
            token.take_in(row, columns, gradient);
        };
        if self.threads > 1 {
            let rows = self.exponentials.par_chunks_exact_mut(vocabulary);
            let gradients = self.of_hidden.par_chunks_exact_mut(width);
            tokens.par_iter_mut().zip(rows).zip(gradients).for_each(take_in);
        } else {
            let rows = self.exponentials.chunks_exact_mut(vocabulary);
            let gradients = self.of_hidden.chunks_exact_mut(width);
            tokens.iter_mut().zip(rows).zip(gradients).for_each(take_in);
        }
    }

    /// Adds these columns' part of the gradient of hidden states, not yet divided.
    fn add_to_hidden(&mut self, columns: &Range<usize>) {
        let (width, vocabulary) = (self.width, self.vocabulary as isize);
        let exponentials = &self.exponentials[columns.start..];
        let head = &self.head[columns.start * width..];
        let lhs = Matrix { data: exponentials.as_ptr(), row: vocabulary, column: 1 };
        let rhs = Matrix { data: head.as_ptr(), row: width as isize, column: 1 };
        let sizes = [self.labels.len(), width, columns.len()];
        let result = (self.of_hidden.as_mut_ptr(), width);
        // SAFETY: the sizes are those of the tensors, and the columns are inside.
        unsafe { multiply(sizes, lhs, rhs, result, Before::Sum, self.threads) };
    }

    /// Writes losses and the gradient of hidden states. Gives hidden states divided by the sums.
    fn finish(&mut self, tokens: &[Token]) -> Vec<f32> {
        let width = self.width;
        let mut scaled = self.hidden.to_vec();
        let rows = self.of_hidden.chunks_exact_mut(width).zip(scaled.chunks_exact_mut(width));
        for ((token, loss), (gradient, scaled)) in tokens.iter().zip(&mut *self.losses).zip(rows) {
            let Some(label) = token.label else {
                *loss = 0.0;
                gradient.fill(0.0);
                scaled.fill(0.0);
                continue;
            };
            *loss = token.total.ln() + (token.shift - token.right);
            scaled.iter_mut().for_each(|x| *x /= token.total);
            let right = &self.head[label * width..][..width];
            gradient.iter_mut().zip(right).for_each(|(x, right)| *x = *x / token.total - right);
        }
        scaled
    }

    /// Writes the gradient of the head, or adds to it.
    fn head_gradient(&mut self, scaled: &[f32], tokens: &[Token]) {
        let width = self.width;
        let lhs =
            Matrix { data: self.exponentials.as_ptr(), row: 1, column: self.vocabulary as isize };
        let rhs = Matrix { data: scaled.as_ptr(), row: width as isize, column: 1 };
        let sizes = [self.vocabulary, width, tokens.len()];
        let result = (self.of_head.as_mut_ptr(), width);
        // SAFETY: the sizes are those of the tensors.
        unsafe { multiply(sizes, lhs, rhs, result, self.before, self.threads) };
        for (token, hidden) in tokens.iter().zip(self.hidden.chunks_exact(width)) {
            if let Some(label) = token.label {
                let row = &mut self.of_head[label * width..][..width];
                row.iter_mut().zip(hidden).for_each(|(x, hidden)| *x -= hidden);
            }
        }
    }
}

impl Token {
    fn new(label: i32, vocabulary: usize) -> Token {
        let label = usize::try_from(label).ok().filter(|&label| label < vocabulary);
        Token { label, right: 0.0, shift: f32::NEG_INFINITY, total: 0.0 }
    }

    /// Turns some more of a row of logits into exponentials. If they are shifted otherwise from
    /// here on, so is what came before, and the gradient that was made of it.
    fn take_in(&mut self, row: &mut [f32], columns: &Range<usize>, gradient: &mut [f32]) {
        if let Some(label) = self.label.filter(|label| columns.contains(label)) {
            self.right = row[label];
        }
        let largest = largest(&row[columns.clone()]);
        if largest > self.shift + SLACK {
            let factor = (self.shift - largest).exp();
            let before = row[..columns.start].iter_mut().chain(gradient);
            before.for_each(|x| *x *= factor);
            self.total *= factor;
            self.shift = largest;
        }
        self.total += exponentials(&mut row[columns.clone()], self.shift);
    }
}
