//! The kinds of collectives.

use std::fmt;

/// A kind of communication between devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CollectiveKind {
    /// Every device gets the shards of all.
    AllGather,
    /// Every device gets its shard of the sum.
    ReduceScatter,
    /// Every device gets the sum.
    AllReduce,
    /// Every device sends a block to each other.
    AllToAll,
    /// As `AllToAll`, with blocks of unequal size.
    RaggedAllToAll,
    /// Every device sends to one other.
    CollectivePermute,
    /// One device sends to all.
    Broadcast,
}

impl CollectiveKind {
    /// All kinds.
    pub const ALL: [CollectiveKind; 7] = [
        CollectiveKind::AllGather,
        CollectiveKind::ReduceScatter,
        CollectiveKind::AllReduce,
        CollectiveKind::AllToAll,
        CollectiveKind::RaggedAllToAll,
        CollectiveKind::CollectivePermute,
        CollectiveKind::Broadcast,
    ];

    /// The name, which is XLA's opcode.
    pub fn name(self) -> &'static str {
        match self {
            CollectiveKind::AllGather => "all-gather",
            CollectiveKind::ReduceScatter => "reduce-scatter",
            CollectiveKind::AllReduce => "all-reduce",
            CollectiveKind::AllToAll => "all-to-all",
            CollectiveKind::RaggedAllToAll => "ragged-all-to-all",
            CollectiveKind::CollectivePermute => "collective-permute",
            CollectiveKind::Broadcast => "collective-broadcast",
        }
    }
}

impl fmt::Display for CollectiveKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
