//! Warnings about a compiled step, with fixes.

use super::liveness::{Buffer, Peak};
use super::time::Simulation;
use crate::describe::{one_unit, tensor_axis};
use crate::machine::Machine;
use crate::report::Warning;
use fullshard_core::CollectiveKind;
use fullshard_models::layers::loss::TILE;
use fullshard_parallel::{ShardedParam, Strategy};
use fullshard_pjrt::plugins::Platform;
use fullshard_step::StepSpec;

/// The share of device memory above which to warn about a buffer.
const LARGE: f64 = 0.01;

/// Bytes of a collective that is limited by the rate of the network, not its latency.
const SENT: u64 = 1 << 30;

const MIB: f64 = (1_u64 << 20) as f64;

/// All warnings.
pub fn warnings(
    spec: &StepSpec,
    machine: &Machine,
    simulation: &Simulation,
    peak: &Peak,
) -> Vec<Warning> {
    let found = [
        one_unit(spec),
        replicated(spec, machine, peak),
        small_batch(spec, machine),
        unsharded_layers(spec, machine, peak),
        unscattered_gradients(spec, simulation),
        vocabulary(spec, machine),
    ];
    found.into_iter().flatten().collect()
}

/// A buffer that holds the tokens of all devices.
fn replicated(spec: &StepSpec, machine: &Machine, peak: &Peak) -> Option<Warning> {
    let devices = spec.placement.batch_shards();
    let both = [spec.batch.sequences, spec.batch.tokens];
    let is_global = |buffer: &&Buffer| buffer.shape.dims.windows(2).any(|pair| pair == both);
    let large = peak.buffers.iter().filter(|buffer| is_large(buffer, machine));
    let largest = large.filter(is_global).max_by_key(|buffer| buffer.bytes)?;
    (devices > 1).then(|| Warning {
        what: format!(
            "{} holds the tokens of all {devices} devices on every device: {:.0} MiB{}",
            largest.instruction,
            largest.bytes as f64 / MIB,
            in_module(largest)
        ),
        fix: "shard it over the batch: a reduction or a gather over devices comes too early there"
            .to_owned(),
    })
}

/// Fewer tokens per device than needed to hide the all-gather: a layer's matmuls take 2·n·P FLOPs
/// for n tokens and P parameters, its all-gather 2·P bytes.
fn small_batch(spec: &StepSpec, machine: &Machine) -> Option<Warning> {
    let peak = machine.chip.peak(spec.placement.comm.compute)?;
    let placement = &spec.placement;
    let is_sharded = |param: &&ShardedParam| param.num_shards > 1 && param.dims.len() > 1;
    let param = placement.parameters.iter().find(is_sharded)?;
    if placement.options.strategy == Strategy::NoShard {
        return None;
    }
    let members = placement.mesh.groups(&param.axes).swap_remove(0);
    let seconds = machine.network.seconds(CollectiveKind::AllGather, SENT, &members);
    let size = placement.comm.compute.size() as f64;
    let least = peak / (SENT as f64 / seconds) * size / 2.0;
    let tokens = spec.tokens_per_device();
    let of_sequence = spec.batch.tokens / placement.context_shards();
    let sequences = (least / of_sequence as f64).ceil();
    ((tokens as f64) < least).then(|| Warning {
        what: format!(
            "{tokens} tokens per device take less time to compute than the parameters to \
             all-gather, which needs {least:.0} tokens to hide"
        ),
        fix: format!(
            "raise --per_device_train_batch_size to {sequences:.0} or more, or use fewer devices"
        ),
    })
}

/// Parameters that stay unsharded from the forward to the backward pass.
fn unsharded_layers(spec: &StepSpec, machine: &Machine, peak: &Peak) -> Option<Warning> {
    let unsharded = spec.unit_rows().into_iter().skip(1).filter(|row| !row.reshard);
    let bytes: u64 = unsharded.map(|row| row.unsharded_bytes * row.count as u64).sum();
    let sharded = spec.placement.devices() > 1;
    let strategy = spec.placement.options.strategy;
    if sharded && bytes > 0 && strategy != Strategy::NoShard {
        return Some(Warning {
            what: format!(
                "all layers stay unsharded from the forward to the backward pass: {:.0} MiB",
                bytes as f64 / MIB
            ),
            fix: "--fsdp full_shard reshards them and gathers them again; if memory allows, \
                  keeping them unsharded saves a third of the communication"
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
            "{:.0} MiB are all-gathered before the layers and live until after them{}",
            largest.bytes as f64 / MIB,
            in_module(largest)
        ),
        fix: "wrap the module as its own FSDP unit, by transformer_layer_cls_to_wrap or \
              min_num_params, so that it is resharded and gathered again"
            .to_owned(),
    })
}

/// Gradients that the compiler all-reduces where a reduce-scatter would do.
fn unscattered_gradients(spec: &StepSpec, simulation: &Simulation) -> Option<Warning> {
    let scattered = spec.placement.collectives().into_iter();
    let scattered = scattered.filter(|collective| collective.kind == CollectiveKind::ReduceScatter);
    let expected: u64 =
        scattered.map(|collective| (collective.bytes * collective.count) as u64).sum();
    // Those of activations go over other axes.
    let tensor = tensor_axis(&spec.placement);
    let reduced = simulation.collective_times.iter();
    let reduced =
        reduced.filter(|row| row.kind == "all-reduce" && tensor.as_ref() != Some(&row.axis));
    let (bytes, seconds) = reduced.fold((0, 0.0), |(bytes, seconds), row| {
        (bytes + row.bytes * row.count, seconds + row.seconds)
    });
    // The optimizer has its own small all-reduces.
    (expected > 0 && bytes > expected / 4).then(|| Warning {
        what: format!(
            "the compiler replaces reduce-scatters by all-reduces of {:.0} MiB in total, \
             {seconds:.2} s, and keeps one shard of each",
            bytes as f64 / MIB,
        ),
        fix: "libtpu has reduce-scatters for a line or a plane of chips, not for more: a v4-8 \
              keeps them. All-reduces use all links at once, so little is lost; if memory \
              allows, --gradient_accumulation_steps with --no_sync needs fewer of them"
            .to_owned(),
    })
}

/// A vocabulary that is not a multiple of the matrix unit's tile.
fn vocabulary(spec: &StepSpec, machine: &Machine) -> Option<Warning> {
    let size = spec.model.dimensions().vocabulary;
    let padded = size.next_multiple_of(TILE);
    (machine.kind != Platform::Cpu && padded != size).then(|| Warning {
        what: format!(
            "a vocabulary of {size} is padded to {padded} in every step, which copies the \
             embedding"
        ),
        fix: format!("train from scratch with a vocab_size of {padded}"),
    })
}

fn is_large(buffer: &Buffer, machine: &Machine) -> bool {
    buffer.bytes as f64 >= LARGE * machine.memory as f64
}

fn in_module(buffer: &Buffer) -> String {
    match buffer.owner.module.as_str() {
        "" => String::new(),
        module => format!(" ({module})"),
    }
}
