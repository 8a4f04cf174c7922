//! Forms of the same mathematics, of which platforms want different ones.

/// Which of several forms that agree a model is traced in. The default is the plain one of each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Forms {
    /// The vocabulary is padded to whole tiles where it is the width of a large product.
    pub padded_vocabulary: bool,
    /// The loss takes many tokens at a time, as memory allows.
    pub large_chunks: bool,
    /// The loss is a call of the platform.
    pub called_loss: bool,
    /// Attention is a kernel, where it can be.
    pub fused_attention: bool,
    /// The stream of a model is `[tokens, width]` rather than `[batch, sequence, width]`.
    pub token_rows: bool,
    /// Activation functions are computed again on the way back rather than kept.
    pub recomputed_activations: bool,
    /// The last of layers that are written out keeps what it computes where others compute it
    /// again: its way back is next.
    pub last_layer_kept: bool,
    /// A projection of several parts is one product for each, rather than one that is cut.
    pub split_projections: bool,
    /// Gradients are written before they are summed over tokens.
    pub separate_sums: bool,
    /// Large parameters are updated each by itself.
    pub separate_updates: bool,
}
