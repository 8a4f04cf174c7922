//! The cross-entropy loss of next-token prediction, in equivalent forms: [`reference()`] from
//! logits, [`chunked`] from the inputs of the head, without materializing all logits. On the CPU
//! the latter is also available as a [`loss_custom_call`].
//!
//! Labels are `[batch, sequence]` and not shifted. Those outside the vocabulary are ignored:
//! [`IGNORED`] is the usual one, and all others are treated like it.

mod custom_call;

pub use custom_call::{LOSS, loss_custom_call};

use super::dim_names::VOCAB;
use super::linear::{self, Linear};
use super::{dims, flatten_tokens, min_finite, upcast, upcast_dtype, width};
use crate::scope::Scope;
use crate::task::Loss;
use crate::tensor_parallel::TensorParallel;
use fullshard_graph::{
    Comparison, DType, Error, Result, Tensor, concatenate, custom_vjp, einsum, full, iota, scan,
    select, zeros,
};

/// The label of tokens that are not predicted (PyTorch's `ignore_index`).
pub const IGNORED: i32 = -100;

/// Smaller vocabularies are not computed in chunks.
pub const CHUNKED_FROM: usize = 1024;

/// The maximum size in bytes of the logits of a chunk, in `f32`, unless lowering options state
/// another.
pub const CHUNK_BYTES: usize = 512 << 20;

/// Chunk sizes and padded vocabularies are multiples of this: the tile size of the matrix units of
/// accelerators.
pub const TILE: usize = 128;

/// The loss of hidden states `[..., width]` with a linear head with a name, without bias, in the
/// form for the platform.
pub fn apply(
    scope: &Scope<'_>,
    name: &str,
    head: &Linear<'_>,
    hidden: &Tensor,
    labels: &Tensor,
) -> Result<Loss> {
    let loss = scope.module_outputs(name, linear::CLASS, |scope| {
        let vocabulary = head.output();
        let head = scope.stored(&head.weight_parameter(width(hidden)?))?;
        let tensor = scope.tensor_parallel().filter(|tensor| tensor.slices(&VOCAB));
        let options = scope.lowering();
        let rows = head.dims()[0];
        let labels = &predicted(scope, labels)?;
        let shards = scope.annotations().map_or(1, |annotations| annotations.shards(&VOCAB));
        let size = chunk_size(labels.ty().elements(), rows / shards, options.chunk_bytes);
        let tile = if options.padded_vocabulary { TILE } else { 1 };
        let loss = if let Some(tensor) = tensor {
            let hidden = flatten_tokens(&tensor.enter(hidden)?)?;
            let vocabulary = Vocabulary { tensor: Some(tensor), ..Vocabulary::new(vocabulary) };
            chunked_over(vocabulary, &hidden, &head, labels, [size, tile])?
        } else if scope.annotations().is_some() {
            let hidden = scope.constrain_exactly(&flatten_tokens(hidden)?, &[None; 2])?;
            let vocabulary = Vocabulary { scope: Some(scope), ..Vocabulary::new(vocabulary) };
            chunked_over(vocabulary, &hidden, &head, labels, [size, 1])?
        } else if vocabulary < CHUNKED_FROM {
            cross_entropy(&hidden.linear(&head.t()?)?, labels)?
        } else if options.loss_custom_call && custom_call::supports(hidden.dtype()) {
            custom_call::apply(&flatten_tokens(hidden)?, &head, labels, size)?
        } else {
            let hidden = flatten_tokens(hidden)?;
            chunked_over(Vocabulary::new(rows), &hidden, &head, labels, [size, tile])?
        };
        Ok(vec![loss.sum, loss.count])
    })?;
    sum_and_count(loss)
}

/// The next-token loss by its definition, from logits `[..., vocabulary]`.
pub fn reference(logits: &Tensor, labels: &Tensor) -> Result<Loss> {
    let logits = flatten_tokens(&upcast(logits)?)?;
    cross_entropy(&logits, &shifted(labels)?)
}

/// The summed cross-entropy of logits `[..., classes]` with labels `[...]` in `i32`. Labels that
/// are not a class, such as [`IGNORED`], are ignored.
pub fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Result<Loss> {
    let logits = flatten_tokens(&upcast(logits)?)?;
    let [rows, vocabulary] = dims("logits", &logits)?;
    let labels = labels.reshape(&[rows])?;
    let counts = label_mask(&labels, vocabulary)?;
    let log_probs = logits.log_softmax(1)?;
    let indices = labels.maximum(&zeros(labels.dtype(), &[])?)?.expand(1)?;
    let target = log_probs.take_along(&indices, 1)?.reshape(labels.dims())?;
    let zero = zeros(target.dtype(), &[])?;
    let sum = (select(&counts, &target, &zero)?.sum_all()? * -1.0)?;
    Ok(Loss { sum, count: counts.convert(logits.dtype())?.sum_all()? })
}

