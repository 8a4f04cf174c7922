//! The collectives of a compiled step by the modules that cause them.
//!
//! Where the compiler shards tensors, a collective has the path of the op that it was inserted for:
//! so an annotation that is missing or wrong is found.

use super::paths::{Owner, Paths};
use super::time::is_end;
use crate::describe::axes_of;
use crate::report::ModuleCollectives;
use fullshard_graph::Mesh;
use fullshard_pjrt::hlo::{
    Collective, Computation, ComputationId, Members, Module, collective, runs_per_launch,
};
use std::collections::HashSet;

/// The collectives per step of a program of one or several steps, most bytes first. Those in loops
/// of unknown length count once.
pub fn by_module(
    module: &Module,
    mesh: &Mesh,
    paths: &Paths,
    steps: usize,
) -> Vec<ModuleCollectives> {
    let runs = runs_per_launch(module);
    let inlined = inlined(module);
    let mut rows: Vec<ModuleCollectives> = Vec::new();
    let computations = module.computations().iter();
    for computation in computations.filter(|it| runs.is_reached(it.id) && !inlined.contains(&it.id))
    {
        let times = runs.count(computation.id).unwrap_or(1);
        for (found, owner) in of_computation(module, computation, paths) {
            let new = row(mesh, &found, owner, times);
            match rows.iter_mut().find(|row| row.is_like(&new)) {
                Some(row) => {
                    row.count += new.count;
                    row.bytes = row.bytes.saturating_add(new.bytes);
                    row.combined = row.combined.max(new.combined);
                }
                None => rows.push(new),
            }
        }
    }
    for row in &mut rows {
        row.count = row.count.div_ceil(steps as u64);
        row.bytes /= steps as u64;
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.bytes));
    rows
}

/// The computations of fusions and asynchronous wrappers, which belong to their callers.
fn inlined(module: &Module) -> HashSet<ComputationId> {
    let wrappers =
        module.instructions().filter(|it| matches!(it.opcode.as_str(), "fusion" | "async-start"));
    wrappers.flat_map(|it| it.called.iter().copied()).collect()
}

/// The collectives that a computation starts, each with its owner; a chain of instructions is one.
fn of_computation(
    module: &Module,
    computation: &Computation,
    paths: &Paths,
) -> Vec<(Collective, Owner)> {
    let owners = paths.of(computation);
    let mut chains = HashSet::new();
    let starts = computation.instructions().iter();
    let starts = starts.filter(|it| !is_end(it) && it.opcode != "call");
    let found = starts.filter_map(|instruction| {
        let found = collective(module, instruction)?;
        let is_new = found.chain.as_ref().is_none_or(|chain| chains.insert(chain.clone()));
        let around = owners.get(&instruction.id).cloned().unwrap_or_default();
        let owner = match paths.read(&found.op_name) {
            // The backward pass of no module says less than what surrounds it there.
            Some(own) if !own.module.is_empty() || !around.backward => {
                Owner { backward: own.backward || around.backward, ..own }
            }
            _ => around,
        };
        is_new.then_some((found, owner))
    });
    found.collect()
}

fn row(mesh: &Mesh, found: &Collective, owner: Owner, times: u64) -> ModuleCollectives {
    let (axis, group) = match &found.members {
        Members::All => {
            let all: Vec<usize> = (0..mesh.devices()).collect();
            (axes_of(mesh, &all), all.len())
        }
        Members::Group(group) => (axes_of(mesh, group), group.len()),
        Members::OnePerSlice(slices) => ("slices".to_owned(), slices.unwrap_or(0)),
        Members::OnePerProcess(processes) => {
            let devices = mesh.in_process().devices();
            let group: Vec<usize> = processes.iter().map(|process| process * devices).collect();
            (axes_of(mesh, &group), group.len())
        }
    };
    ModuleCollectives {
        module: owner.module,
        backward: owner.backward,
        kind: found.kind.to_string(),
        axis,
        group,
        count: times,
        bytes: found.bytes.unwrap_or(0).saturating_mul(times),
        combined: found.combined,
    }
}
