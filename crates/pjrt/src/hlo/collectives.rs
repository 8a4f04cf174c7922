//! The collectives of a module, counted for a table.

use fullshard_core::CollectiveKind;
use std::collections::{BTreeMap, HashMap, HashSet};

use super::element::ElementType;
use super::instruction::Instruction;
use super::members::{Members, process_group_size, process_kind, transfer_kind, transfer_slices};
use super::module::{Computation, ComputationId, Module};
use super::runs::{Runs, only_refers, runs_in_place, runs_per_launch};

/// The collective kind of an opcode, without a suffix such as `-start`.
pub(super) fn kind_of(opcode: &str) -> Option<CollectiveKind> {
    CollectiveKind::ALL.into_iter().find(|kind| kind.name() == opcode)
}

/// Identical collectives of one computation: a row of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectiveSummary {
    /// Their kind.
    pub kind: CollectiveKind,
    /// Whether other work may run between start and done.
    pub asynchronous: bool,
    /// The computation they run in: the entry or the body of a loop or branch, including its
    /// fusions and wrappers.
    pub computation: String,
    /// The communicated element type; `None` if there are several.
    pub element: Option<ElementType>,
    /// Number of collectives.
    pub count: u64,
    /// Per-device bytes of the full tensor of one of them: of the result, or for a
    /// reduce-scatter, whose result is a shard, of the operand. Compilers may pad it. `None` if an
    /// element type is unknown.
    pub bytes: Option<u64>,
    /// Number of devices per group, of pairs of a permutation, or of slices of a transfer between
    /// them; `None` if the module does not list them, which means all devices.
    pub group_size: Option<usize>,
    /// Whether the computation is part of a loop.
    pub in_loop: bool,
    /// Number of runs of the computation per launch; `None` if unknown.
    pub runs: Option<u64>,
}

/// One collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collective {
    /// Its kind.
    pub kind: CollectiveKind,
    /// Whether other work may run between its start and done.
    pub asynchronous: bool,
    /// The communicated element type; `None` if there are several.
    pub element: Option<ElementType>,
    /// Per-device bytes of the full tensor, as in [`CollectiveSummary::bytes`].
    pub bytes: Option<u64>,
    /// The devices of one group.
    pub members: Members,
    /// The id of the chain of instructions that implement it, if several do.
    pub chain: Option<String>,
    /// The path of the op in the frontend, as in [`Metadata::op_name`](super::Metadata): of the
    /// first, if several were combined. Of a collective that the partitioner inserted it is the
    /// path of the op that needed it.
    pub op_name: String,
    /// Number of collectives that the compiler combined into it.
    pub combined: usize,
}

/// The collective that an instruction starts, itself or through a call in place.
pub fn collective(module: &Module, instruction: &Instruction) -> Option<Collective> {
    if let Some(computation) = module.computation(instruction.computation)
        && let Some(key) = key(computation, instruction)
    {
        let chain = key.chain.map(|(chain, channel)| format!("{chain} {channel:?}"));
        return Some(Collective {
            kind: key.kind,
            asynchronous: key.asynchronous,
            element: key.element.map(ElementType::from_number),
            bytes: key.bytes,
            members: Members::of(instruction),
            chain,
            op_name: first_name(&instruction.metadata.op_name),
            combined: combined(key.kind, instruction),
        });
    }
    let called = instruction.called.iter().filter(|_| runs_in_place(instruction));
    let called = called.filter_map(|&id| module.computation(id));
    let mut inside = called.flat_map(Computation::instructions);
    let found = inside.find_map(|inner| collective(module, inner))?;
    let asynchronous = found.asynchronous || instruction.opcode == "async-start";
    Some(Collective { asynchronous, ..found })
}

/// The path around and the names of a combined collective, which are written `path/(first:second)`.
fn combined_names(op_name: &str) -> Option<(&str, std::str::Split<'_, char>)> {
    let (path, names) = op_name.strip_suffix(')')?.split_once('(')?;
    Some((path, names.split(':')))
}

