//! Plans from compiled step programs.

mod collectives;
mod cost;
mod liveness;
mod memory;
mod paths;
mod roofline;
mod source;
#[cfg(test)]
mod tests;
mod time;
mod update;
mod warnings;

pub(crate) use cost::is_free;
pub(crate) use paths::{OPTIMIZER, Owner, Paths};
pub(crate) use roofline::{is_kernel, matmul_flops, traffic};
pub use source::{AheadCompiler, CompiledStep};
pub use update::update_bytes;

use crate::describe::{Budget, host_memory};
use crate::error::Error;
use crate::goodput::{Failures, Goodput};
use crate::machine::Machine;
use crate::report::{Basis, MachineSummary, ModuleCollectives, Rates, Report};
use crate::start_up::StartUp;
use fullshard_pjrt::hlo::Module;
use fullshard_pjrt::plugins::Platform;
use fullshard_step::StepSpec;

/// The plan of a step that was compiled for a machine.
pub fn compiled(
    spec: &StepSpec,
    machine: &Machine,
    step: &CompiledStep,
    budget: Budget,
) -> Result<Report, Error> {
    let paths = Paths::new(spec.model.as_ref());
    let simulation = time::simulate(&step.module, machine, &spec.placement.mesh, &paths);
    let simulation = simulation.per_step(spec.iterations_per_loop);
    let peak = liveness::peak(&step.module, &paths);
    let state = spec.state_bytes()?;
    let limit = step.limit.unwrap_or(machine.memory);
    let limits = (limit, machine.host_memory());
    let memory = memory::memory(spec, &state, &step.memory, &peak, limits);
    let mut warnings = warnings::warnings(spec, machine, &simulation, &peak);
    warnings.extend(host_memory(&memory));
    let mut notes = notes(machine);
    notes.push(format!(
        "live buffers found at the peak: {:.2} GiB of the {:.2} GiB of temporaries that the \
         compiler allocates",
        gib(peak.bytes),
        gib(step.memory.temporaries)
    ));
    notes.extend(simulation.algorithms.iter().map(|(kind, name, streams)| {
        let streams =
            streams.map_or(String::new(), |streams| format!(", {streams} concurrent streams"));
        format!("{kind} algorithm of the compiler: {name}{streams}")
    }));
    if simulation.unknown_loops > 0 {
        notes.push(format!(
            "the trip count of {} is unknown; each is counted once",
            if simulation.unknown_loops == 1 {
                "a loop".into()
            } else {
                format!("{} loops", simulation.unknown_loops)
            }
        ));
    }
    let rates = Rates::new(spec, machine, simulation.time.step, budget);
    let start_up = StartUp::new(spec, machine, Some(step.seconds), step.serialized)?;
    let seconds = simulation.time.step;
    let goodput = Goodput::new(machine, seconds, &start_up, &rates, Failures::default());
    Ok(Report {
        machine: MachineSummary::new(machine, spec.placement.comm.compute),
        model: spec.model_summary(),
        settings: spec.settings(),
        basis: Basis::Compiled {
            seconds: step.seconds,
            cached: step.cached,
            compiler: step.compiler.clone(),
        },
        program: Some(step.program.clone()),
        memory,
        rates,
        time: simulation.time,
        start_up,
        goodput,
        collectives: simulation.collective_times,
        collectives_by_module: collectives_by_module(spec, &step.module),
        warnings,
        notes,
    })
}

/// The collectives per step of a compiled step program, by the modules that cause them, most bytes
/// first.
pub fn collectives_by_module(spec: &StepSpec, module: &Module) -> Vec<ModuleCollectives> {
    let paths = Paths::new(spec.model.as_ref());
    collectives::by_module(module, &spec.placement.mesh, &paths, spec.iterations_per_loop)
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1_u64 << 30) as f64
}

/// Limits of the figures for a kind of machine.
fn notes(machine: &Machine) -> Vec<String> {
    let notes: &[&str] = match machine.kind {
        Platform::Tpu => &["the step time excludes data loading, the host and gaps between steps"],
        Platform::Cuda => &[
            "compiled without a GPU: kernels are not autotuned, and cuDNN graphs are not built",
            "matmuls are assumed to be as fast as tuned ones, at the share of peak that an H200 \
             reaches",
            "the step time excludes data loading, the host and gaps between steps",
        ],
        Platform::Cpu => &["the step time on CPU counts memory traffic only, no arithmetic"],
    };
    notes.iter().map(|&note| note.to_owned()).collect()
}
