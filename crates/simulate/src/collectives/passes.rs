//! What a collective does along one dimension of a torus after another.

use fullshard_core::CollectiveKind;
use fullshard_plan::Side;
use std::ops::Range;

/// An all-gather or reduce-scatter along one dimension.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pass {
    /// The dimension, by its place among those that a group covers.
    pub dim: usize,
    /// Members of a group along it.
    pub length: usize,
    /// Links from one member to the next.
    pub stride: usize,
    /// Whether the last is linked to the first.
    pub ring: bool,
    /// Whether shards are summed on their way, rather than left behind.
    pub scatter: bool,
    /// Bytes of a shard.
    pub shard: f64,
}

/// The passes of a stream that starts with a dimension: a reduce-scatter along each, of what the
/// one before left; an all-gather in reverse. `None` for other collectives.
pub fn passes(kind: CollectiveKind, sides: &[Side], bytes: f64, first: usize) -> Option<Vec<Pass>> {
    let mut left = bytes;
    let scatter = (0..sides.len()).map(|offset| {
        let dim = (first + offset) % sides.len();
        let Side { length, stride, ring, .. } = sides[dim];
        left /= length as f64;
        Pass { dim, length, stride, ring, scatter: true, shard: left }
    });
    let scatter: Vec<Pass> = scatter.collect();
    let gather = scatter.iter().rev().map(|&pass| Pass { scatter: false, ..pass });
    match kind {
        CollectiveKind::ReduceScatter => Some(scatter),
        CollectiveKind::AllGather => Some(gather.collect()),
        CollectiveKind::AllReduce => Some(scatter.iter().copied().chain(gather).collect()),
        _ => None,
    }
}

impl Pass {
    /// The member that a coordinate is.
    pub fn member(&self, coordinate: usize) -> usize {
        coordinate % (self.length * self.stride) / self.stride
    }

    /// Hops of the messages that a member sends off by itself in a direction, furthest first.
    pub fn origins(&self, member: usize, forward: bool) -> Range<usize> {
        let last = self.length - 1;
        match (self.ring, self.scatter) {
            (true, _) => self.length / 2..self.length / 2 + 1,
            // Its own shard, to the end of the line; nothing if it is the end.
            (false, false) => {
                let to_end = if forward { last - member } else { member };
                to_end.max(1)..to_end + 1
            }
            // Sums for all others start at the ends of the line.
            (false, true) => match member == if forward { 0 } else { last } {
                true => 1..self.length,
                false => 0..0,
            },
        }
    }

    /// Whether only half of a shard goes over a hop, by the number of hops left: the chip opposite in a
    /// ring has the other half from the other side.
    pub fn is_half(&self, hops: usize) -> bool {
        let opposite = if self.scatter { self.length / 2 } else { 1 };
        self.ring && self.length.is_multiple_of(2) && hops == opposite
    }

    /// Messages that a member has at the end of the pass.
    pub fn expected(&self, member: usize) -> u32 {
        let count = match (self.ring, self.scatter) {
            (true, true) => 2,
            // Both halves of the one opposite count.
            (true, false) if self.length.is_multiple_of(2) => self.length,
            (_, false) => self.length - 1,
            (false, true) => usize::from(member > 0) + usize::from(member + 1 < self.length),
        };
        count as u32
    }
}