/// The path of the first of what was combined.
fn first_name(op_name: &str) -> String {
    match combined_names(op_name) {
        Some((path, mut names)) => format!("{path}{}", names.next().unwrap_or_default()),
        None => op_name.to_owned(),
    }
}

/// The number of collectives in one, by its operands or by its name: some compilers concatenate the
/// operands. An all-to-all has an operand per device.
fn combined(kind: CollectiveKind, instruction: &Instruction) -> usize {
    let operands = match kind {
        CollectiveKind::AllToAll => 1,
        _ => instruction.operands.len().max(1),
    };
    let names = combined_names(&instruction.metadata.op_name);
    operands.max(names.map_or(1, |(_, names)| names.count()))
}

/// What identifies identical collectives.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    kind: CollectiveKind,
    asynchronous: bool,
    /// As its number, which is ordered.
    element: Option<i32>,
    bytes: Option<u64>,
    group_size: Option<usize>,
    /// The TPU compiler splits one asynchronous collective into a chain of fusions, each with a
    /// copy of the instruction.
    chain: Option<(String, Option<i64>)>,
}

type Counts = BTreeMap<Key, u64>;

/// The collectives of a launch: the entry's first, then those of loops and branches.
pub fn collectives(module: &Module) -> Vec<CollectiveSummary> {
    let runs = runs_per_launch(module);
    let owners = owners(module, &runs);
    let counts = counts(module);
    let owned = module.computations().iter().rev().filter(|it| owners.contains(&it.id));
    owned
        .filter_map(|computation| Some((computation, counts.get(&computation.id)?)))
        .flat_map(|(computation, counts)| summaries(computation, counts, &runs))
        .collect()
}

/// The entry, and the computations that are reached but not inlined into their caller.
fn owners(module: &Module, runs: &Runs) -> HashSet<ComputationId> {
    let reached = module.computations().iter().filter(|it| runs.is_reached(it.id));
    let instructions = reached.flat_map(Computation::instructions);
    let separate = instructions.filter(|it| !runs_in_place(it) && !only_refers(it));
    let called = separate.flat_map(|it| it.called.iter().copied());
    called.chain([module.entry().id]).collect()
}

/// The collectives of each computation, including those of computations called in place. Callees
/// come before their callers, so one pass is enough.
fn counts(module: &Module) -> HashMap<ComputationId, Counts> {
    let mut all: HashMap<ComputationId, Counts> = HashMap::new();
    for computation in module.computations() {
        let mut counts = Counts::new();
        for instruction in computation.instructions() {
            if let Some(key) = key(computation, instruction) {
                add(&mut counts, key, 1);
            } else if runs_in_place(instruction) {
                let asynchronous = instruction.opcode == "async-start";
                for inner in instruction.called.iter().filter_map(|called| all.get(called)) {
                    for (key, &count) in inner {
                        let asynchronous = key.asynchronous || asynchronous;
                        add(&mut counts, Key { asynchronous, ..key.clone() }, count);
                    }
                }
            }
        }
        if !counts.is_empty() {
            all.insert(computation.id, counts);
        }
    }
    all
}

fn add(counts: &mut Counts, key: Key, count: u64) {
    let chained = key.chain.is_some();
    let total = counts.entry(key).or_insert(0);
    *total = if chained { 1 } else { total.saturating_add(count) };
}

fn key(computation: &Computation, instruction: &Instruction) -> Option<Key> {
    let chain = instruction.frontend_attributes.get("chain_id");
    let transfer = transfer_kind(instruction);
    let kind = match instruction.collective_kind().or(transfer)? {
        CollectiveKind::AllReduce if is_scattered(computation, instruction) => {
            CollectiveKind::ReduceScatter
        }
        kind => kind,
    };
    let pairs = instruction.source_target_pairs.len();
    Some(Key {
        kind,
        asynchronous: chain.is_some()
            || transfer.is_some()
            || process_kind(instruction).is_some()
            || instruction.opcode.ends_with("-start"),
        element: element(computation, instruction).map(ElementType::number),
        bytes: full_bytes(computation, instruction),
        group_size: Some(pairs)
            .filter(|&pairs| pairs > 0)
            .or(transfer.and_then(|_| transfer_slices(instruction)))
            .or(process_group_size(instruction))
            .or(instruction.replica_groups.group_size()),
        chain: chain.map(|chain| (chain.clone(), instruction.channel_id)),
    })
}

