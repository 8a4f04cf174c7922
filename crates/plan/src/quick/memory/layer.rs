//! Activations that layers save for the backward pass, and the working set of one layer in it.
//!
//! - With remat layers save their inputs and the activations that the policy names, whose widths
//!   the model declares; on the device or in host memory. The last layer may skip remat, since
//!   its backward pass runs next, and then saves what layers do without remat.
//! - Without remat an unrolled layer saves the inputs of its matmuls, each once, and what its
//!   activation function needs: the residual stream and the norm output twice each, queries, keys,
//!   values and the attention output, and a few times its inner width.
//! - A scan then saves all named activations, and scores that are not computed in blocks: what is
//!   left where cheap ops are recomputed.
//! - In the backward pass a layer holds the inputs and outputs of its matmuls and as much for
//!   their gradients, with the scores of one block. Over a context axis it also holds the keys and
//!   values of other devices with their gradients, and outputs of blocks in `f32`.
//! - Tensor parallelism slices all widths but that of the residual stream, of which sequence
//!   parallelism shards the tokens; the inputs of matmuls are then gathered and saved so.

use super::F32;
use crate::quick::local::Local;
use fullshard_models::layers::attention::BLOCK;
use fullshard_models::layers::attention::context::ContextMethod;
use fullshard_models::layers::checkpoint::OUT_PROJ;
use fullshard_parallel::Remat;
use fullshard_pjrt::plugins::Platform;
use fullshard_step::StepSpec;

/// Bytes saved by layers for the backward pass.
pub(super) struct Saved {
    /// By all layers.
    pub all: u64,
    /// What the last layer saves beyond the others.
    pub extra_of_last: u64,
    /// What is in host memory instead, by all layers.
    pub host: u64,
}

/// Bytes saved by layers for the backward pass.
pub(super) fn saved(spec: &StepSpec, kind: Platform) -> Saved {
    let layer = Layer::new(spec);
    let without_remat = match spec.placement.options.scan_layers {
        true => layer.scanned(spec),
        false => layer.unrolled(kind),
    };
    let (saved, host) = match &spec.placement.remat {
        Remat::None => (without_remat, 0),
        remat => {
            let named = |offload| layer.named(spec, |name| remat.saves(name, offload));
            (layer.input() + named(false), named(true))
        }
    };
    let layers = spec.model.dimensions().layers;
    let last = usize::from(spec.placement.saves_last_layer());
    let extra = last * without_remat.saturating_sub(saved);
    Saved {
        all: (layers * saved + extra) as u64,
        extra_of_last: extra as u64,
        host: (layers.saturating_sub(last) * host) as u64,
    }
}

/// Bytes that one layer needs in the backward pass.
pub(super) fn working_set(spec: &StepSpec) -> u64 {
    let bytes = Layer::new(spec).working_set() as f64;
    let share = if spec.placement.options.scan_layers { 1.0 } else { IN_ORDER };
    (share * bytes) as u64
}

/// The share of an unrolled layer's working set that is live at once, since the compiler schedules
/// across the layer.
const IN_ORDER: f64 = 0.8;

/// Tensors of the inner width saved by unrolled layers without rematerialization: the input and
/// output of an activation function and what its derivative needs; with a gate also the gated
/// value. TPUs recompute the derivative, and so do steps with recomputed activations.
const INNER: usize = 4;
const RECOMPUTED_INNER: usize = 2;
const GATED_INNER: usize = 3;

/// Sizes of one layer on one device.
struct Layer {
    local: Local,
    /// Bytes per element of the compute dtype.
    size: usize,
    /// Scores of all pairs, where attention is not blockwise.
    scores: usize,
    /// Scores of a block.
    block_scores: usize,
    /// Tokens of which attention has keys and values beside its own, with their gradients.
    other_tokens: usize,
    /// Whether activations are recomputed rather than saved.
    recomputed: bool,
}

impl Layer {
    fn new(spec: &StepSpec) -> Layer {
        let local = Local::new(spec);
        let context = spec.placement.context_shards();
        let sequence = spec.batch.tokens / context;
        let all_scores = local.tokens * local.heads * sequence;
        let fused = spec.attention_unsupported_reason().is_none();
        let (blocks, scores) = match spec.attends_in_blocks() {
            _ if fused => (1, 0),
            false => (1, all_scores),
            true => (sequence.div_ceil(BLOCK), 0),
        };
        let others = match spec.placement.options.context_method {
            _ if context == 1 => 0,
            ContextMethod::Gather => context,
            // Those in use and the next.
            ContextMethod::Ring => 2,
        };
        Layer {
            local,
            size: spec.placement.comm.compute.size(),
            scores,
            block_scores: if fused { 0 } else { all_scores / blocks },
            other_tokens: others * local.tokens,
            recomputed: spec.placement.options.lowering.recomputed_activations,
        }
    }

    fn input(&self) -> usize {
        self.local.norm_tokens * self.size * self.local.hidden
    }

    /// The activations with the names that `is_saved` selects.
    fn named(&self, spec: &StepSpec, is_saved: impl Fn(&str) -> bool) -> usize {
        let shards = spec.placement.tensor_shards();
        let names = spec.model.checkpoints().iter().filter(|known| is_saved(&known.name));
        let elements = names.map(|known| match known.name == OUT_PROJ {
            true => self.local.norm_tokens * known.width,
            false => self.local.tokens * known.width / shards,
        });
        self.size * elements.sum::<usize>()
    }

    /// Saved by an unrolled layer without remat.
    fn unrolled(&self, kind: Platform) -> usize {
        let local = &self.local;
        let inner = match kind {
            _ if local.gated => GATED_INNER,
            Platform::Tpu => RECOMPUTED_INNER,
            _ if self.recomputed => RECOMPUTED_INNER,
            Platform::Cpu | Platform::Cuda => INNER,
        };
        let width = 2 * local.hidden + local.projected() + local.attn_out + inner * local.inner;
        2 * self.input() + local.tokens * self.size * width + self.scores * (F32 + self.size)
    }

    /// Saved by a scanned layer without remat. A layer that names nothing is assumed to save what
    /// an unrolled one does on TPUs, which recompute cheap ops too.
    fn scanned(&self, spec: &StepSpec) -> usize {
        match self.named(spec, |_| true) {
            0 => self.unrolled(Platform::Tpu),
            named => self.input() + named + self.gathered() + self.scores * self.size,
        }
    }

    /// The inputs of matmuls that sequence parallelism all-gathers. Collectives are not recomputed.
    fn gathered(&self) -> usize {
        let Local { tokens, norm_tokens, hidden, .. } = self.local;
        if norm_tokens < tokens { 2 * tokens * self.size * hidden } else { 0 }
    }

    /// Bytes that one layer needs in the backward pass.
    fn working_set(&self) -> usize {
        let Local { tokens, inputs, outputs, attn_out, .. } = self.local;
        let widths = inputs + 2 * outputs + attn_out;
        tokens * self.size * widths + self.block_scores * (F32 + self.size) + self.of_context()
    }

    /// Keys and values of other devices and their gradients, and the outputs of attention in `f32`
    /// before and after a block is merged.
    fn of_context(&self) -> usize {
        let Local { tokens, attn_out, .. } = self.local;
        match self.other_tokens {
            0 => 0,
            others => {
                2 * others * self.local.keys_and_values() * self.size + 2 * tokens * attn_out * F32
            }
        }
    }
}
