//! Attention over sequences that are sharded over a mesh axis, in a manual region.
//!
//! Every device holds an early and a late chunk of the sequence ([`Zigzag`]). Its queries attend to
//! its own keys and to those of the other devices, one device after another, in blocks of a chunk
//! of queries by a chunk of keys. Of device `j`, late queries attend to all early keys; and either
//! `j` comes before this device, and early queries attend to its early keys too, or it comes after,
//! and late queries attend to its late keys too. So all devices compute two blocks for each other
//! one, and no block is masked but those of a chunk with itself.
//!
//! The results of blocks are merged by their softmax statistics, the log-sum-exp of scores. The
//! backward pass recomputes the probabilities of a block from its scores and the final statistics:
//! what is saved is of the length of the shard.

mod chunk;
mod passing;
mod zigzag;

pub use zigzag::{Zigzag, chunk_length};

use super::blocks::{Blocks, DropoutMask, Keys, Queries};
use super::fused::{Cudnn, unsupported_reason as fused_reason};
use super::kernel::Kernel as _;
use super::{BLOCK, Form, Heads, Mask, Pattern, Scores, grouped};
use crate::layers::{checkpoint, dims, upcast};
use chunk::{Chunk, Pair, merge, select_all, stack, unstack};
use fullshard_graph::{
    DType, Error, Group, Key, Result, Tensor, barrier, concatenate, custom_vjp, zeros,
};
use passing::{Owner, for_others};

/// How the keys and values of other devices reach this one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ContextMethod {
    /// All at once, by an all-gather: one collective, and memory for all keys and values.
    #[default]
    Gather,
    /// Around a ring of devices, those of one device at a time, while the blocks of the previous
    /// one are computed: memory for those of two devices.
    Ring,
}

/// The axis that shards sequences, and how attention is computed over it.
#[derive(Debug, Clone)]
pub struct ContextParallel {
    /// The devices that share a sequence.
    pub group: Group,
    /// How keys and values are communicated.
    pub method: ContextMethod,
    /// Whether the platform has the fused kernel. [`unsupported_reason`] tells what it is not used
    /// for.
    pub fused: bool,
    /// The queries whose scores are in memory, without the kernel.
    pub block: usize,
    /// The dropout mask in training, with the probability of [`Scores`].
    pub dropout: Option<Dropout>,
}

/// The dropout mask of probabilities: the same as that of the full sequences on one device.
#[derive(Debug, Clone)]
pub struct Dropout {
    /// The key of the mask.
    pub key: Key,
    /// The devices that shard the batch, if any.
    pub batch: Option<Group>,
    /// The devices that shard the heads, if any.
    pub heads: Option<Group>,
}

impl ContextParallel {
    /// Attention over the devices of a group, without the kernel and without dropout.
    pub fn new(group: &Group, method: ContextMethod) -> ContextParallel {
        ContextParallel { group: group.clone(), method, fused: false, block: BLOCK, dropout: None }
    }
}

/// Why the fused kernel does not support a form of attention over a context axis, if so, for chunks
/// of a length.
pub fn unsupported_reason(dtype: DType, chunk: usize, head: usize, scores: Form) -> Option<String> {
    if scores.dropout > 0.0 {
        return Some("the dropout masks of blocks are drawn by position".into());
    }
    fused_reason(dtype, chunk, head, scores, false)
}

/// Causal attention of the shards of sequences, `[batch, heads, shard, head]`, all in the order of
/// [`Zigzag`]. Each form and method gives the same result. The scale of scores has no gradient.
pub fn attention(heads: &Heads, scores: &Scores, context: &ContextParallel) -> Result<Tensor> {
    let attention = Attention::new(heads, scores, context)?;
    let constants = attention.constants()?;
    let inputs = [&heads.query, &heads.key, &heads.value];
    let stopped = inputs.iter().map(|x| x.stop_gradient()).collect::<Result<Vec<_>>>()?;
    let outputs = attention.forward(&attention.kernel(&constants)?, &stopped)?;
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
            let found = attention.gradients(&attention.kernel(constants)?, saved, &gradients[0])?;
            let rest = residuals[3..].iter().map(|x| zeros(x.dtype(), x.dims()));
            found.into_iter().map(Ok).chain(rest).collect()
        },
    )?;
    results.pop().ok_or_else(|| invalid("one result"))
}

fn invalid(what: &str) -> Error {
    Error::new("attention", format!("over a context axis: expected {what}"))
}

/// Rejects masks other than the causal one.
fn check_mask(scores: &Scores) -> Result<()> {
    let reason = match (scores.mask.pattern, &scores.mask.keys) {
        (Pattern::Causal, None) => return Ok(()),
        (Pattern::Causal, Some(_)) => "keys can be padding".into(),
        (pattern, _) => format!("the mask is {pattern}"),
    };
    let reason = format!(
        "{reason}, but over a context axis only causal masks without padding are supported; set the \
         size of the axis to 1"
    );
    Err(Error::new("attention", reason))
}

