//! Which instruction launched which kernel.
//!
//! Outside of CUDA graphs the profile says it. Inside of them, where most of a step runs, it says
//! only which graph a kernel is of. XLA's own kernels carry the name of an instruction, but equal
//! instructions share one kernel, and libraries have names of their own. What remains is order:
//! a step launches its instructions in the order of the schedule. So the schedule is walked beside
//! the kernels. XLA's own are anchors; the kernels of libraries between two of them are those of
//! the library calls between the two instructions.

use super::kinds::opcodes;
use crate::compiled::is_free;
use fullshard_pjrt::Kernel;
use fullshard_pjrt::hlo::{
    Computation, Instruction, Module, collective, condition_and_body, trip_count,
};
use std::collections::HashMap;

/// How far ahead in the schedule the instruction of a kernel is looked for: what launches nothing
/// lies between, such as loops that do not turn.
const AHEAD: usize = 1000;

/// More launches than steps can have.
const MOST: usize = 4_000_000;

/// The instruction of every kernel of some steps, where it is known.
pub fn launched<'a>(
    module: &'a Module,
    kernels: &[&Kernel],
    steps: usize,
) -> Vec<Option<&'a Instruction>> {
    Walk::new(module, &Names::new(module), steps).run(kernels)
}

/// Instructions by the names that kernels and the profile have for them.
struct Names<'a> {
    instructions: HashMap<&'a str, &'a Instruction>,
    kernels: HashMap<String, &'a Instruction>,
}

/// Whether a kernel may also be that of an equal instruction.
#[derive(Clone, Copy, PartialEq)]
enum Sure {
    Yes,
    No,
}

impl<'a> Names<'a> {
    fn new(module: &'a Module) -> Names<'a> {
        let launching = || module.instructions().filter(|it| !is_free(it));
        Names {
            instructions: launching().map(|it| (it.name.as_str(), it)).collect(),
            kernels: launching().map(|it| (symbol(&it.name), it)).collect(),
        }
    }

    /// The instruction that a kernel is of, by what the profile says or by its name.
    fn of(&self, kernel: &Kernel) -> Option<(&'a Instruction, Sure)> {
        let told = kernel.op.as_deref().and_then(|op| self.instructions.get(op));
        if let Some(&instruction) = told {
            return Some((instruction, Sure::Yes));
        }
        // A second kernel of a name has a number more.
        let first = kernel.name.rsplit_once("__").map_or(&*kernel.name, |(first, _)| first);
        let found = self.kernels.get(&*kernel.name).or_else(|| self.kernels.get(first));
        found.map(|&instruction| (instruction, Sure::No))
    }
}

/// A name as that of a kernel.
fn symbol(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

/// A walk along the schedule.
struct Walk<'a, 'n> {
    module: &'a Module,
    names: &'n Names<'a>,
    /// What the steps launch, in order.
    schedule: Vec<&'a Instruction>,
    /// The numbers of their forms: those of one may share a kernel.
    forms: HashMap<*const Instruction, usize>,
    /// Where in the schedule the walk stands: what is before it has launched.
    place: usize,
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
        let (mut forms, mut numbers) = (HashMap::new(), HashMap::new());
        for &instruction in &schedule {
            forms.entry(std::ptr::from_ref(instruction)).or_insert_with(|| {
                let next = numbers.len();
                *numbers.entry(form(module, instruction)).or_insert(next)
            });
        }
        let (waiting, found) = (Vec::new(), Vec::new());
        Walk { module, names, schedule, forms, place: 0, waiting, found }
    }

    fn run(mut self, kernels: &[&Kernel]) -> Vec<Option<&'a Instruction>> {
        self.found = vec![None; kernels.len()];
        let mut exchanges: Vec<usize> = Vec::new();
        for (i, kernel) in kernels.iter().enumerate() {
            match self.names.of(kernel) {
                Some((instruction, sure)) => self.anchor(kernels, i, instruction, sure),
                None if is_exchange(kernel) => exchanges.push(i),
                None => self.waiting.push(i),
            }
        }
        self.settle(kernels, self.schedule.len(), None);
        self.exchange(&exchanges);
        self.found
    }