/// The loss in chunks of `size` tokens, with a vocabulary padded to a multiple of `tile`. With a
/// gradient, that of each chunk is computed together with its loss, so that logits are computed
/// once and never saved.
pub fn chunked(
    hidden: &Tensor,
    head: &Tensor,
    labels: &Tensor,
    size: usize,
    tile: usize,
) -> Result<Loss> {
    let vocabulary = Vocabulary::new(head.dims()[0]);
    chunked_over(vocabulary, &flatten_tokens(hidden)?, head, &shifted(labels)?, [size, tile])
}

/// The loss in chunks, of shifted and flat labels. If devices have slices of the head, logits are
/// not gathered: devices share the largest logit of each token, the sum of exponentials and the
/// logit of the label.
fn chunked_over(
    vocabulary: Vocabulary<'_>,
    hidden: &Tensor,
    head: &Tensor,
    labels: &Tensor,
    [size, tile]: [usize; 2],
) -> Result<Loss> {
    let size = size.max(1);
    let chunks = |inputs: &[Tensor]| Chunks::of(inputs, size, tile, vocabulary);
    let results = custom_vjp(
        &[hidden, head, labels],
        |inputs| chunks(&inputs)?.loss(),
        |inputs| chunks(&inputs)?.loss_and_gradients(),
        scaled_gradients,
    )?;
    sum_and_count(results)
}

fn sum_and_count(values: Vec<Tensor>) -> Result<Loss> {
    match <[Tensor; 2]>::try_from(values) {
        Ok([sum, count]) => Ok(Loss { sum, count }),
        Err(_) => Err(Error::new("loss", "expected a sum and a count")),
    }
}

/// The number of tokens per chunk: a multiple of the tile size with few enough logits, or all
/// tokens. Chunks are as few as possible and then as small as possible, to minimize padding of the
/// last.
pub fn chunk_size(tokens: usize, vocabulary: usize, bytes: Option<usize>) -> usize {
    let row = vocabulary.next_multiple_of(TILE) * DType::F32.size();
    let fitting = (bytes.unwrap_or(CHUNK_BYTES) / row / TILE * TILE).max(TILE);
    let chunks = tokens.div_ceil(fitting).max(1);
    tokens.div_ceil(chunks).next_multiple_of(TILE).min(tokens)
}

/// The number of labels that count, in `f32`, of unshifted labels `[..., sequence]`: those in the
/// vocabulary, without the first of each sequence, which is not predicted.
pub fn label_count(labels: &Tensor, vocabulary: usize) -> Result<Tensor> {
    let Some(&sequence) = labels.dims().last() else {
        return Err(Error::new("labels", format!("{} is not a sequence", labels.ty())));
    };
    let predicted = labels.narrow(labels.rank() - 1, 1, sequence)?;
    label_mask(&predicted, vocabulary)?.convert(DType::F32)?.sum_all()
}

/// Flattened labels, each at the index of the token that predicts it: of this device's tokens.
fn predicted(scope: &Scope<'_>, labels: &Tensor) -> Result<Tensor> {
    let next = next_labels(labels)?;
    let next = match scope.context() {
        Some(context) => context.own_tokens(&next, 1)?,
        None => next,
    };
    next.reshape(&[next.ty().elements()])
}

/// Flattened labels, each at the index of the token that predicts it.
fn shifted(labels: &Tensor) -> Result<Tensor> {
    let next = next_labels(labels)?;
    next.reshape(&[next.ty().elements()])
}

/// Labels `[batch, sequence]`, each at the index of the token that predicts it.
fn next_labels(labels: &Tensor) -> Result<Tensor> {
    let [batch, sequence] = dims("labels", labels)?;
    let ignored = full(labels.dtype(), &[batch, 1], f64::from(IGNORED))?;
    concatenate(&[&labels.narrow(1, 1, sequence)?, &ignored], 1)
}

/// Which labels count: those in the vocabulary.
pub fn label_mask(labels: &Tensor, vocabulary: usize) -> Result<Tensor> {
    let end = full(labels.dtype(), &[], vocabulary as f64)?;
    let below_end = labels.compare(Comparison::Less, &end)?;
    labels.compare(Comparison::GreaterEqual, &zeros(labels.dtype(), &[])?)?.and(&below_end)
}

