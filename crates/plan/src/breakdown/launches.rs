//! Matches kernels to the instructions that launched them.
//!
//! Outside of CUDA graphs the profile records it. Inside of them, where most of a step runs, it
//! records only the graph of a kernel. XLA's own kernels have the name of an instruction, but
//! equal instructions share one kernel, and library kernels have other names. What remains is
//! order: a step launches its instructions in schedule order. So the schedule is walked along with
//! the kernels. XLA's own are anchors; library kernels between two of them belong to the library
//! calls between the two instructions.

use super::kinds::opcodes;
use crate::compiled::is_free;
use fullshard_pjrt::Kernel;
use fullshard_pjrt::hlo::{
    Computation, Instruction, Module, collective, condition_and_body, trip_count,
};
use std::collections::HashMap;

/// How far ahead in the schedule to search for the instruction of a kernel: instructions that
/// launch nothing lie between, such as loops with zero iterations.
const LOOKAHEAD: usize = 1000;

/// The most launches to walk, more than steps have.
const MAX_LAUNCHES: usize = 4_000_000;

/// The instruction of every kernel of a number of steps, where it is known.
pub fn launched<'a>(
    module: &'a Module,
    kernels: &[&Kernel],
    steps: usize,
) -> Vec<Option<&'a Instruction>> {
    Walk::new(module, &Names::new(module), steps).run(kernels)
}

/// Instructions by their names in the profile and as kernels.
struct Names<'a> {
    instructions: HashMap<&'a str, &'a Instruction>,
    kernels: HashMap<String, &'a Instruction>,
}

/// How the instruction of a kernel is known.
#[derive(Clone, Copy, PartialEq)]
enum Match {
    /// By the profile.
    Exact,
    /// By the kernel's name, which equal instructions share.
    Name,
}

impl<'a> Names<'a> {
    fn new(module: &'a Module) -> Names<'a> {
        let launching = || module.instructions().filter(|it| !is_free(it));
        Names {
            instructions: launching().map(|it| (it.name.as_str(), it)).collect(),
            kernels: launching().map(|it| (symbol(&it.name), it)).collect(),
        }
    }

    /// The instruction of a kernel, by the profile or by its name.
    fn of(&self, kernel: &Kernel) -> Option<(&'a Instruction, Match)> {
        let recorded = kernel.op.as_deref().and_then(|op| self.instructions.get(op));
        if let Some(&instruction) = recorded {
            return Some((instruction, Match::Exact));
        }
        // Further kernels of an instruction have a numeric suffix.
        let first = kernel.name.rsplit_once("__").map_or(&*kernel.name, |(first, _)| first);
        let found = self.kernels.get(&*kernel.name).or_else(|| self.kernels.get(first));
        found.map(|&instruction| (instruction, Match::Name))
    }
}

/// An instruction name as a kernel name.
fn symbol(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

/// A walk along the schedule.
struct Walk<'a, 'n> {
    module: &'a Module,
    names: &'n Names<'a>,
    /// The instructions that the steps launch, in order.
    schedule: Vec<&'a Instruction>,
    /// Numbers of their signatures: instructions with the same one may share a kernel.
    signatures: HashMap<*const Instruction, usize>,
    /// The position in the schedule: everything before it has launched.
    position: usize,
    /// Kernels since the last anchor.
    waiting: Vec<usize>,
    found: Vec<Option<&'a Instruction>>,
}

impl<'a, 'n> Walk<'a, 'n> {
    fn new(module: &'a Module, names: &'n Names<'a>, steps: usize) -> Walk<'a, 'n> {
        let mut schedule = Vec::new();
        for _ in 0..steps {
            add_launches(module, module.entry(), &mut schedule);
        }
        let (mut signatures, mut numbers) = (HashMap::new(), HashMap::new());
        for &instruction in &schedule {
            signatures.entry(std::ptr::from_ref(instruction)).or_insert_with(|| {
                let next = numbers.len();
                *numbers.entry(signature(module, instruction)).or_insert(next)
            });
        }
        let (waiting, found) = (Vec::new(), Vec::new());
        Walk { module, names, schedule, signatures, position: 0, waiting, found }
    }

    fn run(mut self, kernels: &[&Kernel]) -> Vec<Option<&'a Instruction>> {
        self.found = vec![None; kernels.len()];
        let mut collectives: Vec<usize> = Vec::new();
        for (i, kernel) in kernels.iter().enumerate() {
            match self.names.of(kernel) {
                Some((instruction, matched)) => self.anchor(kernels, i, instruction, matched),
                None if is_collective(kernel) => collectives.push(i),
                None => self.waiting.push(i),
            }
        }
        self.assign_waiting(kernels, self.schedule.len(), None);
        self.assign_collectives(&collectives);
        self.found
    }

    /// A kernel whose instruction is known, or known up to equal instructions.
    fn anchor(&mut self, kernels: &[&Kernel], i: usize, named: &'a Instruction, matched: Match) {
        let last = self.position.checked_sub(1).map(|last| self.schedule[last]);
        if matched == Match::Exact && last.is_some_and(|last| std::ptr::eq(last, named)) {
            self.found[i] = Some(named);
            return;
        }
        let signature = self.signatures.get(&std::ptr::from_ref(named));
        let mut ahead = self.schedule[self.position..].iter().take(LOOKAHEAD);
        let is_it = |it: &&'a Instruction| match matched {
            Match::Exact => std::ptr::eq(*it, named),
            Match::Name => {
                signature.is_some() && self.signatures.get(&std::ptr::from_ref(*it)) == signature
            }
        };
        match ahead.position(is_it) {
            Some(offset) => {
                let position = self.position + offset;
                let instruction = self.schedule[position];
                self.assign_waiting(kernels, position, Some(instruction));
                self.found[i] = Some(instruction);
                self.position = position + 1;
            }
            None => self.found[i] = Some(named),
        }
    }