    /// A kernel whose instruction is known, but for which of several equal ones.
    fn anchor(&mut self, kernels: &[&Kernel], i: usize, named: &'a Instruction, sure: Sure) {
        let last = self.place.checked_sub(1).map(|last| self.schedule[last]);
        if sure == Sure::Yes && last.is_some_and(|last| std::ptr::eq(last, named)) {
            self.found[i] = Some(named);
            return;
        }
        let form = self.forms.get(&std::ptr::from_ref(named));
        let mut ahead = self.schedule[self.place..].iter().take(AHEAD);
        let is_it = |it: &&'a Instruction| match sure {
            Sure::Yes => std::ptr::eq(*it, named),
            Sure::No => form.is_some() && self.forms.get(&std::ptr::from_ref(*it)) == form,
        };
        match ahead.position(is_it) {
            Some(steps) => {
                let place = self.place + steps;
                let instruction = self.schedule[place];
                self.settle(kernels, place, Some(instruction));
                self.found[i] = Some(instruction);
                self.place = place + 1;
            }
            None => self.found[i] = Some(named),
        }
    }

    /// Hands the kernels that wait to what the schedule has up to a place.
    fn settle(&mut self, kernels: &[&Kernel], until: usize, next: Option<&'a Instruction>) {
        let waiting = std::mem::take(&mut self.waiting);
        let between = self.schedule[self.place..until].iter().copied();
        // A call may stand in a fusion that cuts an operand of it.
        let is_call = |it: &&Instruction| opcodes(self.module, it).contains(&"custom-call");
        let (calls, own): (Vec<_>, Vec<_>) = between.partition(is_call);
        // What copies needs no kernel of its own.
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
        // Memory that is cleared before the kernel that adds to it.
        for i in waiting {
            self.found[i] = next;
        }
    }

    /// Exchanges run beside everything else, and in their own order.
    fn exchange(&mut self, kernels: &[usize]) {
        let exchanges = self.schedule.iter().filter(|it| collective(self.module, it).is_some());
        let exchanges: Vec<&'a Instruction> = exchanges.copied().collect();
        if exchanges.len() == kernels.len() {
            kernels.iter().zip(exchanges).for_each(|(&i, it)| self.found[i] = Some(it));
        }
    }
}

/// How many of the kernels that wait are those of one library call, with so many calls to come:
/// memory that is cleared, the kernel, and what goes on with its results.
fn take_one_call(kernels: &[&Kernel], waiting: &[usize], left: usize) -> usize {
    let name = |place: usize| &*kernels[waiting[place]].name;
    let mut work = (0..waiting.len()).filter(|&place| !name(place).starts_with("Memset"));
    let Some(first) = work.next() else { return waiting.len() };
    let goes_on = |place: usize| match is_attention(name(first)) {
        true => is_attention(name(place)),
        false => name(place).to_ascii_lowercase().contains("splitk"),
    };
    let rest: Vec<usize> = work.collect();
    let spare = rest.len().saturating_sub(left);
    let mine = rest.iter().take(spare).take_while(|&&place| goes_on(place)).last();
    mine.unwrap_or(&first) + 1
}

fn is_attention(kernel: &str) -> bool {
    super::kinds::of_name(kernel) == Some(super::Kind::Attention)
}

fn is_exchange(kernel: &Kernel) -> bool {
    super::kinds::of_name(&kernel.name) == Some(super::Kind::Collectives)
}

/// What a computation launches, in order; loops as often as they turn.
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
                    if schedule.len() > MOST {
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

/// What instructions have in common that may share a kernel: what they do, and on which shapes.
fn form(module: &Module, instruction: &Instruction) -> String {
    let mut form = format!("{} {}", instruction.opcode, instruction.shape);
    let operands = module.computation(instruction.computation);
    for operand in operands.into_iter().flat_map(|it| it.operands(instruction)) {
        form += &format!(" {}", operand.shape);
    }
    for fused in instruction.called.iter().filter_map(|&id| module.computation(id)) {
        let mut opcodes: Vec<&str> =
            fused.instructions().iter().map(|inner| inner.opcode.as_str()).collect();
        opcodes.sort_unstable();
        form += &format!(" {opcodes:?}");
    }
    form
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of some kernels are those of one call, before so many others.
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
        // One kernel is left for each call, whatever it is called.
        assert_eq!(taken(&["nvjet_a", "splitKreduce_kernel"], 1), 1);
        let attention = ["dot_do_o", "Memset 0", "sdpa_flash_bprop", "convert_dq_to_16bits"];
        assert_eq!(taken(&[&attention[..], &["nvjet_a"]].concat(), 1), 4);
        assert_eq!(taken(&["Memset 0"], 0), 1);
    }
}
