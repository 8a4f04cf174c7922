//! Logical names of dimensions, which sharding rules map to mesh axes.

/// The logical name of a dimension, and what it consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DimName {
    /// Its name in rules.
    pub name: &'static str,
    /// The number of equal parts that are fused along it, such as 3 for queries, keys and values.
    pub parts: usize,
    /// The number of units in each part that stay whole on a device, such as heads; `None` if each
    /// element is one.
    pub units: Option<usize>,
    /// Whether it may be padded, so that any number of devices shards it.
    pub padded: bool,
}

impl DimName {
    const fn new(name: &'static str) -> DimName {
        DimName { name, parts: 1, units: None, padded: false }
    }

    /// Of units that stay whole.
    pub fn of(self, units: usize) -> DimName {
        DimName { units: Some(units), ..self }
    }

    /// Of several parts that are fused.
    pub fn fused(self, parts: usize) -> DimName {
        DimName { parts, ..self }
    }
}

/// The tokens of the vocabulary.
pub const VOCAB: DimName = DimName { padded: true, ..DimName::new("vocab") };
/// The width between layers.
pub const EMBED: DimName = DimName::new("embed");
/// The query heads, all of one projection.
pub const HEADS: DimName = DimName::new("heads");
/// The key and value heads.
pub const KV_HEADS: DimName = DimName::new("kv_heads");
/// The inner width of a feed-forward layer.
pub const MLP: DimName = DimName::new("mlp");
/// The positions of a sequence in a table.
pub const POSITIONS: DimName = DimName::new("positions");
/// The scale or offset of a norm.
pub const NORM: DimName = DimName::new("norm");
/// The sequences of a batch, of activations.
pub const BATCH: DimName = DimName::new("batch");
/// The tokens of a sequence, of activations.
pub const SEQUENCE: DimName = DimName::new("sequence");
/// The tokens of norms and residuals.
pub const NORM_SEQUENCE: DimName = DimName::new("norm_sequence");

/// All names.
pub(crate) const ALL: [DimName; 10] =
    [VOCAB, EMBED, HEADS, KV_HEADS, MLP, POSITIONS, NORM, BATCH, SEQUENCE, NORM_SEQUENCE];
