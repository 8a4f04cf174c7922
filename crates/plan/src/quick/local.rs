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
    /// Attention heads.
    pub heads: usize,
    /// The inner width of the feed-forward layer.
    pub inner: usize,
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
        Local {
            tokens,
            norm_tokens: tokens / shards,
            heads: of(&HEADS, model.heads),
            inner: of(&MLP, model.inner),
            vocabulary: of(&VOCAB, model.vocabulary),
        }
    }
}

/// Whether tensor parallelism slices dims of a name.
pub(super) fn is_sliced(placement: &Placement, dim: &DimName) -> bool {
    placement.tensor.iter().any(|tensor| tensor.names.iter().any(|name| name == dim.name))
}

/// The parameters of layers.
pub(super) fn layer_params(spec: &StepSpec) -> impl Iterator<Item = &ShardedParam> {
    spec.placement.parameters.iter().filter(|it| it.stack.or(it.layer).is_some())
}
