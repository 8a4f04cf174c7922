//! Buffer liveness: which buffers are in main memory at the peak, from a walk over the schedule.
//!
//! Every array that an instruction produces is a buffer that is live until its last use, unless it
//! aliases another: tuple elements, bitcasts, in-place updates, loop state (the body writes where
//! it reads), and the aliases that the TPU compiler annotates. While a loop or a call runs, its own
//! peak is added. Arrays in faster memory are not counted, nor are the program's arguments and
//! results, which are counted elsewhere.

use super::cost::skip_bitcasts;
use super::paths::{Owner, Paths};
use fullshard_pjrt::hlo::{ArrayShape, Computation, Instruction, InstructionId, Module, Shape};
use std::collections::HashMap;

/// A buffer.
#[derive(Debug, Clone)]
pub struct Buffer {
    /// Its bytes, padding included.
    pub bytes: u64,
    /// Its type and dimensions.
    pub shape: ArrayShape,
    /// The instruction that produces it.
    pub instruction: String,
    /// The opcode of that instruction.
    pub opcode: String,
    /// The module it belongs to.
    pub owner: Owner,
    /// Whether it is live across a loop.
    pub outlives_loop: bool,
}

/// The memory peak.
#[derive(Debug, Clone, Default)]
pub struct Peak {
    /// Its bytes.
    pub bytes: u64,
    /// The live buffers.
    pub buffers: Vec<Buffer>,
}

/// The memory peak of a program.
pub fn peak(module: &Module, paths: &Paths) -> Peak {
    of_computation(module, paths, module.entry())
}

/// The index of a buffer; `None` if it is counted elsewhere.
type Leaf = Option<usize>;

struct LiveRanges {
    /// Buffers with their first and last positions.
    buffers: Vec<(Buffer, usize, usize)>,
    leaves: HashMap<InstructionId, Vec<Leaf>>,
}

fn of_computation(module: &Module, paths: &Paths, computation: &Computation) -> Peak {
    let owners = paths.of(computation);
    let last_uses = last_uses(computation);
    let mut ranges = LiveRanges { buffers: Vec::new(), leaves: HashMap::new() };
    let mut inside: HashMap<usize, Peak> = HashMap::new();
    for (position, instruction) in computation.instructions().iter().enumerate() {
        let shared = ranges.shared(module, computation, instruction, (position, &last_uses));
        let shapes = instruction.shape.leaves();
        let fresh = shapes.iter().zip(shared).map(|(shape, shared)| match shared {
            Shared::With(leaf) => leaf,
            Shared::No => ranges.fresh(shape, instruction, &owners, position),
        });
        let leaves: Vec<Leaf> = fresh.collect();
        ranges.leaves.insert(instruction.id, leaves);
        for operand in &instruction.operands {
            for leaf in ranges.leaves.get(operand).into_iter().flatten().flatten() {
                ranges.buffers[*leaf].2 = position;
            }
        }
        if let Some(peak) = called_peak(module, paths, instruction) {
            inside.insert(position, peak);
        }
    }
    // The caller provides the buffers of the results.
    for leaf in ranges.leaves.get(&computation.root().id).into_iter().flatten().flatten() {
        ranges.buffers[*leaf].0.bytes = 0;
    }
    let loops = |from: usize, to: usize| {
        inside.keys().filter(|&&position| from < position && position < to).count()
    };
    for (buffer, from, to) in &mut ranges.buffers {
        buffer.outlives_loop = loops(*from, *to) > 0;
    }
    ranges.peak(computation.instructions().len(), &inside)
}

/// The peak inside the computations that an instruction calls; of branches the highest.
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

impl LiveRanges {
    /// The buffer that each array of an instruction's result shares, if any.
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
            // The copy, its source, then a flag.
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
                let start = computation.operands(instruction).next();
                padded(of(0).into_iter().skip(start_inputs(start)).collect(), count)
            }
            "dynamic-update-slice" => padded(of(0).into_iter().take(1).collect(), count),
            _ => {
                let mut shared: Vec<Shared> =
                    std::iter::repeat_with(|| Shared::No).take(count).collect();
                let annotated = instruction.aliases().into_iter().filter(|&(operand, _)| {
                    let operand = instruction.operands.get(operand);
                    operand.and_then(|id| last_uses.get(id)).is_some_and(|&last| last <= position)
                });
                for (operand, result) in annotated.chain(updated_in_place(module, instruction)) {
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
        owners: &HashMap<InstructionId, Owner>,
        position: usize,
    ) -> Leaf {
        let array = shape.as_array().filter(|array| array.in_main_memory())?;
        let bytes = array.padded_byte_size().filter(|&bytes| bytes > 0)?;
        let buffer = Buffer {
            bytes,
            shape: array.clone(),
            instruction: instruction.name.clone(),
            opcode: instruction.opcode.clone(),
            owner: owners.get(&instruction.id).cloned().unwrap_or_default(),
            outlives_loop: false,
        };
        self.buffers.push((buffer, position, position));
        Some(self.buffers.len() - 1)
    }

    /// The peak over all positions, with the peaks of the computations called there.
    fn peak(&self, positions: usize, inside: &HashMap<usize, Peak>) -> Peak {
        let mut changes = vec![0_i128; positions + 1];
        for (buffer, from, to) in &self.buffers {
            changes[*from] += i128::from(buffer.bytes);
            changes[to + 1] -= i128::from(buffer.bytes);
        }
        let mut live = 0;
        let totals = changes.iter().take(positions).enumerate().map(|(position, change)| {
            live += change;
            live + inside.get(&position).map_or(0, |peak| i128::from(peak.bytes))
        });
        let highest = totals.enumerate().max_by_key(|&(_, total)| total);
        let Some((position, total)) = highest else { return Peak::default() };
        let outer = self.buffers.iter().filter(|(_, from, to)| (*from..=*to).contains(&position));
        let outer = outer.map(|(buffer, ..)| buffer.clone()).filter(|buffer| buffer.bytes > 0);
        let inner = inside.get(&position).into_iter().flat_map(|peak| peak.buffers.clone());
        Peak { bytes: u64::try_from(total).unwrap_or(0), buffers: outer.chain(inner).collect() }
    }
}

/// The position of the last direct use of each instruction's result.
fn last_uses(computation: &Computation) -> HashMap<InstructionId, usize> {
    let mut last = HashMap::new();
    for (position, instruction) in computation.instructions().iter().enumerate() {
        for &operand in &instruction.operands {
            last.insert(operand, position);
        }
    }
    last
}

/// Number of arrays in the result of an async start that are its inputs.
fn start_inputs(start: Option<&Instruction>) -> usize {
    match start {
        Some(start) if start.opcode == "all-reduce-start" => 0,
        Some(start) => start.operands.len(),
        None => 0,
    }
}

/// The operands that a fusion updates in place, with the results that hold them.
fn updated_in_place(module: &Module, instruction: &Instruction) -> Vec<(usize, usize)> {
    let fused = instruction.called.first().filter(|_| instruction.opcode == "fusion");
    let Some(fused) = fused.and_then(|&id| module.computation(id)) else { return Vec::new() };
    let root = fused.root();
    let results: Vec<&Instruction> = match root.opcode.as_str() {
        "tuple" => fused.operands(root).collect(),
        _ => vec![root],
    };
    let updated = results.into_iter().enumerate().filter_map(|(result, value)| {
        let update = skip_bitcasts(fused, value)?;
        let place =
            fused.operands(update).next().filter(|_| update.opcode == "dynamic-update-slice");
        Some((skip_bitcasts(fused, place?)?.parameter_number?, result))
    });
    updated.collect()
}
