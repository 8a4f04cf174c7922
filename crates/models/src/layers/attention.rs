//! Attention in equivalent forms: [`reference()`] saves all probabilities, [`blockwise`] saves its
//! output and the softmax statistics instead and skips scores that a [`Mask`] excludes for a whole
//! block, and a kernel does the same on platforms that have one: [`fused()`] on NVIDIA GPUs, custom
//! calls on the CPU. [`context`] is attention over sequences that are sharded over devices.
//!
//! Each form draws a different dropout mask, with the same probability.

mod blocks;
pub mod context;
mod custom_call;
mod fused;
mod kernel;
mod mask;

pub use custom_call::{ATTENTION, ATTENTION_GRADIENTS, call_unsupported_reason};
pub use fused::{GRAPHS_WITHOUT_CUDNN, fused, unsupported_reason};
pub use mask::{Mask, Pattern};

use blocks::{Blocks, Keys, Queries};
use custom_call::Calls;
use fused::fused_per_shard;
use kernel::with_kernel;

use super::dim_names::HEADS;
use super::{checkpoint, dims, flatten_tokens, min_finite, upcast, upcast_dtype};
use crate::annotations::DimNames;
use crate::context_parallel::ContextAxis;
use crate::lowering::LoweringOptions;
use crate::scope::Scope;
use crate::tracer::{Activations, Declaration};
use fullshard_graph::{
    DType, Error, Policy, Result, Tensor, barrier, concatenate, constant, custom_vjp, einsum, full,
    remat, select, zeros,
};
use std::ops::Range;

/// Sequences of at least this length are computed in blocks: for shorter ones, the probabilities
/// are small and one matmul is faster than several.
pub const BLOCKWISE_FROM: usize = 512;

/// The queries per block. Smaller blocks compute less of the masked part, larger ones are faster.
pub const BLOCK: usize = 256;

/// The name of attention dropout in its module.
const DROPOUT: &str = "attn_dropout";

/// Queries, keys and values.
#[derive(Debug, Clone)]
pub struct Heads {
    /// `[batch, heads, sequence, head]`.
    pub query: Tensor,
    /// `[batch, key heads, keys, head]`; each key head is shared by a group of consecutive query
    /// heads.
    pub key: Tensor,
    /// Same as the keys.
    pub value: Tensor,
}

/// How scores become probabilities.
#[derive(Debug, Clone)]
pub struct Scores {
    /// Which scores count.
    pub mask: Mask,
    /// The scale: a scalar of the softmax dtype, `f32` or, for `f64` queries, `f64`.
    pub scale: Tensor,
    /// The scale as a number, if it is static.
    pub factor: Option<f64>,
    /// Whether the matmuls are in `f32`.
    pub upcast: bool,
    /// The dropout probability in training.
    pub dropout: f64,
}

/// What a form of attention must support: the static part of [`Scores`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Form {
    /// The pattern of the mask.
    pub pattern: Pattern,
    /// Whether keys can be padding.
    pub padding: bool,
    /// The scale of scores, if it is the same in every layer.
    pub factor: Option<f64>,
    /// Whether the matmuls are in `f32`.
    pub upcast: bool,
    /// The dropout probability in training.
    pub dropout: f64,
}

impl Default for Form {
    /// Causal, without further requirements.
    fn default() -> Form {
        Form {
            pattern: Pattern::Causal,
            padding: false,
            factor: Some(1.0),
            upcast: false,
            dropout: 0.0,
        }
    }
}

impl Form {
    /// What a form must support to compute both.
    pub fn and(self, other: Form) -> Form {
        let is_causal = self.pattern == Pattern::Causal;
        Form {
            pattern: if is_causal { other.pattern } else { self.pattern },
            padding: self.padding || other.padding,
            factor: self.factor.and(other.factor),
            upcast: self.upcast || other.upcast,
            dropout: self.dropout.max(other.dropout),
        }
    }
}

impl Scores {
    /// What a form of attention must support for these scores.
    pub fn form(&self) -> Form {
        Form {
            pattern: self.mask.pattern,
            padding: self.mask.keys.is_some(),
            factor: self.factor,
            upcast: self.upcast,
            dropout: self.dropout,
        }
    }

