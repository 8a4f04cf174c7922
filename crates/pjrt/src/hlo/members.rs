//! The devices of a collective: those of its first group, since all groups are alike.
//!
//! Libtpu splits a collective over several slices into one inside every slice, whose groups count
//! the devices of one slice, and a transfer by the hosts between equal devices of all slices: a
//! pair of `send` and `recv` with attributes of its multislice runtime, Megascale.

use std::collections::HashMap;

use fullshard_core::CollectiveKind;

use super::collectives::kind_of;
use super::devices::ReplicaGroups;
use super::instruction::Instruction;

/// The devices that communicate in a collective, by partition number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Members {
    /// All devices of the program.
    All,
    /// The devices of one group.
    Group(Vec<usize>),
    /// One device of each of N slices; `None` for all slices.
    OnePerSlice(Option<usize>),
}

impl Members {
    /// The devices of the first group of an instruction.
    pub(super) fn of(instruction: &Instruction) -> Members {
        if transfer_kind(instruction).is_some() {
            return Members::OnePerSlice(transfer_slices(instruction));
        }
        if let Some(&(source, _)) = instruction.source_target_pairs.first() {
            return Members::Group(connected(&instruction.source_target_pairs, source));
        }
        let first = match &instruction.replica_groups {
            ReplicaGroups::Listed(groups) => groups.first().cloned(),
            ReplicaGroups::Regular { group_size, devices } => {
                Some(devices.to_vec().into_iter().take(*group_size).collect())
            }
        };
        first.map_or(Members::All, Members::Group)
    }
}

/// The collective that a transfer between slices is part of. Of the pair, only the `recv` counts.
pub(super) fn transfer_kind(instruction: &Instruction) -> Option<CollectiveKind> {
    let transfer = instruction.frontend_attributes.get("_xla_megascale_transfer_type")?;
    let name = transfer.to_ascii_lowercase().replace('_', "-");
    let kind = kind_of(&name).unwrap_or(CollectiveKind::CollectivePermute);
    (instruction.opcode == "recv").then_some(kind)
}

/// The number of slices of a transfer, from a target such as `{1,2}x{0:63}`: slices and devices,
/// singly or as ranges.
pub(super) fn transfer_slices(instruction: &Instruction) -> Option<usize> {
    let target = instruction.frontend_attributes.get("_xla_megascale_target")?;
    let (slices, _) = target.strip_prefix('{')?.split_once('}')?;
    let counts = slices.split(',').map(|range| {
        let (first, last) = range.split_once(':').unwrap_or((range, range));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        last.checked_sub(first)?.checked_add(1)
    });
    counts.sum()
}

/// The devices that pairs connect to one of them, in the order of the chain or cycle.
fn connected(pairs: &[(usize, usize)], start: usize) -> Vec<usize> {
    let targets: HashMap<usize, usize> = pairs.iter().copied().collect();
    let sources: HashMap<usize, usize> = pairs.iter().map(|&(from, to)| (to, from)).collect();
    let follow = |next: &HashMap<usize, usize>, from| {
        let chain = std::iter::successors(Some(from), |at| next.get(at).copied());
        let chain = chain.enumerate().take_while(|&(step, at)| step == 0 || at != from);
        chain.take(pairs.len() + 1).map(|(_, at)| at).collect::<Vec<_>>()
    };
    let first = follow(&sources, start).last().copied().unwrap_or(start);
    follow(&targets, first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_connect_chains_and_cycles() {
        let rings = [(0, 2), (1, 3), (2, 4), (3, 5), (4, 0), (5, 1)];
        assert_eq!(connected(&rings, 0), [2, 4, 0]);
        assert_eq!(connected(&[(2, 3), (1, 2), (0, 1), (5, 6)], 2), [0, 1, 2, 3]);
        assert_eq!(connected(&[(4, 4)], 4), [4]);
        // Two devices send to one: a malformed permute, which still ends.
        assert!(connected(&[(0, 1), (1, 2), (2, 1)], 0).len() <= 4);
    }
}
