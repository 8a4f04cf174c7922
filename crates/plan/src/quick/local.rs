//! The sizes of a model on one device, under tensor and context parallelism.
//!
//! Between the sliced layers a device has its slice of the width and all tokens of its batch and
//! context; outside, in norms and residuals, all of the width, and with sequence parallelism a
//! share of the tokens.

use fullshard_models::layers::dim_names::{DimName, HEADS, MLP, VOCAB};
use fullshard_models::slice_size;
use fullshard_parallel::{Placement, ShardedParam};
use fullshard_step::StepSpec;

/// Sizes on one device, per microbatch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Local {
    /// Tokens in sliced layers.
    pub tokens: usize,
    /// Tokens in norms and residuals.
    pub norm_tokens: usize,
    /// The width of the residual stream.
    pub hidden: usize,
    /// Attention heads.
    pub heads: usize,
    /// The width of attention's output, which is that of the queries.
    pub attn_out: usize,
    /// The inner width of the feed-forward layer.
    pub inner: usize,
    /// Whether that has a gate.
    pub gated: bool,
    /// Input widths of one layer's matmuls, added up.
    pub inputs: usize,
    /// Their output widths.
    pub outputs: usize,
    /// Rows of the embedding and the head.
    pub vocabulary: usize,
}

impl Local {
    pub(super) fn new(spec: &StepSpec) -> Local {
        let (placement, model) = (&spec.placement, spec.model.dimensions());
        let tokens = spec.tokens_per_device();
        let of = |dim: &DimName, size: usize| match is_sliced(placement, dim) {
            true => slice_size(size, dim.parts, placement.tensor_shards()),
            false => size,
        };
        let sharded = placement.tensor.as_ref().is_some_and(|tensor| tensor.sequence_parallel);
        let shards = if sharded { placement.tensor_shards() } else { 1 };
        let (heads, inner) = (of(&HEADS, model.heads), of(&MLP, model.inner));
        let widths = widths(spec);
        let layers = model.layers.max(1);
        let into_inner = |width: &&(usize, usize)| **width == (model.hidden, inner);
        let gates = widths.iter().filter(into_inner).count() / layers;
        let sum = widths.iter().fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        Local {
            tokens,
            norm_tokens: tokens / shards,
            hidden: model.hidden,
            heads,
            attn_out: heads * model.head,
            inner,
            gated: gates > 1,
            inputs: sum.0 / layers,
            outputs: sum.1 / layers,
            vocabulary: of(&VOCAB, model.vocabulary),
        }
    }

    /// The width of queries, keys and values together.
    pub(super) fn projected(&self) -> usize {
        let gates = if self.gated { 2 } else { 1 };
        self.outputs.saturating_sub(2 * self.hidden + gates * self.inner)
    }

    /// The width of keys and values.
    pub(super) fn keys_and_values(&self) -> usize {
        self.projected().saturating_sub(self.attn_out)
    }
}

/// Input and output widths of the matmuls of all layers, of which sliced ones are slices.
fn widths(spec: &StepSpec) -> Vec<(usize, usize)> {
    let mut widths = Vec::new();
    for param in layer_params(spec) {
        // GPT-2's weights are transposed.
        if let ("Conv1D", &[input, output]) | (_, &[output, input]) =
            (param.class, &param.slice_dims()[..])
        {
            widths.extend(std::iter::repeat_n((input, output), param.stack.unwrap_or(1)));
        }
    }
    widths
}

/// Whether tensor parallelism slices dims of a name.
pub(super) fn is_sliced(placement: &Placement, dim: &DimName) -> bool {
    placement.tensor.iter().any(|tensor| tensor.names.iter().any(|name| name == dim.name))
}

/// The parameters of layers.
pub(super) fn layer_params(spec: &StepSpec) -> impl Iterator<Item = &ShardedParam> {
    spec.placement.parameters.iter().filter(|it| it.stack.or(it.layer).is_some())
}
