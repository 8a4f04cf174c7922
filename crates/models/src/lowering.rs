//! Lowering options: forms of the same mathematics, of which platforms want different ones.

/// Which of several forms that agree a model is lowered to. The default is the plain one of each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoweringOptions {
    /// The vocabulary is padded to whole tiles where it is the width of a large matmul.
    pub padded_vocabulary: bool,
    /// The loss takes many tokens at a time, as memory allows.
    pub large_chunks: bool,
    /// The loss is a custom call of the platform.
    pub loss_custom_call: bool,
    /// Attention is a fused kernel, where it can be.
    pub fused_attention: bool,
    /// The residual stream is `[tokens, width]` rather than `[batch, sequence, width]`.
    pub flatten_batch: bool,
    /// Activation functions are recomputed in the backward pass rather than saved.
    pub recomputed_activations: bool,
    /// The last of unrolled layers saves what it computes where others recompute it: its backward
    /// pass is next.
    pub last_layer_kept: bool,
    /// A projection of several parts is one matmul for each, rather than one whose result is split.
    pub split_projections: bool,
    /// Gradients are written before they are summed over tokens.
    pub separate_sums: bool,
    /// Large parameters are updated each by itself.
    pub separate_updates: bool,
}