    /// Assigns the waiting kernels to the instructions of the schedule up to a position.
    fn assign_waiting(&mut self, kernels: &[&Kernel], until: usize, next: Option<&'a Instruction>) {
        let waiting = std::mem::take(&mut self.waiting);
        let between = self.schedule[self.position..until].iter().copied();
        // A call may be in a fusion that slices one of its operands.
        let is_call = |it: &&Instruction| opcodes(self.module, it).contains(&"custom-call");
        let (calls, own): (Vec<_>, Vec<_>) = between.partition(is_call);
        // Copies launch no kernel of their own.
        let mut copies = own.into_iter();
        let is_copy = |&i: &usize| kernels[i].name.to_ascii_lowercase().starts_with("memcpy");
        let (copied, mut waiting): (Vec<_>, Vec<_>) = waiting.into_iter().partition(is_copy);
        for i in copied {
            self.found[i] = copies.next().or(next);
        }
        for (number, call) in calls.iter().enumerate() {
            let left = calls.len() - number - 1;
            let mut mine = take_one_call(kernels, &waiting, left);
            if left == 0 {
                mine = waiting.len();
            }
            for i in waiting.drain(..mine) {
                self.found[i] = Some(call);
            }
        }
        // Memory cleared for the next kernel, which accumulates into it.
        for i in waiting {
            self.found[i] = next;
        }
    }

    /// Collectives run concurrently with other kernels, in their own order.
    fn assign_collectives(&mut self, kernels: &[usize]) {
        let collectives = self.schedule.iter().filter(|it| collective(self.module, it).is_some());
        let collectives: Vec<&'a Instruction> = collectives.copied().collect();
        if collectives.len() == kernels.len() {
            kernels.iter().zip(collectives).for_each(|(&i, it)| self.found[i] = Some(it));
        }
    }
}

