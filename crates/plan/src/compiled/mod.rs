//! Plans from what the compiler makes of a step.

mod alive;
mod cost;
mod memory;
mod paths;
mod roofline;
mod source;
#[cfg(test)]
mod tests;
mod time;
mod warnings;

pub(crate) use cost::is_free;
pub(crate) use paths::{Belongs, OPTIMIZER, Paths};
pub(crate) use roofline::{operations, traffic};
pub use source::{AheadCompiler, Made};

use crate::describe::Budget;
use crate::error::Error;
use crate::machine::Machine;
use crate::report::{Basis, MachineSummary, Rates, Report};
use fullshard_pjrt::plugins::Platform;
use fullshard_step::StepSpec;

/// The plan of a step that was compiled for a machine.
pub fn compiled(
    spec: &StepSpec,
    machine: &Machine,
    made: &Made,
    budget: Budget,
) -> Result<Report, Error> {
    let paths = Paths::new(spec.model.as_ref());
    let played = time::play(&made.module, machine, &paths);
    let peak = alive::peak(&made.module, &paths);
    let state = spec.state_bytes()?;
    let limit = made.limit.unwrap_or(machine.memory);
    let memory = memory::memory(spec, &state, &made.memory, &peak, limit);
    let warnings = warnings::warnings(spec, machine, &played, &peak);
    let mut notes = notes(machine);
    notes.push(format!(
        "buffers at the peak come to {:.2} GiB, of the {:.2} GiB that the compiler needs beside \
         arguments",
        gib(peak.bytes),
        gib(made.memory.temporaries)
    ));
    notes.extend(played.algorithms.iter().map(|(kind, name, streams)| {
        let streams =
            streams.map_or(String::new(), |streams| format!(", {streams} streams at once"));
        format!("{kind} is done by what the compiler calls {name}{streams}")
    }));
    if played.unknown_loops > 0 {
        notes.push(format!(
            "the length of {} is not known; each counts once",
            if played.unknown_loops == 1 {
                "a loop".into()
            } else {
                format!("{} loops", played.unknown_loops)
            }
        ));
    }
    Ok(Report {
        machine: MachineSummary::new(machine, spec.placement.wire.compute),
        model: spec.model_summary(),
        settings: spec.settings(),
        basis: Basis::Compiled {
            seconds: made.seconds,
            cached: made.cached,
            compiler: made.compiler.clone(),
        },
        program: Some(made.program.clone()),
        memory,
        rates: Rates::new(spec, machine, played.time.step, budget),
        time: played.time,
        collectives: played.exchanged,
        warnings,
        notes,
    })
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1_u64 << 30) as f64
}

/// What the figures of a kind of machine do not have in them.
fn notes(machine: &Machine) -> Vec<String> {
    let notes: &[&str] = match machine.kind {
        Platform::Tpu => &["input, the host and what lies between steps are not in the time"],
        Platform::Cuda => &[
            "compiled without a GPU: kernels are not tuned, and cuDNN's graphs are not built",
            "products are taken to be as fast as tuned ones, at the share of its peak that an H200 \
             reaches",
            "input, the host and what lies between steps are not in the time",
        ],
        Platform::Cpu => &["the time on CPUs counts memory alone, no arithmetic"],
    };
    notes.iter().map(|&note| note.to_owned()).collect()
}
