//! Names of values that a rematerialization policy can save where all else in a layer is
//! recomputed: what matmuls and attention give and the backward pass needs, with the bias and the
//! residual stream added to it, so that matmuls can end with that.

/// Queries, keys and values, as attention takes them.
pub const QKV: &str = "qkv";

/// What attention gives, before its output projection.
pub const ATTN_OUT: &str = "attn_out";

/// What a fused kernel saves of the softmax for its backward pass.
pub const ATTN_STATS: &str = "attn_stats";

/// The residual stream between attention and the feed-forward part.
pub const ATTN_RESIDUAL: &str = "attn_residual";

/// What goes into the activation function of the feed-forward part.
pub const MLP_IN: &str = "mlp_in";

/// All of them.
pub const ALL: &[&str] = &[QKV, ATTN_OUT, ATTN_STATS, ATTN_RESIDUAL, MLP_IN];
