//! The loss of predicting the next token, in forms that agree: [`reference()`] from logits,
//! [`chunked`] from what goes into the head, without ever having all logits in memory. The CPU has
//! the latter as a [`loss_custom_call`], too.
//!
//! Labels are `[batch, sequence]` and not shifted. Those that are no token of the vocabulary do not
//! count: [`IGNORED`] is the usual one, and any other is left out like it.

mod custom_call;

pub use custom_call::{LOSS, loss_custom_call};

use super::linear::{self, Linear};
use super::{by_token, dims, lowest, wide, widened, width};
use crate::scope::Scope;
use crate::task::Loss;
use fullshard_graph::{
    Comparison, DType, Error, Result, Tensor, concatenate, custom_vjp, einsum, full, iota, scan,
    select, zeros,
};

/// The label that says a token is not to be predicted.
pub const IGNORED: i32 = -100;

/// Vocabularies smaller than this are not worth chunks.
pub const CHUNKED_FROM: usize = 1024;

/// The bytes that the logits of a chunk may take, in `f32`.
const CHUNK_BYTES: usize = 512 << 20;

/// The same where memory is ample: each chunk adds to the full gradient of the head.
const LARGE_CHUNK_BYTES: usize = 2 << 30;

/// What a chunk's tokens and a padded vocabulary are whole multiples of: the width that the
/// matrix units of accelerators work on.
pub const TILE: usize = 128;

/// The loss of hidden states `[..., width]` under a linear layer of a name, without its bias, in
/// the form that suits.
pub fn apply(
    scope: &Scope<'_>,
    name: &str,
    head: &Linear<'_>,
    hidden: &Tensor,
    labels: &Tensor,
) -> Result<Loss> {
    let loss = scope.module_of_many(name, linear::CLASS, |scope| {
        let head = head.weight(scope, width(hidden)?)?;
        let [vocabulary, _] = dims("head", &head)?;
        let loss = if vocabulary < CHUNKED_FROM {
            reference(&hidden.linear(&head.t()?)?, labels)?
        } else {
            let options = scope.lowering();
            let size = chunk_size(labels.ty().elements(), vocabulary, options.large_chunks);
            if options.loss_custom_call && custom_call::computes_in(hidden.dtype()) {
                loss_custom_call(hidden, &head, labels, size)?
            } else {
                let tile = if options.padded_vocabulary { TILE } else { 1 };
                chunked(hidden, &head, labels, size, tile)?
            }
        };
        Ok(vec![loss.sum, loss.count])
    })?;
    sum_and_count(loss)
}

/// The loss of predicting the next token as its definition says, from logits `[..., vocabulary]`.
pub fn reference(logits: &Tensor, labels: &Tensor) -> Result<Loss> {
    let logits = by_token(&widened(logits)?)?;
    cross_entropy(&logits, &shifted(labels)?)
}

/// The summed cross-entropy of logits `[..., classes]`, each with a label of its own, `[...]` in
/// `i32`. Labels that are no class, such as [`IGNORED`], do not count.
pub fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Result<Loss> {
    let logits = by_token(&widened(logits)?)?;
    let [rows, vocabulary] = dims("logits", &logits)?;
    let labels = labels.reshape(&[rows])?;
    let counts = counted(&labels, vocabulary)?;
    let chances = logits.log_softmax(1)?;
    let places = labels.maximum(&zeros(labels.dtype(), &[])?)?.expand(1)?;
    let right = chances.take_along(&places, 1)?.reshape(labels.dims())?;
    let zero = zeros(right.dtype(), &[])?;
    let sum = (select(&counts, &right, &zero)?.sum_all()? * -1.0)?;
    Ok(Loss { sum, count: counts.convert(logits.dtype())?.sum_all()? })
}

/// The loss computed from `size` tokens at a time, with a vocabulary padded to a multiple of
/// `tile`. When a gradient is taken, each chunk's part of it is computed together with the loss, so
/// that logits are computed once and never kept.
pub fn chunked(
    hidden: &Tensor,
    head: &Tensor,
    labels: &Tensor,
    size: usize,
    tile: usize,
) -> Result<Loss> {
    let (hidden, labels, size) = (by_token(hidden)?, shifted(labels)?, size.max(1));
    let results = custom_vjp(
        &[&hidden, head, &labels],
        |inputs| Chunks::of(&inputs, size, tile)?.loss(),
        |inputs| Chunks::of(&inputs, size, tile)?.loss_and_gradients(),
        scaled_gradients,
    )?;
    sum_and_count(results)
}

fn sum_and_count(values: Vec<Tensor>) -> Result<Loss> {
    match <[Tensor; 2]>::try_from(values) {
        Ok([sum, count]) => Ok(Loss { sum, count }),
        Err(_) => Err(Error::new("loss", "a sum and a count were expected")),
    }
}

