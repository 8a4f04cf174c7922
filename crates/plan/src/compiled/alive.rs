//! Which buffers are in main memory when most of it is taken: a walk over the schedule.
//!
//! Every array that an instruction makes is a buffer from there to its last use, but for what lies
//! in another's place: elements of tuples, what is only formed anew, updates in place, the state
//! of a loop (its body writes where it reads), and what the TPU compiler notes as shared. While a
//! loop or a call runs, its own peak is added. What lies in faster memory is not counted, and
//! neither are arguments and results of the program, which others account for.

use super::cost::behind_forms;
use super::paths::{Belongs, Paths};
use fullshard_pjrt::hlo::{ArrayShape, Computation, Instruction, InstructionId, Module, Shape};
use std::collections::HashMap;

/// A buffer.
#[derive(Debug, Clone)]
pub struct Buffer {
    /// Its bytes, padding included.
    pub bytes: u64,
    /// Its type and dimensions.
    pub shape: ArrayShape,
    /// The instruction that makes it.
    pub instruction: String,
    /// What that does.
    pub opcode: String,
    /// The module it belongs to.
    pub belongs: Belongs,
    /// Whether it is made before a loop and used after it.
    pub outlives_loop: bool,
}

/// What is alive when most is.
#[derive(Debug, Clone, Default)]
pub struct Peak {
    /// Its bytes.
    pub bytes: u64,
    /// The buffers.
    pub buffers: Vec<Buffer>,
}

/// The peak of a program.
pub fn peak(module: &Module, paths: &Paths) -> Peak {
    of_computation(module, paths, module.entry())
}

/// A buffer with the positions between which it is alive; elsewhere for what others account for.
type Leaf = Option<usize>;

struct Lives {
    buffers: Vec<(Buffer, usize, usize)>,
    leaves: HashMap<InstructionId, Vec<Leaf>>,
}

fn of_computation(module: &Module, paths: &Paths, computation: &Computation) -> Peak {
    let belongs = paths.of(computation);
    let last_uses = last_uses(computation);
    let mut lives = Lives { buffers: Vec::new(), leaves: HashMap::new() };
    let mut inside: HashMap<usize, Peak> = HashMap::new();
    for (position, instruction) in computation.instructions().iter().enumerate() {
        let shared = lives.shared(module, computation, instruction, (position, &last_uses));
        let shapes = instruction.shape.leaves();
        let fresh = shapes.iter().zip(shared).map(|(shape, shared)| match shared {
            Shared::With(leaf) => leaf,
            Shared::No => lives.fresh(shape, instruction, &belongs, position),
        });
        let leaves: Vec<Leaf> = fresh.collect();
        lives.leaves.insert(instruction.id, leaves);
        for operand in &instruction.operands {
            for leaf in lives.leaves.get(operand).into_iter().flatten().flatten() {
                lives.buffers[*leaf].2 = position;
            }
        }
        if let Some(peak) = called_peak(module, paths, instruction) {
            inside.insert(position, peak);
        }
    }
    // What a computation gives lies where its caller wants it.
    for leaf in lives.leaves.get(&computation.root().id).into_iter().flatten().flatten() {
        lives.buffers[*leaf].0.bytes = 0;
    }
    let loops = |from: usize, to: usize| {
        inside.keys().filter(|&&position| from < position && position < to).count()
    };
    for (buffer, from, to) in &mut lives.buffers {
        buffer.outlives_loop = loops(*from, *to) > 0;
    }
    lives.peak(computation.instructions().len(), &inside)
}

/// The peak inside of what an instruction calls; of branches the highest.
fn called_peak(module: &Module, paths: &Paths, instruction: &Instruction) -> Option<Peak> {
    if !matches!(instruction.opcode.as_str(), "while" | "call" | "conditional") {
        return None;
    }
    let called = instruction.called.iter().filter_map(|&id| module.computation(id));
    called.map(|called| of_computation(module, paths, called)).max_by_key(|peak| peak.bytes)
}

enum Shared {
    With(Leaf),
    No,
}

