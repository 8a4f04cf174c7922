//! The quick plan: computed by formula from the spec alone.
//!
//! Memory is the peak of live buffers in a step. Time is that of matmuls at the rate a chip
//! reaches, of memory traffic at its bandwidth, and of collectives over its network, which some
//! chips overlap with compute, except those of tensor parallelism. `tests/quick.rs` compares it with the compiled plan.

mod activations;
mod collectives;
mod local;
mod memory;
mod speeds;
mod work;

pub use memory::MemoryEstimate;

use crate::describe::{Budget, host_memory, memory_fix, one_unit, tensor_axis};
use crate::error::Error;
use crate::goodput::{Failures, Goodput};
use crate::machine::Machine;
use crate::report::{Basis, MachineSummary, ModuleTime, Rates, Report, Time, Warning};
use crate::start_up::StartUp;
use collectives::Communication;
use fullshard_core::{CollectiveKind, Layout};
use fullshard_parallel::Staging;
use fullshard_step::StepSpec;
use speeds::{FUSED_ATTENTION, Speeds};
use work::Work;

/// The most of compute that collectives can overlap with.
const HIDEABLE: f64 = 0.8;

/// The share of collectives that overlaps where gradients are reduced around rings and all-gathers
/// are asynchronous: in the blog post's six steps on v4 0.89 to 0.97, 0.94 on average.
const RINGS: f64 = 0.94;

/// How many times the adds of a ring pass over its payload at the full bandwidth: two reads and a
/// write at half of it.
const RING_ADD_PASSES: f64 = 6.0;

/// Plans a step by formula.
pub fn quick(spec: &StepSpec, machine: &Machine) -> Result<Report, Error> {
    let devices = spec.placement.devices();
    if devices != machine.devices {
        let (name, available) = (machine.name.clone(), machine.devices);
        return Err(Error::Devices { spec: devices, machine: name, devices: available });
    }
    let compute = spec.placement.comm.compute;
    let memory = MemoryEstimate::new(spec, machine.kind)?.on(machine);
    let speeds = Speeds::of(&machine.chip, machine.kind, machine.chip.peak(compute));
    let mut communication = Communication::new(spec, machine);
    let time = time(spec, machine, &speeds, &mut communication);
    let rates = Rates::new(spec, machine, time.step, Budget::default());
    let start_up = StartUp::new(spec, machine, None, None)?;
    let goodput = Goodput::new(machine, time.step, &start_up, &rates, Failures::default());
    let mut report = Report {
        machine: MachineSummary::new(machine, compute),
        model: spec.model_summary(),
        settings: spec.settings(),
        basis: Basis::Quick,
        program: None,
        memory,
        time,
        rates,
        start_up,
        goodput,
        collectives_by_module: std::mem::take(&mut communication.by_module),
        collectives: communication.into_rows(),
        warnings: Vec::new(),
        notes: notes(spec, machine),
    };
    let found = [one_unit(spec), host_memory(&report.memory)].into_iter().flatten();
    report.warnings = found.chain(warnings(spec, &report)).collect();
    Ok(report)
}