/// The tokens of a chunk: whole tiles of them with few enough logits, or all. Chunks are as few as
/// that allows and then as small, so that little of the last is padding.
pub fn chunk_size(tokens: usize, vocabulary: usize, large: bool) -> usize {
    let row = vocabulary.next_multiple_of(TILE) * DType::F32.size();
    let bytes = if large { LARGE_CHUNK_BYTES } else { CHUNK_BYTES };
    let fitting = (bytes / row / TILE * TILE).max(TILE);
    let chunks = tokens.div_ceil(fitting).max(1);
    tokens.div_ceil(chunks).next_multiple_of(TILE).min(tokens)
}

/// The number of labels that count, in `f32`, of labels `[..., sequence]` that are not shifted:
/// the tokens of the vocabulary, without the first of each sequence, which nothing predicts.
pub fn label_count(labels: &Tensor, vocabulary: usize) -> Result<Tensor> {
    let Some(&sequence) = labels.dims().last() else {
        return Err(Error::new("labels", format!("{} is no sequence", labels.ty())));
    };
    let predicted = labels.narrow(labels.rank() - 1, 1, sequence)?;
    counted(&predicted, vocabulary)?.convert(DType::F32)?.sum_all()
}

/// Labels as one row, each in the place of the token it is to be predicted from.
fn shifted(labels: &Tensor) -> Result<Tensor> {
    let [batch, sequence] = dims("labels", labels)?;
    let nothing = full(labels.dtype(), &[batch, 1], f64::from(IGNORED))?;
    let next = concatenate(&[&labels.narrow(1, 1, sequence)?, &nothing], 1)?;
    next.reshape(&[batch * sequence])
}

/// Which labels count: those that are tokens of the vocabulary.
pub fn counted(labels: &Tensor, vocabulary: usize) -> Result<Tensor> {
    let end = full(labels.dtype(), &[], vocabulary as f64)?;
    let below_end = labels.compare(Comparison::Less, &end)?;
    labels.compare(Comparison::GreaterEqual, &zeros(labels.dtype(), &[])?)?.and(&below_end)
}

/// Tokens in chunks, and a head padded to whole tiles.
struct Chunks {
    /// `[chunks, size, width]`.
    hidden: Tensor,
    /// `[padded vocabulary, width]`.
    head: Tensor,
    /// `[chunks, size]`.
    labels: Tensor,
    tokens: usize,
    vocabulary: usize,
}

/// What one chunk's loss and gradients are made of.
///
/// Exponentials are not divided by their sums: a product is divided instead, which is so much
/// smaller.
struct Chunk {
    sum: Tensor,
    count: Tensor,
    /// The exponential of each logit, less its row's shift, but zero at the label: `[size, padded
    /// vocabulary]`.
    others: Tensor,
    /// The exponential at the label, `[size, 1]`.
    right: Tensor,
    /// Each row's sum of exponentials, `[size, 1]`.
    total: Tensor,
    /// Where each row's label is, or any place if it does not count.
    places: Tensor,
    counts: Tensor,
}

impl Chunks {
    fn of(inputs: &[Tensor], size: usize, tile: usize) -> Result<Chunks> {
        let [hidden, head, labels] = inputs else {
            return Err(Error::new("loss", "hidden states, head and labels were expected"));
        };
        let [tokens, width] = dims("hidden", hidden)?;
        let [vocabulary, _] = dims("head", head)?;
        let chunks = tokens.div_ceil(size);
        let missing = (chunks * size - tokens) as i64;
        let columns = (vocabulary.next_multiple_of(tile.max(1)) - vocabulary) as i64;
        let hidden = hidden.pad(0.0, &[0, 0], &[missing, 0], &[0, 0])?;
        let labels = labels.pad(f64::from(IGNORED), &[0], &[missing], &[0])?;
        Ok(Chunks {
            hidden: hidden.reshape(&[chunks, size, width])?,
            head: head.pad(0.0, &[0, 0], &[columns, 0], &[0, 0])?,
            labels: labels.reshape(&[chunks, size])?,
            tokens,
            vocabulary,
        })
    }

    /// The sum and the count.
    fn loss(&self) -> Result<Vec<Tensor>> {
        let zero = self.zero(&[])?;
        let results =
            scan(&[&zero, &zero], &[&self.hidden, &self.labels]).run(|sums, slices| {
                let chunk = self.chunk(&slices[0], &slices[1])?;
                Ok((vec![(&sums[0] + chunk.sum)?, (&sums[1] + chunk.count)?], vec![]))
            })?;
        Ok(results.carries)
    }

