//! The devices of a collective: those of its first group, since all groups are alike.
//!
//! Libtpu splits a collective over several slices into one inside every slice, whose groups count
//! the devices of one slice, and a transfer by the hosts between equal devices of all slices: a
//! pair of `send` and `recv` with attributes of its multislice runtime, Megascale.
//!
//! Between processes on CPU collectives are custom calls, with their groups in the backend config.

use std::collections::HashMap;

use fullshard_core::CollectiveKind;

use super::collectives::kind_of;
use super::devices::ReplicaGroups;
use super::instruction::Instruction;
use crate::calls::MPI_PREFIX;

/// The devices that communicate in a collective, by partition number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Members {
    /// All devices of the program.
    All,
    /// The devices of one group.
    Group(Vec<usize>),
    /// One device of each of N slices; `None` for all slices.
    OnePerSlice(Option<usize>),
    /// One device of each of these processes.
    OnePerProcess(Vec<usize>),
}

impl Members {
    /// The devices of the first group of an instruction.
    pub(super) fn of(instruction: &Instruction) -> Members {
        if transfer_kind(instruction).is_some() {
            return Members::OnePerSlice(transfer_slices(instruction));
        }
        if process_kind(instruction).is_some() {
            return Members::of_process_call(instruction);
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

    fn of_process_call(instruction: &Instruction) -> Members {
        if let Some(mut group) = listed(instruction, "group") {
            group.truncate(process_group_size(instruction).unwrap_or(group.len()));
            return Members::OnePerProcess(group);
        }
        let pairs = listed(instruction, "pairs").unwrap_or_default();
        let pairs: Vec<_> = pairs.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        let first = pairs.first().map(|&(source, _)| source);
        first.map_or(Members::All, |source| Members::Group(connected(&pairs, source)))
    }
}

/// The kind of a collective between processes.
pub(super) fn process_kind(instruction: &Instruction) -> Option<CollectiveKind> {
    let name = instruction.custom_call_target.as_deref()?.strip_prefix(MPI_PREFIX)?;
    let permute = Some(CollectiveKind::CollectivePermute).filter(|_| name == "permute");
    permute.or_else(|| kind_of(&name.replace('_', "-")))
}

/// Number of processes per group of a collective between them.
pub(super) fn process_group_size(instruction: &Instruction) -> Option<usize> {
    let (_, rest) = instruction.backend_config_str()?.split_once("group_size = ")?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// A list of a custom call's config, such as `group = array<i64: 0, 1>`.
fn listed(instruction: &Instruction, name: &str) -> Option<Vec<usize>> {
    let start = format!("{name} = array<i64: ");
    let (_, rest) = instruction.backend_config_str()?.split_once(&start)?;
    rest.split_once('>')?.0.split(", ").map(|number| number.parse().ok()).collect()
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