/// A call of attention.
struct Attention<'a> {
    scores: &'a Scores,
    context: &'a ContextParallel,
    zigzag: Zigzag,
    /// Whether the fused kernel is used.
    fused: bool,
}

impl<'a> Attention<'a> {
    fn new(heads: &Heads, scores: &'a Scores, context: &'a ContextParallel) -> Result<Self> {
        check_mask(scores)?;
        let [_, _, shard, head] = dims("query", &heads.query)?;
        // Checks the dims of keys and values.
        grouped(heads, &scores.mask)?;
        let zigzag = Zigzag::new(&context.group, shard * context.group.size())?;
        let dropout = if context.dropout.is_some() { scores.dropout } else { 0.0 };
        let form = Form { dropout, ..scores.form() };
        let reason = || unsupported_reason(heads.query.dtype(), zigzag.chunk(), head, form);
        let fused = context.fused && reason().is_none();
        Ok(Attention { scores, context, zigzag, fused })
    }

    /// What kernels use besides queries, keys and values: the scale, and the seed of dropout.
    fn constants(&self) -> Result<Vec<Tensor>> {
        let seed = self.dropout().map(|dropout| dropout.key.seed());
        [Ok(self.scores.scale.clone())].into_iter().chain(seed).collect()
    }

    fn dropout(&self) -> Option<&'a Dropout> {
        self.context.dropout.as_ref().filter(|_| self.scores.dropout > 0.0)
    }

    fn kernel(&self, constants: &[Tensor]) -> Result<Kernel<'a>> {
        if let (true, Some(factor)) = (self.fused, self.scores.factor) {
            return Ok(Kernel::Fused { factor });
        }
        let [scale, seed @ ..] = constants else { return Err(invalid("a scale")) };
        let dropout = self.dropout().zip(seed.first()).map(|(shards, seed)| DropoutMask {
            shards,
            seed: seed.clone(),
            probability: self.scores.dropout,
            sequence: self.zigzag.sequence(),
        });
        let (rows, upcast) = (self.context.block.max(1), self.scores.upcast);
        let scale = scale.clone();
        Ok(Kernel::Blocks(Blocks { scale, upcast, rows, dropout, partial: true }))
    }

    /// The output of attention and the softmax statistics, given queries, keys and values.
    fn forward(&self, kernel: &Kernel<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let [query, key, value] = inputs else { return Err(invalid("three inputs")) };
        let (device, keys) = (self.context.group.index()?, stack(key, value)?);
        let queries = self.queries(std::slice::from_ref(query), &device)?;
        let own = self.keys(&keys, &device)?;
        let mut early = kernel.forward(&queries.early, &own.early, true)?;
        let mut late = kernel.forward(&queries.late, &own.late, true)?;
        late = merge(&late, &kernel.forward(&queries.late, &own.early, false)?)?;
        let step = |mut early: Vec<Tensor>, owner: &Owner, keys: &Tensor| {
            let (mut late, before) = (early.split_off(2), &owner.is_before);
            let keys = self.keys(keys, &owner.index)?;
            late = merge(&late, &kernel.forward(&queries.late, &keys.early, false)?)?;
            let (queries, keys) = (queries.select(before)?, keys.select(before)?);
            let part = kernel.forward(&queries, &keys, false)?;
            let merged = merge(&select_all(before, &early, &late)?, &part)?;
            early = select_all(before, &merged, &early)?;
            early.extend(select_all(before, &late, &merged)?);
            Ok((early, None))
        };
        early.extend(late);
        let (parts, _) = for_others(self.context, &keys, None, early, &step)?;
        let [early, early_stats, late, late_stats] = &parts[..] else {
            return Err(invalid("two chunks"));
        };
        let attn_out = concatenate(&[early, late], 2)?.convert(query.dtype())?;
        Ok(vec![attn_out, concatenate(&[early_stats, late_stats], 2)?])
    }

    /// The gradients of queries, keys and values, given those, the output and the statistics, and
    /// the gradient of the output.
    fn gradients(
        &self,
        kernel: &Kernel<'_>,
        saved: &[Tensor],
        gradient: &Tensor,
    ) -> Result<Vec<Tensor>> {
        let [query, key, value, attn_out, stats] = saved else {
            return Err(invalid("five residuals"));
        };
        // Otherwise the compiler may keep the keys and values of others from the forward pass.
        let behind = barrier(&[&stack(key, value)?, gradient])?;
        let (device, keys, gradient) = (self.context.group.index()?, &behind[0], &behind[1]);
        let rows = [query, attn_out, stats, gradient].map(Tensor::clone);
        let queries = self.queries(&rows, &device)?;
        let own = self.keys(keys, &device)?;
        let early = kernel.gradients(&queries.early, &own.early, true)?;
        let late = kernel.gradients(&queries.late, &own.late, true)?;
        let across = kernel.gradients(&queries.late, &own.early, false)?;
        let of_queries = vec![early.query, (late.query + across.query)?];
        let of_keys = Pair { early: (early.keys + across.keys)?, late: late.keys };
        let step = |of_queries: Vec<Tensor>, owner: &Owner, keys: &Tensor| {
            let [early, late] = of_queries.try_into().map_err(|_| invalid("two chunks"))?;
            let keys = self.keys(keys, &owner.index)?;
            let first = kernel.gradients(&queries.late, &keys.early, false)?;
            let before = &owner.is_before;
            let (queries, keys) = (queries.select(before)?, keys.select(before)?);
            let second = kernel.gradients(&queries, &keys, false)?;
            let of_queries = Pair { early, late: (late + first.query)? };
            let Pair { early, late } = of_queries.add(before, &second.query)?;
            let none = zeros(first.keys.dtype(), first.keys.dims())?;
            let of_keys = Pair { early: first.keys, late: none }.add(before, &second.keys)?;
            Ok((vec![early, late], Some(of_keys.join(3)?)))
        };
        let own = Some(of_keys.join(3)?);
        let (of_queries, of_keys) = for_others(self.context, keys, own, of_queries, &step)?;
        let [of_key, of_value] = unstack(&of_keys.ok_or_else(|| invalid("gradients"))?)?;
        let of_query = concatenate(&of_queries.iter().collect::<Vec<_>>(), 2)?;
        [(of_query, query), (of_key, key), (of_value, value)]
            .into_iter()
            .map(|(gradient, x)| gradient.convert(x.dtype()))
            .collect()
    }

    /// The chunks of this device's queries, and of other tensors of the same rows.
    fn queries(&self, rows: &[Tensor], device: &Tensor) -> Result<Pair<Chunk>> {
        Pair::chunks(rows, 2, self.zigzag.starts_of(device)?)
    }

    /// The chunks of the keys and values of a device.
    fn keys(&self, keys: &Tensor, device: &Tensor) -> Result<Pair<Chunk>> {
        Pair::chunks(std::slice::from_ref(keys), 3, self.zigzag.starts_of(device)?)
    }
}

