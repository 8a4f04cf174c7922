//! Names of values that a rematerialization policy can save while the rest of a layer is
//! recomputed: outputs of matmuls and attention that the backward pass needs, after the bias and
//! the residual are added, so that these can be fused into the matmul epilogue.

/// Queries, keys and values: the inputs of attention.
pub const QKV: &str = "qkv";

/// The output of attention, before the output projection.
pub const ATTN_OUT: &str = "attn_out";

/// The softmax statistics that a fused kernel saves for its backward pass.
pub const ATTN_STATS: &str = "attn_stats";

/// The residual stream between attention and the MLP.
pub const ATTN_RESIDUAL: &str = "attn_residual";

/// The input of the activation function of the MLP.
pub const MLP_IN: &str = "mlp_in";

/// All names.
pub const ALL: &[&str] = &[QKV, ATTN_OUT, ATTN_STATS, ATTN_RESIDUAL, MLP_IN];