/// The step time: compute and exposed collectives.
fn time(
    spec: &StepSpec,
    machine: &Machine,
    speeds: &Speeds,
    communication: &mut Communication,
) -> Time {
    let head = spec.model.dimensions().head as f64;
    let attention_efficiency = match spec.attention_unsupported_reason() {
        None => FUSED_ATTENTION,
        // A model without attention has no heads.
        Some(_) if head == 0.0 => 1.0,
        Some(_) => (head / speeds.wide_head).min(1.0),
    };
    let through_memory = speeds.through_memory(work::residual_bytes(spec));
    let seconds = |work: &Work| {
        let flops = work.matmul_flops + work.attention_flops / attention_efficiency;
        let bytes = through_memory * work.bytes + work.stacked;
        let compute = flops / speeds.matmul_rate + bytes / speeds.bandwidth;
        // Moving activations overlaps with computing others.
        compute.max(machine.chip.host_link.map_or(0.0, |rate| work.offloaded / rate))
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
    modules.extend(ring_adds(spec, communication, speeds));
    let compute: f64 = modules.iter().map(|module| module.compute).sum();
    let waiting: f64 = communication.waiting.iter().map(|row| row.seconds).sum();
    let overlapping: f64 = communication.overlapping.iter().map(|row| row.seconds).sum();
    let share = match spec.placement.comm.staging {
        Staging::Ring => RINGS.max(speeds.overlap),
        _ => speeds.overlap,
    };
    let hidden = (share * overlapping).min(HIDEABLE * compute);
    if overlapping > 0.0 {
        communication.hide(hidden / overlapping);
    }
    let exposed = waiting + overlapping - hidden;
    for module in &mut modules {
        module.exposed = exposed * module.compute / compute;
    }
    Time { step: compute + exposed, compute, exposed, contention: 0.0, hidden, modules }
}

/// The adds of gradients that go around rings, by module. Those of a flat layout are apart; others
/// are inside the matmuls that compute the gradient.
fn ring_adds(
    spec: &StepSpec,
    communication: &Communication,
    speeds: &Speeds,
) -> impl Iterator<Item = ModuleTime> {
    let is_flat = spec.placement.parameters.iter().any(|param| param.layout == Layout::Flat);
    let is_apart = is_flat && spec.placement.comm.staging == Staging::Ring;
    let permute = CollectiveKind::CollectivePermute.to_string();
    let rows = communication.by_module.iter().filter(move |_| is_apart);
    rows.filter(move |row| row.backward && row.kind == permute).map(|row| ModuleTime {
        module: row.module.clone(),
        backward: true,
        compute: RING_ADD_PASSES * row.bytes as f64 / speeds.bandwidth,
        exposed: 0.0,
    })
}

fn notes(spec: &StepSpec, machine: &Machine) -> Vec<String> {
    let mut notes = vec!["estimated by formula, nothing was compiled".to_owned()];
    if machine.chip.peak(fullshard_graph::DType::Bf16).is_none() {
        notes.push(
            "CPU figures are only an order of magnitude, and devices share the host's memory"
                .to_owned(),
        );
    }
    if spec.placement.tensor_shards() > 1 {
        let waits = "compute is assumed to wait for all collectives of tensor parallelism: the \
                     compiled plan knows which ones overlap";
        notes.push(waits.to_owned());
    }
    if spec.placement.remat.offloads() && machine.chip.host_link.is_none() {
        let unknown = "the rate of this chip to host memory is not known: moving activations is \
                       assumed to overlap with compute";
        notes.push(unknown.to_owned());
    }
    if spec.fp8_matmuls().is_some() {
        let slow = "FP8 matmuls are assumed to be as slow as 16-bit ones: the compiled plan is \
                    more accurate";
        notes.push(slow.to_owned());
    }
    notes
}

/// The share of exposed communication in a step above which to warn.
const MUCH_EXPOSED: f64 = 0.2;

fn warnings(spec: &StepSpec, report: &Report) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut warn = |what: String, fix: &str| {
        warnings.push(Warning { what, fix: fix.to_owned() });
    };
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let (memory, time) = (&report.memory, &report.time);
    if memory.total > memory.limit {
        warn(
            format!(
                "a step needs about {:.1} GiB per device, {:.1} GiB available",
                gib(memory.total),
                gib(memory.limit)
            ),
            &memory_fix(spec),
        );
    }
    let axis = tensor_axis(&spec.placement);
    let sliced = report.collectives.iter().filter(|row| axis.as_ref() == Some(&row.axis));
    let sliced: f64 = sliced.map(|row| row.seconds - row.hidden).sum();
    if sliced > MUCH_EXPOSED * time.step {
        warn(
            format!(
                "collectives of tensor parallelism take {:.0} % of the step, and compute waits for \
                 them",
                100.0 * sliced / time.step
            ),
            "use a smaller axis tensor in --mesh, and one of near devices",
        );
    } else if time.exposed > MUCH_EXPOSED * time.step {
        warn(
            format!(
                "exposed communication takes {:.0} % of the step: the batch is too small for the \
                 network",
                100.0 * time.exposed / time.step
            ),
            "raise --per_device_train_batch_size, with --remat full if memory is tight",
        );
    }
    warnings
}
