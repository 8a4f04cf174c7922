//! Compute time of one instruction.
//!
//! For TPUs the compiler reports estimated cycles. Instructions without an estimate (gathers,
//! scatters, the compiler's custom calls, some softmaxes) are assumed to be memory bound: the bytes
//! they read and write over the bandwidth. For GPUs there are no estimates, and [`roofline`] is used.

use super::roofline;
use crate::machine::Machine;
use fullshard_pjrt::hlo::{ArrayShape, Computation, Instruction, InstructionId, Module, Shape};
use fullshard_pjrt::plugins::Platform;

/// Opcodes that only name, reshape or wait for values; a `send` is timed with its `recv`.
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
    "send",
    "tuple",
];

/// Custom calls that only manage memory.
const FREE_CALLS: &[&str] = &["AllocateBuffer", "ConcatBitcast"];

/// Seconds of compute. Collectives and asynchronous copies are not compute.
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

/// The way that an asynchronous copy takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Route {
    /// Inside the device.
    Device,
    /// From the device to the host.
    ToHost,
    /// From the host to the device.
    FromHost,
}

/// The way of an asynchronous copy, and the bytes that go it: those of the slice, if it is one of a
/// larger array in host memory.
pub fn copied(module: &Module, start: &Instruction) -> (Route, u64) {
    let copy = start.called.first().and_then(|&id| module.computation(id));
    let (computation, copy) = match copy {
        Some(computation) => (computation, computation.root()),
        None => match module.computation(start.computation) {
            Some(computation) => (computation, start),
            None => return (Route::Device, 0),
        },
    };
    let in_host = |shape: &Shape| first_array(shape).is_some_and(ArrayShape::in_host_memory);
    let to = in_host(&copy.shape);
    let from = computation.operands(copy).next().is_some_and(|source| in_host(&source.shape));
    let of_copy = || first_array(&copy.shape).and_then(ArrayShape::padded_byte_size).unwrap_or(0);
    match (from, to) {
        (false, false) => (Route::Device, traffic(module, start)),
        (true, false) => (Route::FromHost, of_copy()),
        (_, true) => (Route::ToHost, updated_bytes(computation, copy).unwrap_or_else(of_copy)),
    }
}

/// The result of a copy, whose start has its operand beside it.
fn first_array(shape: &Shape) -> Option<&ArrayShape> {
    shape.leaves().into_iter().find_map(Shape::as_array)
}

/// Bytes that an instruction reads from and writes to main memory.
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
    match is_slice(instruction) {
        true => 2 * written,
        false => read.sum::<u64>() + written,
    }
}

/// Bytes that a fusion reads of one of its parameters, if it only reads slices of it.
fn read_of_parameter(fused: &Computation, number: usize) -> Option<u64> {
    let parameter = fused.instructions().iter().find(|it| it.parameter_number == Some(number))?;
    slices_read(fused, parameter.id, 0)
}

/// Bytes that are read of a value inside a fusion, if every use is a slice of it.
fn slices_read(fused: &Computation, value: InstructionId, depth: usize) -> Option<u64> {
    const MAX_DEPTH: usize = 4;
    let users = fused.instructions().iter().filter(|user| user.operands.contains(&value));
    let read = users.map(|user| match user.opcode.as_str() {
        _ if is_slice(user) && user.operands.first() == Some(&value) => {
            Some(all_bytes(&user.shape))
        }
        // Operands updated in place are not read.
        "dynamic-update-slice" if user.operands.first() == Some(&value) => Some(0),
        "bitcast" | "reshape" if depth < MAX_DEPTH => slices_read(fused, user.id, depth + 1),
        _ => None,
    });
    read.sum()
}

/// The bytes of the update, if an instruction (behind bitcasts) is an in-place update.
fn updated_bytes(computation: &Computation, instruction: &Instruction) -> Option<u64> {
    let instruction = skip_bitcasts(computation, instruction)?;
    let update = match instruction.opcode.as_str() {
        "dynamic-update-slice" => computation.operands(instruction).nth(1)?,
        "scatter" => computation.operands(instruction).nth(2)?,
        _ => return None,
    };
    Some(all_bytes(&update.shape))
}

/// The instruction behind bitcasts and reshapes.
pub fn skip_bitcasts<'a>(
    computation: &'a Computation,
    mut instruction: &'a Instruction,
) -> Option<&'a Instruction> {
    while matches!(instruction.opcode.as_str(), "bitcast" | "reshape") {
        instruction = computation.operands(instruction).next()?;
    }
    Some(instruction)
}

fn is_slice(instruction: &Instruction) -> bool {
    matches!(instruction.opcode.as_str(), "dynamic-slice" | "gather" | "slice")
}

/// The bytes of a shape in main memory.
pub fn bytes(shape: &Shape) -> u64 {
    let arrays = shape.leaves().into_iter().filter_map(Shape::as_array);
    let in_memory = arrays.filter(|array| array.in_main_memory());
    in_memory.filter_map(|array| array.padded_byte_size()).sum()
}

fn all_bytes(shape: &Shape) -> u64 {
    let arrays = shape.leaves().into_iter().filter_map(Shape::as_array);
    arrays.filter_map(|array| array.padded_byte_size()).sum()
}
