//! How long one instruction computes.
//!
//! For TPUs the compiler says how many cycles it expects. What it says nothing of (gathers,
//! scatters, calls of its own) is taken to be as fast as memory is: the bytes it reads and writes
//! there over the bandwidth. Of GPUs it says nothing at all, and [`roofline`] does.

use super::roofline;
use crate::machine::Machine;
use fullshard_pjrt::hlo::{Computation, Instruction, InstructionId, Module, Shape};
use fullshard_pjrt::plugins::Platform;

/// What only names, forms or waits for values.
const FREE: &[&str] = &[
    "add-dependency",
    "after-all",
    "bitcast",
    "constant",
    "get-tuple-element",
    "opt-barrier",
    "parameter",
    "partition-id",
    "replica-id",
    "tuple",
];

/// Calls that the compiler makes for memory's sake alone.
const FREE_CALLS: &[&str] = &["AllocateBuffer", "ConcatBitcast"];

/// Seconds of computing. Exchanges between devices and what runs beside other work are none.
pub fn seconds(module: &Module, instruction: &Instruction, machine: &Machine) -> f64 {
    if is_free(instruction) {
        return 0.0;
    }
    if machine.kind == Platform::Cuda {
        return roofline::seconds(module, instruction, &machine.chip);
    }
    match (instruction.estimated_cycles(), machine.chip.clock) {
        (Some(cycles), Some(clock)) => cycles as f64 / clock,
        _ => traffic(module, instruction) as f64 / machine.chip.bandwidth,
    }
}

/// Whether it takes no time.
pub fn is_free(instruction: &Instruction) -> bool {
    let target = instruction.custom_call_target.as_deref();
    FREE.contains(&instruction.opcode.as_str())
        || target.is_some_and(|target| FREE_CALLS.contains(&target))
}

/// The bytes that an instruction reads from main memory and writes there.
pub fn traffic(module: &Module, instruction: &Instruction) -> u64 {
    let Some(computation) = module.computation(instruction.computation) else { return 0 };
    let written = bytes(&instruction.shape);
    let fused = instruction.called.first().filter(|_| instruction.opcode == "fusion");
    if let Some(fused) = fused.and_then(|&id| module.computation(id)) {
        let operands = computation.operands(instruction).enumerate();
        let read = operands.map(|(number, operand)| {
            let all = bytes(&operand.shape);
            all.min(read_of_parameter(fused, number).unwrap_or(all))
        });
        let updated = updated_bytes(fused, fused.root());
        return read.sum::<u64>() + updated.unwrap_or(written).min(written);
    }
    if let Some(updated) = updated_bytes(computation, instruction) {
        return 2 * updated;
    }
    let read = computation.operands(instruction).map(|operand| bytes(&operand.shape));
    match takes_a_part(instruction) {
        true => 2 * written,
        false => read.sum::<u64>() + written,
    }
}

/// The bytes that a fusion reads of one of its parameters, where that is only a part.
fn read_of_parameter(fused: &Computation, number: usize) -> Option<u64> {
    let parameter = fused.instructions().iter().find(|it| it.parameter_number == Some(number))?;
    part_read(fused, parameter.id, 0)
}

/// The bytes that are read of a value inside a fusion, if every use takes a part of it.
fn part_read(fused: &Computation, value: InstructionId, depth: usize) -> Option<u64> {
    const DEEPEST: usize = 4;
    let users = fused.instructions().iter().filter(|user| user.operands.contains(&value));
    let read = users.map(|user| match user.opcode.as_str() {
        _ if takes_a_part(user) && user.operands.first() == Some(&value) => {
            Some(whole(&user.shape))
        }
        // What is updated in place is not read.
        "dynamic-update-slice" if user.operands.first() == Some(&value) => Some(0),
        "bitcast" | "reshape" if depth < DEEPEST => part_read(fused, user.id, depth + 1),
        _ => None,
    });
    read.sum()
}

/// The bytes of the update, if an instruction or what it passes on is one in place.
fn updated_bytes(computation: &Computation, instruction: &Instruction) -> Option<u64> {
    let instruction = behind_forms(computation, instruction)?;
    let update = match instruction.opcode.as_str() {
        "dynamic-update-slice" => computation.operands(instruction).nth(1)?,
        "scatter" => computation.operands(instruction).nth(2)?,
        _ => return None,
    };
    Some(whole(&update.shape))
}

/// The instruction behind those that only form its result anew.
pub fn behind_forms<'a>(
    computation: &'a Computation,
    mut instruction: &'a Instruction,
) -> Option<&'a Instruction> {
    while matches!(instruction.opcode.as_str(), "bitcast" | "reshape") {
        instruction = computation.operands(instruction).next()?;
    }
    Some(instruction)
}

fn takes_a_part(instruction: &Instruction) -> bool {
    matches!(instruction.opcode.as_str(), "dynamic-slice" | "gather" | "slice")
}

/// The bytes of a shape that lie in main memory.
pub fn bytes(shape: &Shape) -> u64 {
    let arrays = shape.leaves().into_iter().filter_map(Shape::as_array);
    let here = arrays.filter(|array| array.in_main_memory());
    here.filter_map(|array| array.padded_byte_size()).sum()
}

fn whole(shape: &Shape) -> u64 {
    let arrays = shape.leaves().into_iter().filter_map(Shape::as_array);
    arrays.filter_map(|array| array.padded_byte_size()).sum()
}
