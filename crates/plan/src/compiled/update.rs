//! The memory traffic of the optimizer's update, which weight-update sharding divides by the
//! number of devices.

use super::cost;
use super::paths::{OPTIMIZER, Paths};
use fullshard_models::AnyModel;
use fullshard_pjrt::hlo::{Computation, ComputationId, Instruction, Module, runs_per_launch};
use std::collections::HashSet;

/// Bytes that the update of a compiled step reads from and writes to memory per device and launch,
/// by the instructions whose path is that of the optimizer. Collectives are left out, and so are
/// copies that the compiler adds, which have no path.
pub fn update_bytes(model: &dyn AnyModel, module: &Module) -> u64 {
    let paths = Paths::new(model);
    let runs = runs_per_launch(module);
    let fused = fused(module);
    let separate = module.computations().iter().filter(|it| !fused.contains(&it.id));
    let bytes = separate.map(|computation| {
        let update = computation.instructions().iter().filter(|it| {
            moves_memory(it)
                && paths.read(&it.metadata.op_name).is_some_and(|it| it.module == OPTIMIZER)
        });
        let bytes: u64 = update.map(|it| cost::traffic(module, it)).sum();
        bytes * runs.count(computation.id).unwrap_or(0)
    });
    bytes.sum()
}

/// Whether an instruction itself reads and writes memory, rather than the computation it calls.
fn moves_memory(instruction: &Instruction) -> bool {
    let calls = matches!(instruction.opcode.as_str(), "call" | "conditional" | "while");
    !calls && !cost::is_free(instruction) && !instruction.is_collective()
}

/// The computations inside of fusions, whose values stay out of memory.
fn fused(module: &Module) -> HashSet<ComputationId> {
    let instructions = module.computations().iter().flat_map(Computation::instructions);
    let fusions = instructions.filter(|it| it.opcode == "fusion");
    fusions.flat_map(|it| it.called.iter().copied()).collect()
}