/// The form that computes blocks.
enum Kernel<'a> {
    Blocks(Blocks<'a>),
    Fused { factor: f64 },
}

/// The gradients of a block.
struct Gradients {
    query: Tensor,
    /// Of keys and values, stacked.
    keys: Tensor,
}

impl Kernel<'_> {
    /// The output of a block, `[batch, heads, chunk, head]`, and the softmax statistics, both in
    /// `f32`.
    fn forward(&self, queries: &Chunk, keys: &Chunk, causal: bool) -> Result<Vec<Tensor>> {
        let factor = match self {
            Kernel::Blocks(blocks) => {
                return in_block(queries, keys, causal, |queries, keys| {
                    blocks.forward(queries, keys)
                });
            }
            Kernel::Fused { factor } => *factor,
        };
        let inputs = fused_inputs(queries, keys)?;
        let (attn_out, stats) = Cudnn::block(factor, causal).forward(&inputs)?;
        Ok(vec![upcast(&swap_heads(&attn_out)?)?, stats])
    }

    /// The gradients of a block, in `f32`.
    fn gradients(&self, queries: &Chunk, keys: &Chunk, causal: bool) -> Result<Gradients> {
        let factor = match self {
            Kernel::Blocks(blocks) => {
                return in_block(queries, keys, causal, |queries, keys| {
                    let [query, key, value] = blocks.gradients(queries, keys)?;
                    Ok(Gradients { query, keys: stack(&key, &value)? })
                });
            }
            Kernel::Fused { factor } => *factor,
        };
        let [_, attn_out, stats, gradient] = &queries.tensors[..] else {
            return Err(invalid("the gradient of rows"));
        };
        let mut inputs = fused_inputs(queries, keys)?;
        inputs.extend([stats.clone(), swap_heads(attn_out)?]);
        let kernel = Cudnn::block(factor, causal);
        let [query, key, value] = kernel.gradients(&inputs, &swap_heads(gradient)?)?;
        let of = |x: &Tensor| upcast(&swap_heads(x)?);
        Ok(Gradients { query: of(&query)?, keys: stack(&of(&key)?, &of(&value)?)? })
    }
}

/// Runs a function on a chunk of queries and one of keys and values.
fn in_block<T>(
    queries: &Chunk,
    keys: &Chunk,
    causal: bool,
    run: impl FnOnce(&Queries<'_>, &Keys<'_>) -> Result<T>,
) -> Result<T> {
    let [key, value] = unstack(&keys.tensors[0])?;
    let mask = if causal { Mask::causal() } else { Mask::full() };
    let queries = Queries { tensors: &queries.tensors, start: &queries.start };
    run(&queries, &Keys { key: &key, value: &value, start: &keys.start, mask: &mask })
}

/// Queries, keys and values as the fused kernel takes them.
fn fused_inputs(queries: &Chunk, keys: &Chunk) -> Result<Vec<Tensor>> {
    let [key, value] = unstack(&keys.tensors[0])?;
    [&queries.tensors[0], &key, &value].into_iter().map(swap_heads).collect()
}

/// `[batch, heads, chunk, head]` as `[batch, chunk, heads, head]`, or the other way around.
fn swap_heads(x: &Tensor) -> Result<Tensor> {
    x.transpose(&[0, 2, 1, 3])
}