    /// Masked scores with a static scale, for queries of a dtype.
    pub fn scaled(mask: Mask, dtype: DType, scale: f64) -> Result<Scores> {
        let number = full(upcast_dtype(dtype), &[], scale)?;
        Ok(Scores { mask, scale: number, factor: Some(scale), upcast: false, dropout: 0.0 })
    }
}

/// Attention, `[batch, heads, sequence, head]`, in the best supported form.
pub fn attention(scope: &Scope<'_>, heads: &Heads, scores: &Scores) -> Result<Tensor> {
    scope.declare(Declaration::Attention(scores.form()))?;
    if let Some(axis) = scope.context() {
        return context_attention(scope, heads, scores, axis);
    }
    let [_, _, sequence, head] = dims("query", &heads.query)?;
    let dropout = if scope.is_training() { scores.dropout } else { 0.0 };
    let (form, dtype) = (Form { dropout, ..scores.form() }, heads.query.dtype());
    let is_unsupported =
        || unsupported_reason(dtype, sequence, head, form, scope.is_scanned()).is_some();
    let LoweringOptions { fused_attention, eager_attention, .. } = scope.lowering();
    if fused_attention && !is_unsupported() {
        return fused_per_shard(Some(scope), heads, form, &scope.name(DROPOUT));
    }
    let is_call = scope.lowering().attention_custom_call && !eager_attention;
    if is_call && call_unsupported_reason(dtype, head, form).is_none() {
        return with_kernel(Some(scope), heads, &Calls::new(form)?);
    }
    let attn_out =
        per_shard(scope, heads, |heads| match sequence >= BLOCKWISE_FROM && !eager_attention {
            true => blockwise(scope, heads, scores, BLOCK),
            false => reference(scope, heads, scores),
        })?;
    attn_out.named(checkpoint::ATTN_OUT)
}

/// Runs attention on the heads of each device, so that over automatic axes nothing is gathered.
fn per_shard(
    scope: &Scope<'_>,
    Heads { query, key, value }: &Heads,
    attention: impl FnOnce(&Heads) -> Result<Tensor>,
) -> Result<Tensor> {
    let dims: DimNames<'_> = &[None, Some(HEADS), None, None];
    let inputs = [(query, dims), (key, dims), (value, dims)];
    let mut results = scope.per_shard(&inputs, &[dims], |inputs| {
        let [query, key, value] = inputs.try_into().map_err(|_| missing_inputs())?;
        Ok(vec![attention(&Heads { query, key, value })?])
    })?;
    results.pop().ok_or_else(missing_inputs)
}

/// Attention over sequences that are sharded.
fn context_attention(
    scope: &Scope<'_>,
    heads: &Heads,
    scores: &Scores,
    axis: &ContextAxis,
) -> Result<Tensor> {
    let key = if scores.dropout > 0.0 { scope.dropout_key(DROPOUT)? } else { None };
    let dropout = key.map(|key| context::Dropout {
        key,
        batch: Some(axis.samples.clone()).filter(|group| group.size() > 1),
        heads: scope.tensor_parallel().map(|tensor| tensor.group().clone()),
    });
    let context = context::ContextParallel {
        fused: scope.lowering().fused_attention,
        dropout,
        ..context::ContextParallel::new(&axis.group, axis.method)
    };
    context::attention(heads, scores, &context)
}

/// Attention by its definition.
pub fn reference(scope: &Scope<'_>, heads: &Heads, scores: &Scores) -> Result<Tensor> {
    let grouped = grouped(heads, &scores.mask)?;
    let (queries, keys) = (grouped.query.dims()[3], grouped.key.dims()[2]);
    let probabilities = probabilities(&grouped, scores, 0..queries, 0..keys)?;
    let probabilities = dropout(scope, DROPOUT, &probabilities, scores.dropout)?;
    attn_out(&probabilities, &grouped.value)?.reshape(heads.query.dims())
}

