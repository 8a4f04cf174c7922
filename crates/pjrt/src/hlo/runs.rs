//! Number of runs of each computation per launch.

use std::collections::{HashMap, HashSet};

use super::instruction::Instruction;
use super::loops::{condition_and_body, trip_count};
use super::module::{ComputationId, Module};

/// Number of runs of the computations of a module per launch.
#[derive(Clone, Debug, Default)]
pub struct Runs {
    counts: HashMap<ComputationId, Option<u64>>,
    in_loop: HashSet<ComputationId>,
}

impl Runs {
    /// Number of runs of a computation; `None` if data-dependent or unknown.
    ///
    /// A computation that is applied to elements (the reducer of a reduction) has no count.
    pub fn count(&self, computation: ComputationId) -> Option<u64> {
        self.counts.get(&computation).copied().flatten()
    }

    /// Whether a computation is called.
    pub fn is_reached(&self, computation: ComputationId) -> bool {
        self.counts.contains_key(&computation)
    }

    /// Whether a computation is part of a loop.
    pub fn in_loop(&self, computation: ComputationId) -> bool {
        self.in_loop.contains(&computation)
    }

    fn add(&mut self, computation: ComputationId, times: Option<u64>) {
        let count = self.counts.entry(computation).or_insert(Some(0));
        *count = count.zip(times).map(|(count, times)| count.saturating_add(times));
    }
}

/// Counts the runs of each computation per launch.
pub fn runs_per_launch(module: &Module) -> Runs {
    let mut runs = Runs::default();
    runs.add(module.entry().id, Some(1));
    // Callees come before callers, so in reverse order every count is complete when it is used.
    for computation in module.computations().iter().rev() {
        if !runs.is_reached(computation.id) {
            continue;
        }
        let count = runs.count(computation.id);
        for instruction in computation.instructions() {
            let in_loop = runs.in_loop(computation.id) || instruction.opcode == "while";
            for (called, times) in calls(module, instruction) {
                let product = count.zip(times).map(|(count, times)| count.saturating_mul(times));
                runs.add(called, product);
                if in_loop {
                    runs.in_loop.insert(called);
                }
            }
        }
    }
    runs
}

/// Whether the called computation runs once, inside the caller. A custom call has one on TPUs: what
/// their SparseCores run.
pub(super) fn runs_in_place(instruction: &Instruction) -> bool {
    matches!(instruction.opcode.as_str(), "fusion" | "call" | "async-start" | "custom-call")
}

/// Whether an instruction refers to a computation that another one runs.
pub(super) fn only_refers(instruction: &Instruction) -> bool {
    matches!(instruction.opcode.as_str(), "async-update" | "async-done")
}

/// The computations an instruction runs, with their counts.
fn calls(module: &Module, instruction: &Instruction) -> Vec<(ComputationId, Option<u64>)> {
    if only_refers(instruction) {
        return Vec::new();
    }
    if let ("while", Some((condition, body))) =
        (instruction.opcode.as_str(), condition_and_body(module, instruction))
    {
        let trips = trip_count(module, instruction);
        let tests = trips.map(|trips| trips.saturating_add(1));
        return vec![(condition.id, tests), (body.id, trips)];
    }
    let times = runs_in_place(instruction).then_some(1);
    instruction.called.iter().map(|&called| (called, times)).collect()
}
