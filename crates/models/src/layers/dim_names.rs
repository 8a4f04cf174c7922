//! Logical names of dimensions, which sharding rules map to mesh axes.

/// The tokens of the vocabulary.
pub const VOCAB: &str = "vocab";
/// The width between layers.
pub const EMBED: &str = "embed";
/// The query heads, all of one projection.
pub const HEADS: &str = "heads";
/// The key and value heads.
pub const KV_HEADS: &str = "kv_heads";
/// The inner width of a feed-forward layer.
pub const MLP: &str = "mlp";
/// The positions of a sequence in a table.
pub const POSITIONS: &str = "positions";
/// The scale or offset of a norm.
pub const NORM: &str = "norm";
