//! What is in the way of a compiled step, and what to do about it.

use super::alive::{Buffer, Peak};
use super::time::Played;
use crate::machine::Machine;
use crate::report::Warning;
use fullshard_models::layers::loss::TILE;
use fullshard_parallel::{ExchangeKind, Strategy};
use fullshard_pjrt::hlo::CollectiveKind;
use fullshard_pjrt::plugins::Platform;
use fullshard_step::StepSpec;

/// The share of a device's memory from which on a buffer is worth a word.
const LARGE: f64 = 0.01;

/// Bytes from which on the rate of the network counts, not its latency.
const SENT: u64 = 1 << 30;

const MIB: f64 = (1_u64 << 20) as f64;

/// Everything worth a word.
pub fn warnings(spec: &StepSpec, machine: &Machine, played: &Played, peak: &Peak) -> Vec<Warning> {
    let found = [
        replicated(spec, machine, peak),
        small_batch(spec, machine),
        kept_gathers(spec, machine, peak),
        whole_sums(spec, played),
        vocabulary(spec, machine),
    ];
    found.into_iter().flatten().collect()
}

/// A buffer with the tokens of all devices in it.
fn replicated(spec: &StepSpec, machine: &Machine, peak: &Peak) -> Option<Warning> {
    let devices = spec.placement.devices();
    let both = [spec.batch.sequences, spec.batch.tokens];
    let is_whole = |buffer: &&Buffer| buffer.shape.dims.windows(2).any(|pair| pair == both);
    let large = peak.buffers.iter().filter(|buffer| is_large(buffer, machine));
    let largest = large.filter(is_whole).max_by_key(|buffer| buffer.bytes)?;
    (devices > 1).then(|| Warning {
        what: format!(
            "{} holds the tokens of all {devices} devices on each: {:.0} MiB{}",
            largest.instruction,
            largest.bytes as f64 / MIB,
            in_module(largest)
        ),
        remedy: "cut it over the batch: a sum or a gather over devices comes too early there"
            .to_owned(),
    })
}

/// Fewer tokens on a device than its share of the exchange takes to hide: a layer's products take
/// 2·n·P operations for n tokens and P parameters, its gather 2·P bytes.
fn small_batch(spec: &StepSpec, machine: &Machine) -> Option<Warning> {
    let peak = machine.chip.peak(spec.placement.wire.compute)?;
    let devices = machine.devices;
    if devices < 2 || spec.placement.options.strategy == Strategy::NoShard {
        return None;
    }
    let seconds = machine.network.seconds(CollectiveKind::AllGather, SENT, devices, devices);
    let size = spec.placement.wire.compute.size() as f64;
    let least = peak / (SENT as f64 / seconds) * size / 2.0;
    let tokens = spec.batch.sequences / devices * spec.batch.tokens;
    let sequences = (least / spec.batch.tokens as f64).ceil();
    ((tokens as f64) < least).then(|| Warning {
        what: format!(
            "{tokens} tokens on a device are computed faster than parameters are gathered for \
             them, which takes the time of {least:.0}"
        ),
        remedy: format!(
            "raise --per_device_train_batch_size to {sequences:.0} or more, or take fewer devices"
        ),
    })
}

/// Parameters that are gathered for the way forward and kept for the way back.
fn kept_gathers(spec: &StepSpec, machine: &Machine, peak: &Peak) -> Option<Warning> {
    let kept = spec.unit_rows().into_iter().skip(1).filter(|row| !row.reshard);
    let bytes: u64 = kept.map(|row| row.whole_bytes * row.count as u64).sum();
    let cut = spec.placement.devices() > 1;
    let strategy = spec.placement.options.strategy;
    if cut && bytes > 0 && strategy != Strategy::NoShard {
        return Some(Warning {
            what: format!(
                "all layers stay gathered from the way forward to the way back: {:.0} MiB",
                bytes as f64 / MIB
            ),
            remedy: "--fsdp full_shard lets them go and gathers again; keep it if it fits, since \
                     it saves a third of the exchange"
                .to_owned(),
        });
    }
    let gathered = peak
        .buffers
        .iter()
        .filter(|buffer| buffer.opcode.starts_with("all-gather") && is_large(buffer, machine));
    let largest = gathered.filter(|it| it.outlives_loop).max_by_key(|buffer| buffer.bytes)?;
    Some(Warning {
        what: format!(
            "{:.0} MiB are gathered before the layers and kept until after them{}",
            largest.bytes as f64 / MIB,
            in_module(largest)
        ),
        remedy: "make the module a unit of its own, by transformer_layer_cls_to_wrap or \
                 min_num_params, so that it is let go and gathered again"
            .to_owned(),
    })
}

/// Gradients that the compiler sums whole on every device, where a part of the sum would do.
fn whole_sums(spec: &StepSpec, played: &Played) -> Option<Warning> {
    let scattered = spec.placement.exchanges().into_iter();
    let scattered = scattered.filter(|exchange| exchange.kind == ExchangeKind::ReduceScatter);
    let wanted: u64 = scattered.map(|exchange| (exchange.bytes * exchange.count) as u64).sum();
    let sums = played.exchanged.iter().filter(|row| row.kind == "all-reduce");
    let (bytes, seconds) = sums.fold((0, 0.0), |(bytes, seconds), row| {
        (bytes + row.bytes * row.count, seconds + row.seconds)
    });
    // The optimizer has small sums of its own.
    (wanted > 0 && bytes > wanted / 4).then(|| Warning {
        what: format!(
            "the compiler makes reduce-scatters all-reduces of {:.0} MiB in all, {seconds:.2} s, \
             and keeps a part of each",
            bytes as f64 / MIB,
        ),
        remedy: "libtpu has reduce-scatters for a line or a plane of chips, not for more: a v4-8 \
                 keeps them. Sums use all links at once, so that little is lost; where memory \
                 allows, --gradient_accumulation_steps with --no_sync makes them fewer"
            .to_owned(),
    })
}

/// A vocabulary that does not fill the tiles of a matrix unit.
fn vocabulary(spec: &StepSpec, machine: &Machine) -> Option<Warning> {
    let words = spec.model.dimensions().vocabulary;
    let filled = words.next_multiple_of(TILE);
    (machine.kind != Platform::Cpu && filled != words).then(|| Warning {
        what: format!(
            "a vocabulary of {words} is padded to {filled} in every step, which copies the \
             embedding"
        ),
        remedy: format!("begin the model with a vocab_size of {filled}"),
    })
}

fn is_large(buffer: &Buffer, machine: &Machine) -> bool {
    buffer.bytes as f64 >= LARGE * machine.memory as f64
}

fn in_module(buffer: &Buffer) -> String {
    match buffer.belongs.module.as_str() {
        "" => String::new(),
        module => format!(" ({module})"),
    }
}