/// Whether a computation only keeps a slice of this all-reduce: the TPU compiler emits a
/// reduce-scatter as such a fusion.
fn is_scattered(computation: &Computation, sum: &Instruction) -> bool {
    let slice = origin(computation, computation.root());
    let sliced = computation.operands(slice).next();
    slice.opcode == "dynamic-slice"
        && sliced.is_some_and(|sliced| origin(computation, sliced).id == sum.id)
}

/// The instruction behind bitcasts, reshapes and copies.
fn origin<'a>(computation: &'a Computation, mut instruction: &'a Instruction) -> &'a Instruction {
    for _ in 0..8 {
        let passes = matches!(instruction.opcode.as_str(), "bitcast" | "reshape" | "copy");
        match computation.operands(instruction).next() {
            Some(operand) if passes => instruction = operand,
            _ => break,
        }
    }
    instruction
}

/// The element type that is communicated.
fn element(computation: &Computation, instruction: &Instruction) -> Option<ElementType> {
    if let ("recv", Some([received, ..])) =
        (instruction.opcode.as_str(), instruction.shape.members())
    {
        return received.as_array().map(|array| array.element);
    }
    let arrays = computation.operands(instruction).map(|operand| operand.shape.as_array());
    let mut elements = arrays.map(|array| array.map(|array| array.element));
    let first = elements.next()?;
    first.filter(|_| elements.all(|other| other == first))
}

fn full_bytes(computation: &Computation, instruction: &Instruction) -> Option<u64> {
    let is_scatter = instruction.collective_kind() == Some(CollectiveKind::ReduceScatter);
    match (instruction.opcode.as_str(), instruction.shape.members()) {
        _ if is_scatter => {
            let sizes = computation.operands(instruction).map(|operand| operand.shape.byte_size());
            sizes.sum()
        }
        // What arrives is followed by a context and a token. Of a reduce-scatter it is a shard.
        ("recv", Some([received, ..])) => {
            let shards = match transfer_kind(instruction)? {
                CollectiveKind::ReduceScatter => transfer_slices(instruction)?,
                _ => 1,
            };
            received.byte_size()?.checked_mul(shards as u64)
        }
        // An all-reduce-start has the shape of its result; others return their operands, their
        // results, and scratch.
        ("all-reduce-start", _) => instruction.shape.byte_size(),
        (opcode, Some([_, results, ..])) if opcode.ends_with("-start") => results.byte_size(),
        _ => instruction.shape.byte_size(),
    }
}

fn summaries(computation: &Computation, counts: &Counts, runs: &Runs) -> Vec<CollectiveSummary> {
    // Chains were only needed for counting; several of them may be one row.
    let mut rows: BTreeMap<Key, u64> = BTreeMap::new();
    for (key, count) in counts {
        let row = rows.entry(Key { chain: None, ..key.clone() }).or_insert(0);
        *row = row.saturating_add(*count);
    }
    let summary = |(key, count): (Key, u64)| CollectiveSummary {
        kind: key.kind,
        asynchronous: key.asynchronous,
        computation: computation.name.clone(),
        element: key.element.map(ElementType::from_number),
        count,
        bytes: key.bytes,
        group_size: key.group_size,
        in_loop: runs.in_loop(computation.id),
        runs: runs.count(computation.id),
    };
    rows.into_iter().map(summary).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combined_collectives_are_named_after_the_first() {
        assert_eq!(first_name("call/(backward.mlp.up:mlp.down)"), "call/backward.mlp.up");
        assert_eq!(first_name("while/body/mlp.down"), "while/body/mlp.down");
        assert_eq!(combined_names("(a:b:c)").map(|(_, names)| names.count()), Some(3));
        assert!(combined_names("a").is_none());
    }
}
