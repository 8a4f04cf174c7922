//! Lowering options: equivalent forms of the same computation, chosen per platform.

/// Which of several equivalent forms a model is lowered to. The default is the plain form of each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoweringOptions {
    /// The vocabulary is padded to a multiple of the tile size where it is a dimension of a large
    /// matmul.
    pub padded_vocabulary: bool,
    /// The most bytes of logits that the loss computes at once, in `f32`, if not
    /// [`loss::CHUNK_BYTES`](crate::layers::loss::CHUNK_BYTES).
    pub chunk_bytes: Option<usize>,
    /// The loss is a custom call of the platform.
    pub loss_custom_call: bool,
    /// Attention is a fused kernel, where supported.
    pub fused_attention: bool,
    /// Attention is custom calls, where supported: see
    /// [`ATTENTION`](crate::layers::attention::ATTENTION).
    pub attention_custom_call: bool,
    /// Norms, GELU and sums over tokens are kernels of our own for NVIDIA GPUs, where supported.
    pub kernels: bool,
    /// Attention is computed by its definition, and saves the probabilities of all pairs.
    pub eager_attention: bool,
    /// The residual stream is `[tokens, width]` rather than `[batch, sequence, width]`.
    pub flatten_batch: bool,
    /// Activation functions are recomputed in the backward pass instead of saved.
    pub recomputed_activations: bool,
    /// The last unrolled layer is not rematerialized: its backward pass comes next.
    pub save_last_layer: bool,
    /// A fused projection is one matmul per part, rather than one whose output is split.
    pub split_projections: bool,
    /// Norms are materialized before the matmuls that read them, instead of being computed in each.
    pub separate_norms: bool,
    /// Gradients are materialized before they are summed over tokens.
    pub separate_sums: bool,
    /// Large parameters are updated separately.
    pub separate_updates: bool,
}

impl LoweringOptions {
    /// The same without what only NVIDIA GPUs run: cuDNN's attention and our kernels.
    pub fn without_kernels(self) -> LoweringOptions {
        LoweringOptions { fused_attention: false, kernels: false, ..self }
    }

    /// The same with attention, and the projection and the norm before it, as transformers' eager
    /// modules compute them.
    pub fn eager(self) -> LoweringOptions {
        LoweringOptions {
            attention_custom_call: false,
            eager_attention: true,
            split_projections: false,
            separate_norms: false,
            ..self.without_kernels()
        }
    }
}