    /// The sum and the count, and the gradients of the sum with regard to hidden states and head.
    fn loss_and_gradients(&self) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
        let zero = self.zero(&[])?;
        let carries = [&zero, &zero, &self.zero(self.head.dims())?];
        let results = scan(&carries, &[&self.hidden, &self.labels]).run(|sums, slices| {
            let hidden = &slices[0];
            let chunk = self.chunk(hidden, &slices[1])?;
            let (slope, scale) = (chunk.slope(hidden.dtype())?, chunk.slope_scale()?);
            let scaled = |x: &Tensor| (widened(x)? * &scale)?.convert(hidden.dtype());
            let of_hidden = scaled(&einsum("tv,vd->td", &slope, &self.head)?)?;
            let of_head = widened(&einsum("tv,td->vd", &slope, &scaled(hidden)?)?)?;
            let of_head = (&sums[2] + of_head)?;
            let sums = vec![(&sums[0] + chunk.sum)?, (&sums[1] + chunk.count)?, of_head];
            Ok((sums, vec![of_hidden]))
        })?;
        let mut carries = results.carries;
        let of_head = carries.split_off(2)[0].narrow(0, 0, self.vocabulary)?;
        let width = self.head.dims()[1];
        let of_hidden = results.stacked[0].reshape(&[self.labels.ty().elements(), width])?;
        Ok((carries, vec![of_hidden.narrow(0, 0, self.tokens)?, of_head]))
    }

    fn chunk(&self, hidden: &Tensor, labels: &Tensor) -> Result<Chunk> {
        let logits = widened(&einsum("td,vd->tv", hidden, &self.head)?)?;
        let zero = self.zero(&[])?;
        let token = iota(DType::I32, &[1, logits.dims()[1]], 1)?;
        let logits = self.without_padding(logits, &token)?;
        let shift = (logits.max(&[1])?.expand(1)? + headroom(self.vocabulary))?;
        let counts = counted(labels, self.vocabulary)?.expand(1)?;
        let places = select(&counts, &labels.expand(1)?, &zeros(DType::I32, &[])?)?;
        let right = (logits.take_along(&places, 1)? - &shift)?;
        let others = (&logits - &shift)?.exp()?;
        let others = select(&token.compare(Comparison::Equal, &places)?, &zero, &others)?;
        let total = (others.sum(&[1])?.expand(1)? + right.exp()?)?;
        let chance = (&right - total.log()?)?;
        let sum = (select(&counts, &chance, &zero)?.sum_all()? * -1.0)?;
        let count = counts.convert(logits.dtype())?.sum_all()?;
        Ok(Chunk { sum, count, others, right: right.exp()?, total, places, counts })
    }

    /// Logits that are as low as can be where there is no token.
    fn without_padding(&self, logits: Tensor, token: &Tensor) -> Result<Tensor> {
        if logits.dims()[1] == self.vocabulary {
            return Ok(logits);
        }
        let end = full(DType::I32, &[], self.vocabulary as f64)?;
        let lowest = full(logits.dtype(), &[], lowest(logits.dtype()))?;
        select(&token.compare(Comparison::Less, &end)?, &logits, &lowest)
    }

    fn zero(&self, dims: &[usize]) -> Result<Tensor> {
        zeros(wide(self.hidden.dtype()), dims)
    }
}

/// What exponentials are shifted down by so that no row's sum is beyond the smallest float type.
fn headroom(vocabulary: usize) -> f64 {
    (vocabulary as f64 / f64::from(1 << 15)).max(1.0).ln()
}

impl Chunk {
    /// The gradient of the sum with regard to the logits, but for [`Chunk::slope_scale`]:
    /// exponentials, less their sum for what is right.
    fn slope(&self, dtype: DType) -> Result<Tensor> {
        let right = (&self.right - &self.total)?.convert(dtype)?;
        self.others.convert(dtype)?.add_along(&self.places, 1, &right)
    }

    /// What the rows of the slope are to be multiplied by, `[size, 1]`.
    fn slope_scale(&self) -> Result<Tensor> {
        let dtype = self.total.dtype();
        select(&self.counts, &(1.0 / &self.total)?, &zeros(dtype, &[])?)
    }
}

/// The gradients of the sum times that of the result, which need no more than this.
fn scaled_gradients(gradients: Vec<Tensor>, cotangents: Vec<Tensor>) -> Result<Vec<Tensor>> {
    let [of_hidden, of_head] = &gradients[..] else { return Ok(gradients) };
    let scaled =
        |gradient: &Tensor| (widened(gradient)? * &cotangents[0])?.convert(of_hidden.dtype());
    let labels = zeros(DType::I32, &[of_hidden.dims()[0]])?;
    Ok(vec![scaled(of_hidden)?, scaled(of_head)?, labels])
}