impl Lives {
    /// Where each array of an instruction's result lies, if it is in the place of another.
    fn shared(
        &self,
        module: &Module,
        computation: &Computation,
        instruction: &Instruction,
        (position, last_uses): (usize, &HashMap<InstructionId, usize>),
    ) -> Vec<Shared> {
        let of = |index: usize| -> Vec<Leaf> {
            let operand = instruction.operands.get(index);
            operand.and_then(|operand| self.leaves.get(operand)).cloned().unwrap_or_default()
        };
        let count = instruction.shape.leaves().len();
        let padded = |leaves: Vec<Leaf>, count: usize| -> Vec<Shared> {
            let with = leaves.into_iter().map(Shared::With);
            with.chain(std::iter::repeat_with(|| Shared::No)).take(count).collect()
        };
        match instruction.opcode.as_str() {
            "parameter" | "constant" => padded(vec![None; count], count),
            "bitcast" | "opt-barrier" | "while" | "add-dependency" => padded(of(0), count),
            "tuple" => {
                let all = (0..instruction.operands.len()).flat_map(of);
                padded(all.collect(), count)
            }
            "get-tuple-element" => {
                let tuple = computation.operands(instruction).next();
                let members = tuple.and_then(|tuple| tuple.shape.members()).unwrap_or_default();
                let index = instruction.tuple_index.unwrap_or(0);
                let skipped = members.iter().take(index).map(|shape| shape.leaves().len()).sum();
                padded(of(0).into_iter().skip(skipped).collect(), count)
            }
            // The copy, then what was copied, then a flag.
            "copy-start" => {
                let source = of(0).first().copied().flatten();
                vec![Shared::No, Shared::With(source), Shared::With(None)]
            }
            "copy-done" => padded(of(0), count),
            opcode if opcode.ends_with("-start") => {
                let inputs: Vec<Leaf> = (0..instruction.operands.len()).flat_map(of).collect();
                padded(inputs, count)
            }
            opcode if opcode.ends_with("-done") => {
                let began = computation.operands(instruction).next();
                padded(of(0).into_iter().skip(begun_inputs(began)).collect(), count)
            }
            "dynamic-update-slice" => padded(of(0).into_iter().take(1).collect(), count),
            _ => {
                let mut shared: Vec<Shared> =
                    std::iter::repeat_with(|| Shared::No).take(count).collect();
                let noted = instruction.aliases().into_iter().filter(|&(operand, _)| {
                    let operand = instruction.operands.get(operand);
                    operand.and_then(|id| last_uses.get(id)).is_some_and(|&last| last <= position)
                });
                for (operand, result) in noted.chain(updated_in_place(module, instruction)) {
                    if let (Some(place), Some(&leaf)) =
                        (shared.get_mut(result), of(operand).first())
                    {
                        *place = Shared::With(leaf);
                    }
                }
                shared
            }
        }
    }

    fn fresh(
        &mut self,
        shape: &Shape,
        instruction: &Instruction,
        belongs: &HashMap<InstructionId, Belongs>,
        position: usize,
    ) -> Leaf {
        let array = shape.as_array().filter(|array| array.in_main_memory())?;
        let bytes = array.padded_byte_size().filter(|&bytes| bytes > 0)?;
        let buffer = Buffer {
            bytes,
            shape: array.clone(),
            instruction: instruction.name.clone(),
            opcode: instruction.opcode.clone(),
            belongs: belongs.get(&instruction.id).cloned().unwrap_or_default(),
            outlives_loop: false,
        };
        self.buffers.push((buffer, position, position));
        Some(self.buffers.len() - 1)
    }

    /// The position where most is alive, with the peaks of what is called there.
    fn peak(&self, positions: usize, inside: &HashMap<usize, Peak>) -> Peak {
        let mut changes = vec![0_i128; positions + 1];
        for (buffer, from, to) in &self.buffers {
            changes[*from] += i128::from(buffer.bytes);
            changes[to + 1] -= i128::from(buffer.bytes);
        }
        let mut alive = 0;
        let totals = changes.iter().take(positions).enumerate().map(|(position, change)| {
            alive += change;
            alive + inside.get(&position).map_or(0, |peak| i128::from(peak.bytes))
        });
        let highest = totals.enumerate().max_by_key(|&(_, total)| total);
        let Some((position, total)) = highest else { return Peak::default() };
        let here = self.buffers.iter().filter(|(_, from, to)| (*from..=*to).contains(&position));
        let here = here.map(|(buffer, ..)| buffer.clone()).filter(|buffer| buffer.bytes > 0);
        let inner = inside.get(&position).into_iter().flat_map(|peak| peak.buffers.clone());
        Peak { bytes: u64::try_from(total).unwrap_or(0), buffers: here.chain(inner).collect() }
    }
}

/// Where each instruction's result is used last, by the instructions that name it.
fn last_uses(computation: &Computation) -> HashMap<InstructionId, usize> {
    let mut last = HashMap::new();
    for (position, instruction) in computation.instructions().iter().enumerate() {
        for &operand in &instruction.operands {
            last.insert(operand, position);
        }
    }
    last
}

/// How many arrays of what was begun are what it was given.
fn begun_inputs(began: Option<&Instruction>) -> usize {
    match began {
        Some(began) if began.opcode == "all-reduce-start" => 0,
        Some(began) => began.operands.len(),
        None => 0,
    }
}

/// The operands that a fusion updates in place: those that its results are updates of.
fn updated_in_place(module: &Module, instruction: &Instruction) -> Vec<(usize, usize)> {
    let fused = instruction.called.first().filter(|_| instruction.opcode == "fusion");
    let Some(fused) = fused.and_then(|&id| module.computation(id)) else { return Vec::new() };
    let root = fused.root();
    let results: Vec<&Instruction> = match root.opcode.as_str() {
        "tuple" => fused.operands(root).collect(),
        _ => vec![root],
    };
    let updated = results.into_iter().enumerate().filter_map(|(result, value)| {
        let update = behind_forms(fused, value)?;
        let place =
            fused.operands(update).next().filter(|_| update.opcode == "dynamic-update-slice");
        Some((behind_forms(fused, place?)?.parameter_number?, result))
    });
    updated.collect()
}