/// The vocabulary, and the devices that it is sliced over or sharded by the compiler.
#[derive(Clone, Copy)]
struct Vocabulary<'a> {
    size: usize,
    tensor: Option<&'a TensorParallel>,
    /// Where logits are annotated.
    scope: Option<&'a Scope<'a>>,
}

impl Vocabulary<'_> {
    fn new(size: usize) -> Self {
        Vocabulary { size, tensor: None, scope: None }
    }
}

/// Tokens in chunks, and a head padded to a multiple of the tile size.
struct Chunks<'a> {
    /// `[chunks, size, width]`.
    hidden: Tensor,
    /// `[padded rows, width]`.
    head: Tensor,
    /// `[chunks, size]`.
    labels: Tensor,
    tokens: usize,
    /// The rows of the head without padding.
    rows: usize,
    vocabulary: Vocabulary<'a>,
}

/// The loss and the intermediate values of one chunk.
///
/// Exponentials are not divided by their sums: the result of a matmul is divided instead, which is
/// much smaller.
struct Chunk {
    sum: Tensor,
    count: Tensor,
    /// The exponential of each logit minus its row's shift, but zero at the label: `[size, padded
    /// rows]`.
    others: Tensor,
    /// The exponential at the label, `[size, 1]`.
    target: Tensor,
    /// Each row's sum of exponentials, `[size, 1]`.
    total: Tensor,
    /// The index of each row's label, or any index if it does not count or is of another device.
    indices: Tensor,
    /// Whether the label is of this device, if the vocabulary is sliced.
    inside: Option<Tensor>,
    counts: Tensor,
}

impl Chunks<'_> {
    fn of<'a>(
        inputs: &[Tensor],
        size: usize,
        tile: usize,
        vocabulary: Vocabulary<'a>,
    ) -> Result<Chunks<'a>> {
        let [hidden, head, labels] = inputs else {
            return Err(Error::new("loss", "expected hidden states, head and labels"));
        };
        let [tokens, width] = dims("hidden", hidden)?;
        let [rows, _] = dims("head", head)?;
        let chunks = tokens.div_ceil(size);
        let padding = (chunks * size - tokens) as i64;
        let columns = (rows.next_multiple_of(tile.max(1)) - rows) as i64;
        let hidden = hidden.pad(0.0, &[0, 0], &[padding, 0], &[0, 0])?;
        let labels = labels.pad(f64::from(IGNORED), &[0], &[padding], &[0])?;
        Ok(Chunks {
            hidden: hidden.reshape(&[chunks, size, width])?,
            head: head.pad(0.0, &[0, 0], &[columns, 0], &[0, 0])?,
            labels: labels.reshape(&[chunks, size])?,
            tokens,
            rows,
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

    /// The sum and the count, and the gradients of the sum with respect to hidden states and head.
    fn loss_and_gradients(&self) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
        let zero = self.zero(&[])?;
        let carries = [&zero, &zero, &self.zero(self.head.dims())?];
        let results = scan(&carries, &[&self.hidden, &self.labels]).run(|sums, slices| {
            let hidden = &slices[0];
            let chunk = self.chunk(hidden, &slices[1])?;
            let (grad, scale) = (chunk.logits_grad(hidden.dtype())?, chunk.logits_grad_scale()?);
            let scaled = |x: &Tensor| (upcast(x)? * &scale)?.convert(hidden.dtype());
            let hidden_grad = scaled(&einsum("tv,vd->td", &grad, &self.head)?)?;
            let head_grad = upcast(&einsum("tv,td->vd", &grad, &scaled(hidden)?)?)?;
            let head_grad = (&sums[2] + head_grad)?;
            let sums = vec![(&sums[0] + chunk.sum)?, (&sums[1] + chunk.count)?, head_grad];
            Ok((sums, vec![hidden_grad]))
        })?;
        let mut carries = results.carries;
        let head_grad = carries.split_off(2)[0].narrow(0, 0, self.rows)?;
        let width = self.head.dims()[1];
        let hidden_grad = results.stacked[0].reshape(&[self.labels.ty().elements(), width])?;
        Ok((carries, vec![hidden_grad.narrow(0, 0, self.tokens)?, head_grad]))
    }

    fn chunk(&self, hidden: &Tensor, labels: &Tensor) -> Result<Chunk> {
        let logits = einsum("td,vd->tv", hidden, &self.head)?;
        let logits = match self.vocabulary.scope {
            Some(scope) => upcast(&scope.constrain_last(&logits, VOCAB)?)?,
            None => upcast(&logits)?,
        };
        let zero = self.zero(&[])?;
        let column = iota(DType::I32, &[1, logits.dims()[1]], 1)?;
        let logits = self.without_padding(logits, &column)?;
        let Vocabulary { size, tensor, .. } = self.vocabulary;
        let max = logits.max(&[1])?.expand(1)?;
        let shift = (tensor.map_or(Ok(max.clone()), |it| it.max(&max))? + headroom(size))?;
        let counts = label_mask(labels, size)?.expand(1)?;
        let label = select(&counts, &labels.expand(1)?, &zeros(DType::I32, &[])?)?;
        let (indices, inside) = match tensor {
            Some(tensor) => {
                let (indices, inside) = tensor.local_indices(&label, self.rows)?;
                (indices, Some(inside))
            }
            None => (label, None),
        };
        let mut target = (logits.take_along(&indices, 1)? - &shift)?;
        let mut is_label = column.compare(Comparison::Equal, &indices)?;
        if let Some(inside) = &inside {
            target = select(inside, &target, &zero)?;
            is_label = is_label.and(inside)?;
        }
        let others = select(&is_label, &zero, &(&logits - &shift)?.exp()?)?;
        let mut sum_of_others = others.sum(&[1])?.expand(1)?;
        if let Some(tensor) = tensor {
            [target, sum_of_others] = tensor.sum_columns([&target, &sum_of_others])?;
        }
        let total = (sum_of_others + target.exp()?)?;
        let log_prob = (&target - total.log()?)?;
        let sum = (select(&counts, &log_prob, &zero)?.sum_all()? * -1.0)?;
        let count = counts.convert(logits.dtype())?.sum_all()?;
        Ok(Chunk { sum, count, others, target: target.exp()?, total, indices, inside, counts })
    }

    /// Logits with the padding of the vocabulary set to the lowest finite number.
    fn without_padding(&self, logits: Tensor, column: &Tensor) -> Result<Tensor> {
        let Vocabulary { size, tensor, .. } = self.vocabulary;
        let sliced = tensor.filter(|tensor| tensor.group().size() * self.rows != size);
        let rows = self.rows.min(size);
        if logits.dims()[1] == rows && sliced.is_none() {
            return Ok(logits);
        }
        let is_below = |column: &Tensor, end: usize| {
            column.compare(Comparison::Less, &full(DType::I32, &[], end as f64)?)
        };
        let mut counts = is_below(column, rows)?;
        if let Some(tensor) = sliced {
            counts = counts.and(&is_below(&(column + tensor.start(self.rows)?)?, size)?)?;
        }
        let min_finite = full(logits.dtype(), &[], min_finite(logits.dtype()))?;
        select(&counts, &logits, &min_finite)
    }

    fn zero(&self, dims: &[usize]) -> Result<Tensor> {
        zeros(upcast_dtype(self.hidden.dtype()), dims)
    }
}