/// Number of waiting kernels of one library call, with `left` calls to come: memset, the kernel,
/// and follow-up kernels.
fn take_one_call(kernels: &[&Kernel], waiting: &[usize], left: usize) -> usize {
    let name = |i: usize| &*kernels[waiting[i]].name;
    let mut work = (0..waiting.len()).filter(|&i| !name(i).starts_with("Memset"));
    let Some(first) = work.next() else { return waiting.len() };
    let is_follow_up = |i: usize| match is_attention(name(first)) {
        true => is_attention(name(i)),
        false => name(i).to_ascii_lowercase().contains("splitk"),
    };
    let rest: Vec<usize> = work.collect();
    let spare = rest.len().saturating_sub(left);
    let mine = rest.iter().take(spare).take_while(|&&i| is_follow_up(i)).last();
    mine.unwrap_or(&first) + 1
}

fn is_attention(kernel: &str) -> bool {
    super::kinds::of_name(kernel) == Some(super::Kind::Attention)
}

fn is_collective(kernel: &Kernel) -> bool {
    super::kinds::of_name(&kernel.name) == Some(super::Kind::Collectives)
}

/// Adds the instructions that a computation launches, in order; loop bodies once per iteration.
fn add_launches<'a>(
    module: &'a Module,
    computation: &'a Computation,
    schedule: &mut Vec<&'a Instruction>,
) {
    for instruction in computation.instructions() {
        let called = || instruction.called.iter().filter_map(|&id| module.computation(id));
        match instruction.opcode.as_str() {
            "while" => {
                let Some((condition, body)) = condition_and_body(module, instruction) else {
                    continue;
                };
                for _ in 0..trip_count(module, instruction).unwrap_or(1) {
                    if schedule.len() > MAX_LAUNCHES {
                        return;
                    }
                    add_launches(module, condition, schedule);
                    add_launches(module, body, schedule);
                }
            }
            "call" | "conditional" | "async-start" => {
                called().for_each(|called| add_launches(module, called, schedule));
            }
            opcode if opcode.ends_with("-done") || is_free(instruction) => {}
            _ => schedule.push(instruction),
        }
    }
}

/// What instructions that share a kernel have in common: opcodes and shapes.
fn signature(module: &Module, instruction: &Instruction) -> String {
    let mut signature = format!("{} {}", instruction.opcode, instruction.shape);
    let operands = module.computation(instruction.computation);
    for operand in operands.into_iter().flat_map(|it| it.operands(instruction)) {
        signature += &format!(" {}", operand.shape);
    }
    for fused in instruction.called.iter().filter_map(|&id| module.computation(id)) {
        let mut opcodes: Vec<&str> =
            fused.instructions().iter().map(|inner| inner.opcode.as_str()).collect();
        opcodes.sort_unstable();
        signature += &format!(" {opcodes:?}");
    }
    signature
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of kernels of the first call, with `left` calls to come.
    fn taken(names: &[&str], left: usize) -> usize {
        let kernel = |&name: &&str| Kernel {
            name: name.into(),
            module: None,
            op: None,
            start: 0,
            duration: 1,
        };
        let kernels: Vec<Kernel> = names.iter().map(kernel).collect();
        let waiting: Vec<usize> = (0..kernels.len()).collect();
        take_one_call(&kernels.iter().collect::<Vec<_>>(), &waiting, left)
    }

    #[test]
    fn library_calls_have_several_kernels() {
        assert_eq!(taken(&["Memset 0", "nvjet_a", "Memset 0", "nvjet_b"], 1), 2);
        assert_eq!(taken(&["nvjet_a", "splitKreduce_kernel", "nvjet_b"], 1), 2);
        // One kernel is left for each call, whatever its name.
        assert_eq!(taken(&["nvjet_a", "splitKreduce_kernel"], 1), 1);
        let attention = ["dot_do_o", "Memset 0", "sdpa_flash_bprop", "convert_dq_to_16bits"];
        assert_eq!(taken(&[&attention[..], &["nvjet_a"]].concat(), 1), 4);
        assert_eq!(taken(&["Memset 0"], 0), 1);
    }
}
