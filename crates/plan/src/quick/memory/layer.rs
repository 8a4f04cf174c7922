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
//!   their gradients, with the scores of one block.

use super::{F32, layer_params};
use fullshard_models::layers::attention::{BLOCK, BLOCKWISE_FROM};
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
    /// Tokens per device and microbatch.
    tokens: usize,
    /// Bytes per element of the compute dtype.
    size: usize,
    /// Scores of all pairs, where attention is not blockwise.
    scores: usize,
    /// Scores of a block.
    block_scores: usize,
    hidden: usize,
    inner: usize,
    gated: bool,
    /// The width of attention's output, which is that of the queries.
    attn_out: usize,
    /// Input and output widths of the matmuls, added up.
    inputs: usize,
    outputs: usize,
    /// Whether activations are recomputed rather than saved.
    recomputed: bool,
}

impl Layer {
    fn new(spec: &StepSpec) -> Layer {
        let model = spec.model.dimensions();
        let sequence = spec.batch.tokens;
        let tokens = spec.tokens_per_device();
        let widths = widths(spec);
        let into_inner = |width: &&(usize, usize)| **width == (model.hidden, model.inner);
        let layers = model.layers.max(1);
        let gates = widths.iter().filter(into_inner).count() / layers;
        let sum = widths.iter().fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        let all_scores = tokens * model.heads * sequence;
        let fused = spec.attention_unsupported_reason().is_none();
        let (blocks, scores) = match sequence < BLOCKWISE_FROM {
            _ if fused => (1, 0),
            true => (1, all_scores),
            false => (sequence.div_ceil(BLOCK), 0),
        };
        Layer {
            tokens,
            size: spec.placement.comm.compute.size(),
            scores,
            block_scores: if fused { 0 } else { all_scores / blocks },
            hidden: model.hidden,
            inner: model.inner,
            gated: gates > 1,
            attn_out: model.heads * model.head,
            inputs: sum.0 / layers,
            outputs: sum.1 / layers,
            recomputed: spec.placement.options.lowering.recomputed_activations,
        }
    }

    fn input(&self) -> usize {
        self.tokens * self.size * self.hidden
    }

    /// The activations with the names that `is_saved` selects.
    fn named(&self, spec: &StepSpec, is_saved: impl Fn(&str) -> bool) -> usize {
        let names = spec.model.checkpoints().iter().filter(|known| is_saved(&known.name));
        self.tokens * self.size * names.map(|known| known.width).sum::<usize>()
    }

    /// Saved by an unrolled layer without remat.
    fn unrolled(&self, kind: Platform) -> usize {
        let inner = match kind {
            _ if self.gated => GATED_INNER,
            Platform::Tpu => RECOMPUTED_INNER,
            _ if self.recomputed => RECOMPUTED_INNER,
            Platform::Cpu | Platform::Cuda => INNER,
        };
        let width = 4 * self.hidden + self.projected() + self.attn_out + inner * self.inner;
        self.tokens * self.size * width + self.scores * (F32 + self.size)
    }

    /// Saved by a scanned layer without remat. A layer that names nothing is assumed to save what
    /// an unrolled one does on TPUs, which recompute cheap ops too.
    fn scanned(&self, spec: &StepSpec) -> usize {
        match self.named(spec, |_| true) {
            0 => self.unrolled(Platform::Tpu),
            named => self.input() + named + self.scores * self.size,
        }
    }

    /// The width of queries, keys and values together.
    fn projected(&self) -> usize {
        let gates = if self.gated { 2 } else { 1 };
        self.outputs.saturating_sub(2 * self.hidden + gates * self.inner)
    }

    /// Bytes that one layer needs in the backward pass.
    fn working_set(&self) -> usize {
        let widths = self.inputs + 2 * self.outputs + self.attn_out;
        self.tokens * self.size * widths + self.block_scores * (F32 + self.size)
    }
}

/// Input and output widths of the matmuls of all layers.
fn widths(spec: &StepSpec) -> Vec<(usize, usize)> {
    let widths = layer_params(spec).filter_map(|param| match (param.class, &param.dims[..]) {
        // GPT-2's weights are transposed.
        ("Conv1D", &[input, output]) | (_, &[output, input]) => {
            Some(std::iter::repeat_n((input, output), param.stack.unwrap_or(1)))
        }
        _ => None,
    });
    widths.flatten().collect()
}