/// The shift of exponentials that keeps the sum of a row in the range of the smallest float type.
fn headroom(vocabulary: usize) -> f64 {
    (vocabulary as f64 / f64::from(1 << 15)).max(1.0).ln()
}

impl Chunk {
    /// The gradient of the sum with respect to the logits, without [`Chunk::logits_grad_scale`]:
    /// exponentials, minus their sum at the label.
    fn logits_grad(&self, dtype: DType) -> Result<Tensor> {
        let mut target = (&self.target - &self.total)?.convert(dtype)?;
        if let Some(inside) = &self.inside {
            target = select(inside, &target, &zeros(dtype, &[])?)?;
        }
        self.others.convert(dtype)?.add_along(&self.indices, 1, &target)
    }

    /// The scale of each row of [`Chunk::logits_grad`], `[size, 1]`.
    fn logits_grad_scale(&self) -> Result<Tensor> {
        let dtype = self.total.dtype();
        select(&self.counts, &(1.0 / &self.total)?, &zeros(dtype, &[])?)
    }
}

/// The gradients of the sum times the cotangent of the sum.
fn scaled_gradients(gradients: Vec<Tensor>, cotangents: Vec<Tensor>) -> Result<Vec<Tensor>> {
    let [hidden_grad, head_grad] = &gradients[..] else { return Ok(gradients) };
    let scaled =
        |gradient: &Tensor| (upcast(gradient)? * &cotangents[0])?.convert(hidden_grad.dtype());
    let labels = zeros(DType::I32, &[hidden_grad.dims()[0]])?;
    Ok(vec![scaled(hidden_grad)?, scaled(head_grad)?, labels])
}
