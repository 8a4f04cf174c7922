//! Memory of a compiled step by kind.
//!
//! The total is the compiler's. Parameters and optimizer state are known from the spec. Of the
//! rest, buffers that are live at the peak are classified by their shape: one as large as a
//! parameter or its slice and produced in the backward pass is a gradient; one with the tokens of
//! a device in its dimensions is an activation: all of them, or those of norms and residuals with
//! sequence parallelism. Everything else is temporary: gathered parameters, padding,
//! and what the liveness walk does not find.

use super::liveness::{Buffer, Peak};
use crate::report::{LargeBuffer, Memory, Part};
use fullshard_parallel::ShardedParam;
use fullshard_pjrt::CompiledMemory;
use fullshard_step::{StateBytes, StepSpec};
use std::collections::HashSet;

/// Number of the largest buffers to report.
const LARGEST: usize = 10;

/// The memory of a compiled step, with the limits per device.
pub fn memory(
    spec: &StepSpec,
    state: &StateBytes,
    compiled: &CompiledMemory,
    peak: &Peak,
    (limit, host_limit): (u64, Option<u64>),
) -> Memory {
    let sizes = Sizes::new(spec);
    let of = |kind: Kind| -> u64 {
        let buffers = peak.buffers.iter().filter(|buffer| sizes.kind(buffer) == kind);
        buffers.map(|buffer| buffer.bytes).sum()
    };
    // Where the walk finds more than the compiler needs, the compiler shared more buffers.
    let share = (compiled.temporaries as f64 / peak.bytes.max(1) as f64).min(1.0);
    let scaled = |bytes: u64| (bytes as f64 * share) as u64;
    let total = compiled.total();
    let known = [
        ("parameters", state.parameters),
        ("optimizer", state.optimizer),
        ("gradients", scaled(of(Kind::Gradient))),
        ("activations", scaled(of(Kind::Activation))),
    ];
    let rest = total.saturating_sub(known.iter().map(|(_, bytes)| bytes).sum());
    let parts = known.into_iter().chain([("temporaries", rest)]);
    Memory {
        limit,
        total,
        host: compiled.host,
        host_limit,
        parts: parts.map(|(what, bytes)| Part { what, bytes }).collect(),
        largest: largest(peak),
    }
}

fn largest(peak: &Peak) -> Vec<LargeBuffer> {
    let mut buffers: Vec<&Buffer> = peak.buffers.iter().collect();
    buffers.sort_by_key(|buffer| std::cmp::Reverse(buffer.bytes));
    let shown = buffers.into_iter().take(LARGEST).map(|buffer| LargeBuffer {
        bytes: buffer.bytes,
        shape: format!("{}{:?}", buffer.shape.element, buffer.shape.dims).replace(' ', ""),
        instruction: buffer.instruction.clone(),
        module: buffer.owner.module.clone(),
    });
    shown.collect()
}

/// The kind of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Gradient,
    Activation,
    Other,
}

/// Sizes that identify kinds.
struct Sizes {
    /// Elements of parameters: full, sliced and sharded, of one layer and of all.
    parameters: HashSet<u64>,
    /// Sequences per device.
    sequences: usize,
    /// Tokens of a sequence on one device, and those of norms and residuals.
    tokens: [usize; 2],
    /// All of a device's tokens, and those of norms and residuals, unless a parameter has a
    /// dimension of that length.
    all: Vec<usize>,
}

impl Sizes {
    fn new(spec: &StepSpec) -> Sizes {
        let sizes = spec.placement.parameters.iter().flat_map(|param| {
            let layers = param.stack.unwrap_or(1);
            let all = [param.elements(), param.slice_elements(), param.shard_elements()];
            all.into_iter().flat_map(move |size| [size, size / layers])
        });
        let placement = &spec.placement;
        let sequences = spec.batch.sequences / placement.batch_shards();
        let tokens = spec.batch.tokens / placement.context_shards();
        let tensor = placement.tensor.as_ref().filter(|tensor| tensor.sequence_parallel);
        let shards = if tensor.is_some() { placement.tensor_shards() } else { 1 };
        let is_wide = |all: &usize| {
            let dims = |param: &ShardedParam| [param.dims.clone(), param.slice_dims()].concat();
            placement.parameters.iter().any(|param| dims(param).contains(all))
        };
        let all = [sequences * tokens, sequences * tokens / shards];
        Sizes {
            parameters: sizes.map(|size| size as u64).collect(),
            sequences,
            tokens: [tokens, tokens / shards],
            all: all.into_iter().filter(|all| !is_wide(all)).collect(),
        }
    }

    fn kind(&self, buffer: &Buffer) -> Kind {
        let dims = &buffer.shape.dims;
        let gathered = buffer.opcode.starts_with("all-gather");
        match self.parameters.contains(&buffer.shape.elements()) {
            _ if self.has_tokens(dims) => Kind::Activation,
            true if buffer.owner.backward && !gathered => Kind::Gradient,
            false if self.may_have_tokens(dims) => Kind::Activation,
            _ => Kind::Other,
        }
    }

    /// Whether the dims include all tokens of a device: sequences and tokens are adjacent, or one
    /// dimension.
    fn has_tokens(&self, dims: &[usize]) -> bool {
        let both = self.tokens.map(|tokens| [self.sequences, tokens]);
        dims.windows(2).any(|pair| both.iter().any(|both| pair == both))
            || self.all.iter().any(|all| dims.contains(all))
    }

    /// Whether the dims may include the tokens reshaped, as with heads and blocks.
    fn may_have_tokens(&self, dims: &[usize]) -> bool {
        let all = (self.sequences * self.tokens[1]).max(1);
        dims.contains(&self.sequences) && dims.iter().product::<usize>().is_multiple_of(all)
    }
}
