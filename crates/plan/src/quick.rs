//! The quick plan: from the spec alone, by formula, in no time.
//!
//! Memory is what is alive at the moment of a step when most is. Time is that of matrix products
//! at the speed a chip reaches, of passes over memory at its bandwidth, and of collectives over its
//! network, which some chips do beside computing. What it is worth against the compiled plan is in
//! `tests/quick.rs`.

mod exchanges;
mod memory;
mod speeds;
mod work;

pub use memory::MemoryEstimate;

use crate::describe::Budget;
use crate::error::Error;
use crate::machine::Machine;
use crate::report::{Basis, Exchanged, MachineSummary, ModuleTime, Rates, Report, Time, Warning};
use fullshard_step::StepSpec;
use speeds::{FUSED_ATTENTION, Speeds};
use work::Work;

/// The most of computing that collectives hide behind.
const HIDEABLE: f64 = 0.8;

/// Plans a step by formula.
pub fn quick(spec: &StepSpec, machine: &Machine) -> Result<Report, Error> {
    let devices = spec.placement.devices();
    if devices != machine.devices {
        let (name, there) = (machine.name.clone(), machine.devices);
        return Err(Error::Devices { spec: devices, machine: name, devices: there });
    }
    let compute = spec.placement.wire.compute;
    let memory = MemoryEstimate::new(spec, machine.kind)?.of(machine.memory);
    let speeds = Speeds::of(&machine.chip, machine.kind, machine.chip.peak(compute));
    let mut collectives = exchanges::exchanged(spec, machine);
    let time = time(spec, machine, &speeds, &mut collectives);
    let rates = Rates::new(spec, machine, time.step, Budget::default());
    let mut report = Report {
        machine: MachineSummary::new(machine, compute),
        model: spec.model_summary(),
        settings: spec.settings(),
        basis: Basis::Quick,
        program: None,
        memory,
        time,
        rates,
        collectives,
        warnings: Vec::new(),
        notes: notes(spec, machine),
    };
    report.warnings = warnings(&report);
    Ok(report)
}

/// The time of a step, of which collectives take what they cannot hide.
fn time(
    spec: &StepSpec,
    machine: &Machine,
    speeds: &Speeds,
    collectives: &mut [Exchanged],
) -> Time {
    let head = spec.model.dimensions().head as f64;
    let narrow = match spec.attention_unsupported_reason() {
        None => FUSED_ATTENTION,
        // A model without attention has no heads.
        Some(_) if head == 0.0 => 1.0,
        Some(_) => (head / speeds.wide_head).min(1.0),
    };
    let through_memory = speeds.through_memory(work::stream(spec));
    let seconds = |work: &Work| {
        let operations = work.products + work.attention / narrow;
        let bytes = through_memory * work.bytes + work.stacked;
        operations / speeds.products + bytes / speeds.bandwidth
    };
    let all = work::work(spec, machine.kind, &speeds::passes(machine.kind));
    let mut modules: Vec<ModuleTime> = all
        .iter()
        .map(|work| ModuleTime {
            module: work.module.clone(),
            backward: work.backward,
            compute: seconds(work),
            exposed: 0.0,
        })
        .collect();
    let compute: f64 = modules.iter().map(|module| module.compute).sum();
    let sent: f64 = collectives.iter().map(|row| row.seconds).sum();
    let hidden = (speeds.overlap * sent).min(HIDEABLE * compute);
    if sent > 0.0 {
        exchanges::hide(collectives, hidden / sent);
    }
    let exposed = sent - hidden;
    for module in &mut modules {
        module.exposed = exposed * module.compute / compute;
    }
    Time { step: compute + exposed, compute, exposed, hidden, modules }
}

fn notes(spec: &StepSpec, machine: &Machine) -> Vec<String> {
    let mut notes = vec!["by formula: nothing was compiled".to_owned()];
    if machine.chip.peak(fullshard_graph::DType::Bf16).is_none() {
        notes.push(
            "of processors only the order of magnitude is known, and they share the host's memory"
                .to_owned(),
        );
    }
    if spec.eight_bit_products().is_some() {
        let slow = "products in 8 bits are taken to be as slow as those in 16: the compiled plan \
                    knows better";
        notes.push(slow.to_owned());
    }
    notes
}

/// The share of a step that may be exposed communication before that is worth a word.
const MUCH_EXPOSED: f64 = 0.2;

fn warnings(report: &Report) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut warn = |what: String, remedy: &str| {
        warnings.push(Warning { what, remedy: remedy.to_owned() });
    };
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let (memory, time) = (&report.memory, &report.time);
    if !memory.fits() {
        warn(
            format!(
                "a step needs about {:.1} GiB on each device, where {:.1} GiB are",
                gib(memory.total),
                gib(memory.limit)
            ),
            "lower --per_device_train_batch_size, add --remat full, or take more devices",
        );
    }
    if time.exposed > MUCH_EXPOSED * time.step {
        warn(
            format!(
                "devices wait for each other {:.0} % of the time: the batch is too small for the \
                 network",
                100.0 * time.exposed / time.step
            ),
            "raise --per_device_train_batch_size, with --remat full if memory is short",
        );
    }
    warnings
}