/// Attention in blocks of queries, each with the keys that any of its queries may attend to. The
/// backward pass recomputes probabilities from the softmax statistics; the scale of scores has no
/// gradient. With dropout the gradient is derived, from blocks that are computed twice.
pub fn blockwise(
    scope: &Scope<'_>,
    heads: &Heads,
    scores: &Scores,
    block: usize,
) -> Result<Tensor> {
    if scope.is_training() && scores.dropout > 0.0 {
        return blockwise_with_dropout(scope, heads, scores, block);
    }
    // Checks the dims of keys, values and mask.
    grouped(heads, &scores.mask)?;
    let blocks = |constants: &[Tensor]| Blocks {
        scale: constants[0].clone(),
        upcast: scores.upcast,
        rows: block.max(1),
        dropout: None,
        partial: false,
    };
    let mask = |constants: &[Tensor]| Mask { keys: constants.get(1).cloned(), ..scores.mask };
    let constants: Vec<Tensor> =
        [&scores.scale].into_iter().chain(&scores.mask.keys).cloned().collect();
    let inputs = [&heads.query, &heads.key, &heads.value];
    let stopped = inputs.iter().map(|x| x.stop_gradient()).collect::<Result<Vec<_>>>()?;
    let outputs = on_sequence(&stopped, &stopped[..1], &mask(&constants), |queries, keys| {
        blocks(&constants).forward(queries, keys)
    })?;
    let outputs = outputs.iter().map(|output| output.named(checkpoint::ATTN_OUT));
    let outputs = outputs.collect::<Result<Vec<_>>>()?;
    // As in the fused form, the outputs are inputs here, so that a policy can save them.
    let inputs: Vec<&Tensor> = inputs.into_iter().chain(&outputs).chain(&constants).collect();
    let mut results = custom_vjp(
        &inputs,
        |inputs| Ok(vec![inputs[3].clone()]),
        |inputs| Ok((vec![inputs[3].clone()], inputs)),
        |residuals, gradients| {
            let (saved, constants) = residuals.split_at(5);
            // Otherwise the compiler may keep the scores of the forward pass.
            let behind = barrier(&[&saved[0], &gradients[0]])?;
            let rows = [&behind[0], &saved[3], &saved[4], &behind[1]].map(Tensor::clone);
            let found = on_sequence(saved, &rows, &mask(constants), |queries, keys| {
                blocks(constants).gradients(queries, keys)
            })?;
            let found = found.iter().zip(saved).map(|(found, x)| found.convert(x.dtype()));
            let rest = residuals[3..].iter().map(|x| zeros(x.dtype(), x.dims()));
            found.chain(rest).collect()
        },
    )?;
    results.pop().ok_or_else(missing_inputs)
}

/// Runs a function on all rows, and all keys and values, of a sequence.
fn on_sequence<T>(
    heads: &[Tensor],
    rows: &[Tensor],
    mask: &Mask,
    run: impl FnOnce(&Queries<'_>, &Keys<'_>) -> Result<T>,
) -> Result<T> {
    let start = constant(&[], &[0_i32])?;
    let keys = Keys { key: &heads[1], value: &heads[2], start: &start, mask };
    run(&Queries { tensors: rows, start: &start }, &keys)
}

/// The same with dropout, whose masks depend on the place in the model.
fn blockwise_with_dropout(
    scope: &Scope<'_>,
    heads: &Heads,
    scores: &Scores,
    block: usize,
) -> Result<Tensor> {
    let Heads { query, key, value } = grouped(heads, &scores.mask)?;
    let (sequence, block) = (query.dims()[3], block.max(1));
    let mut blocks = Vec::new();
    for start in (0..sequence).step_by(block) {
        let queries = start..sequence.min(start + block);
        let keys = scores.mask.pattern.keys(&queries, key.dims()[2]);
        let query = query.narrow(3, queries.start, queries.end)?;
        let key = key.narrow(2, keys.start, keys.end)?;
        let value = value.narrow(2, keys.start, keys.end)?;
        let mask = scores.mask.narrow(&keys)?;
        let inputs: Vec<&Tensor> =
            [&query, &key, &value, &scores.scale].into_iter().chain(&mask.keys).collect();
        blocks.extend(remat(Policy::Nothing, &inputs, |mut inputs| {
            let mask = Mask { keys: inputs.drain(4..).next(), ..mask };
            let [query, key, value, scale] = inputs.try_into().map_err(|_| missing_inputs())?;
            let heads = Heads { query, key, value };
            let scores = Scores { mask, scale, ..*scores };
            let probabilities = probabilities(&heads, &scores, queries, keys)?;
            let name = format!("{DROPOUT}.{start}");
            let probabilities = dropout(scope, &name, &probabilities, scores.dropout)?;
            Ok(vec![attn_out(&probabilities, &heads.value)?])
        })?);
    }
    concatenate(&blocks.iter().collect::<Vec<_>>(), 3)?.reshape(heads.query.dims())
}

/// Dropout of attention probabilities.
fn dropout(scope: &Scope<'_>, name: &str, probabilities: &Tensor, p: f64) -> Result<Tensor> {
    scope.functional_dropout(name, probabilities, Activations::Attention, p)
}

fn missing_inputs() -> Error {
    Error::new("attention", "a block has queries, keys, values and a scale")
}

/// Reshapes queries to `[batch, key heads, group, sequence, head]`, so that keys and values are not
/// repeated.
fn grouped(heads: &Heads, mask: &Mask) -> Result<Heads> {
    let [batch, count, sequence, head] = dims("query", &heads.query)?;
    let [_, groups, keys, _] = dims("key", &heads.key)?;
    mask.check(batch, sequence, keys)?;
    if groups == 0 || !count.is_multiple_of(groups) {
        let reason = format!("{count} query heads cannot share {groups} key/value heads");
        return Err(Error::new("attention", reason));
    }
    let query = heads.query.reshape(&[batch, groups, count / groups, sequence, head])?;
    Ok(Heads { query, ..heads.clone() })
}

/// The attention probabilities of a range of queries over a range of keys.
fn probabilities(
    heads: &Heads,
    scores: &Scores,
    queries: Range<usize>,
    keys: Range<usize>,
) -> Result<Tensor> {
    let (query, key) = if scores.upcast {
        (upcast(&heads.query)?, upcast(&heads.key)?)
    } else {
        (heads.query.clone(), heads.key.clone())
    };
    let logits = (upcast(&einsum("bgrqd,bgkd->bgrqk", &query, &key)?)? * &scores.scale)?;
    let Some(allowed) = scores.mask.allowed(&queries, &keys)? else {
        return logits.softmax(4)?.convert(heads.value.dtype());
    };
    let masked = full(logits.dtype(), &[], min_finite(logits.dtype()))?;
    let mut probabilities = select(&allowed, &logits, &masked)?.softmax(4)?;
    if scores.mask.keys.is_some() {
        // A query may attend to no key, and its softmax is then over masked scores.
        let zero = zeros(logits.dtype(), &[])?;
        probabilities = select(&allowed, &probabilities, &zero)?;
    }
    probabilities.convert(heads.value.dtype())
}

/// The values weighted by the probabilities.
fn attn_out(probabilities: &Tensor, value: &Tensor) -> Result<Tensor> {
    einsum("bgrqk,bgkd->bgrqd", probabilities, value)
}

/// Splits a projection `[..., heads * head]` into heads `[batch, heads, sequence, head]`, as many
/// as this device has.
pub fn split_heads(x: &Tensor, sequence: usize, head: usize) -> Result<Tensor> {
    let [tokens, width] = dims("heads", &flatten_tokens(x)?)?;
    let split = [tokens / sequence.max(1), sequence, width / head.max(1), head];
    x.reshape(&split)?.transpose(&[0, 2, 1, 3])
}

/// Merges heads into `[tokens, width]` or `[batch, sequence, width]`, of the rank of `like`: the
/// inverse of [`split_heads`].
pub fn merge_heads(x: &Tensor, like: &Tensor) -> Result<Tensor> {
    let [batch, heads, sequence, head] = dims("heads", x)?;
    let merged = x.transpose(&[0, 2, 1, 3])?;
    match like.rank() {
        2 => merged.reshape(&[batch * sequence, heads * head]),
        _ => merged.reshape(&[batch, sequence, heads * head]),
    }
}
