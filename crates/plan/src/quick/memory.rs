//! Memory per device: a model of the buffers that compilers were seen to allocate.
//!
//! Parameters and optimizer state are exact. Gathered tensors are assumed to be live for the whole
//! step: parameters in the compute dtype, and their gradients before they are reduced. The rest is
//! live only at times, so that the [`Moment`] with the most of it counts. `tests/quick.rs` tests
//! the accuracy, and `tests/memory.rs` has figures worked out by hand.

mod layer;

use super::local::{Local, layer_params};
use crate::error::Error;
use crate::machine::Machine;
use crate::report::{Memory, Part};
use fullshard_graph::DType;
use fullshard_models::layers::loss::{CHUNKED_FROM, TILE, chunk_size};
use fullshard_parallel::{Layout, Remat, ShardedParam};
use fullshard_pjrt::plugins::Platform;
use fullshard_step::{StepSpec, UnitRow};
use serde::Serialize;

/// Estimated peak memory of a step in bytes per device, before anything is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MemoryEstimate {
    /// Parameter shards, exact.
    pub parameters: u64,
    /// Optimizer state, exact.
    pub optimizer: u64,
    /// Gradient shards.
    pub gradients: u64,
    /// Activations saved by layers, and the working set of one layer.
    pub activations: u64,
    /// All-gathered parameters and their gradients, logits with theirs, and the batches of a launch
    /// of several steps.
    pub temporaries: u64,
    /// The sum.
    pub total: u64,
    /// Activations in host memory, which are not part of the sum.
    pub host: u64,
}

impl MemoryEstimate {
    /// The ratio of estimate to available memory above which a step certainly does not fit.
    /// Estimates were at most 1.13 times what compilers reported for steps on TPUs, and on GPUs
    /// with unrolled layers; of the few others that were tried, at most 1.26 times with scanned
    /// layers on GPUs, 1.16 times with FP8 matmuls, and 1.24 times on CPU.
    pub const MAX_OVERESTIMATE: f64 = 4.0 / 3.0;

    /// The estimate for a step on a platform.
    pub fn new(spec: &StepSpec, kind: Platform) -> Result<MemoryEstimate, Error> {
        let state = spec.state_bytes()?;
        let peak = peak(spec, kind, gradients(spec, state.gradients));
        let transient = gathered(spec) + further_batches(spec)?;
        Ok(MemoryEstimate {
            parameters: state.parameters,
            optimizer: state.optimizer,
            gradients: peak.gradients,
            activations: peak.activations,
            temporaries: transient + peak.logits,
            total: state.parameters + state.optimizer + transient + peak.bytes(),
            host: offloaded(spec, kind),
        })
    }

    /// The parts by name, as in plans.
    pub fn parts(&self) -> Vec<Part> {
        let parts = [
            ("parameters", self.parameters),
            ("optimizer", self.optimizer),
            ("gradients", self.gradients),
            ("activations", self.activations),
            ("temporaries", self.temporaries),
        ];
        parts.map(|(what, bytes)| Part { what, bytes }).to_vec()
    }

    /// The estimate for a report, with the memory of a machine.
    pub(super) fn on(self, machine: &Machine) -> Memory {
        let Self { total, host, .. } = self;
        let (limit, host_limit) = (machine.memory, machine.host_memory());
        Memory { limit, total, host, host_limit, parts: self.parts(), largest: Vec::new() }
    }
}

const F32: usize = 4;

/// A moment of a step, with the bytes of temporary buffers live at it.
struct Moment {
    gradients: u64,
    activations: u64,
    logits: u64,
}

impl Moment {
    fn bytes(&self) -> u64 {
        self.gradients + self.activations + self.logits
    }

    fn or_larger(self, other: Moment) -> Moment {
        if other.bytes() > self.bytes() { other } else { self }
    }
}

/// The moment with the most live bytes.
fn peak(spec: &StepSpec, kind: Platform, gradients: u64) -> Moment {
    let (saved, working_set) = (layer::saved(spec, kind), layer::working_set(spec));
    let loss = Moment { gradients: 0, activations: saved.all, logits: logits(spec, kind) };
    // The CPU compiler hardly ever reuses buffers.
    if kind == Platform::Cpu {
        return Moment { gradients, activations: saved.all + working_set, ..loss };
    }
    // Unrolled layers free their saved activations one after the other as their gradients are
    // computed, where the scheduler orders them so. A scan holds all of its stacks throughout.
    if kind == Platform::Cuda && !spec.placement.options.scan_layers {
        // What only the last layer saves is part of its working set.
        let others = saved.all - saved.extra_of_last;
        let activations = others + working_set.max(saved.extra_of_last);
        let last_layer = Moment { gradients: 0, activations, logits: 0 };
        let first_layer = Moment { gradients, activations: working_set, logits: 0 };
        return loss.or_larger(last_layer).or_larger(first_layer);
    }
    let any_layer = Moment { gradients, activations: saved.all + working_set, logits: 0 };
    loss.or_larger(any_layer)
}

/// Bytes of units that are unsharded at the same time, and of their unreduced gradients.
fn gathered(spec: &StepSpec) -> u64 {
    let (placement, batch) = (&spec.placement, &spec.batch);
    let compute = placement.comm.compute;
    let is_replicated = |param: &ShardedParam| param.layout == Layout::Replicated;
    if compute == DType::F32 && placement.parameters.iter().all(is_replicated) {
        return 0;
    }
    let units = spec.unit_rows();
    let total = units.iter().map(|unit| unit.unsharded_bytes * unit.count as u64).sum::<u64>();
    if batch.accumulation > 1 && !batch.sync_each_microbatch {
        // Full gradients are accumulated in f32.
        return total + total / compute.size() as u64 * F32 as u64;
    }
    let (root, layer) = root_and_layer(spec, &units, total);
    if !reshards(spec, &units) {
        return total + root + layer;
    }
    // Parameters are gathered one at a time when they are used, unless they are packed.
    let at_once = if placement.comm.packed { layer } else { layer.min(largest_of_layers(spec)) };
    let ahead = if placement.gathers_layers_ahead() { layer } else { 0 };
    2 * (root + at_once) + ahead
}

/// Bytes of the batches of a launch besides that of the first step, which is too small to count.
fn further_batches(spec: &StepSpec) -> Result<u64, Error> {
    let batch = spec.step_inputs()?.batch;
    let local = batch.iter().map(|tensor| -> Result<u64, Error> {
        let dims = tensor.sharding.local_dims(&tensor.ty).map_err(fullshard_step::Error::from)?;
        Ok((dims.iter().product::<usize>() * tensor.ty.dtype.size()) as u64)
    });
    let bytes = local.sum::<Result<u64, Error>>()?;
    Ok((spec.iterations_per_loop as u64 - 1) * bytes)
}

/// The bytes of the root and of the largest other unit. One device shards nothing, so that its
/// layers are converted one at a time whether they are units or not.
fn root_and_layer(spec: &StepSpec, units: &[UnitRow], total: u64) -> (u64, u64) {
    if spec.placement.devices() == 1 {
        let elements = layer_params(spec).map(ShardedParam::elements).sum::<usize>();
        let layer_bytes = (elements * spec.placement.comm.compute.size()) as u64;
        let layers = spec.model.dimensions().layers.max(1) as u64;
        return (total.saturating_sub(layer_bytes), layer_bytes / layers);
    }
    let largest = units.iter().skip(1).map(|unit| unit.unsharded_bytes).max();
    (units.first().map_or(0, |unit| unit.unsharded_bytes), largest.unwrap_or(0))
}

/// Whether units below the root are resharded after the forward pass. Replicated parameters are
/// only converted, and stay converted unless rematerialized or scanned layers convert them again.
fn reshards(spec: &StepSpec, units: &[UnitRow]) -> bool {
    let placement = &spec.placement;
    let is_replicated = |param: &ShardedParam| param.layout == Layout::Replicated;
    let scanned = placement.options.scan_layers && units.len() > 1;
    if scanned && placement.parameters.iter().all(is_replicated) {
        return true;
    }
    let frees = placement.devices() > 1 || placement.remat != Remat::None;
    frees && units.iter().skip(1).all(|unit| unit.reshard)
}

/// The bytes of the largest parameter of a layer, in the compute dtype.
fn largest_of_layers(spec: &StepSpec) -> u64 {
    let elements = layer_params(spec).map(|it| it.slice_elements() / it.stack.unwrap_or(1));
    (elements.max().unwrap_or(0) * spec.placement.comm.compute.size()) as u64
}

/// A chunk of logits in `f32`, or on GPUs in the compute dtype, its gradient in the compute dtype,
/// and the gradient of the head, in `f32` if chunks accumulate into it. On GPUs the gradient of a
/// single chunk reuses the buffer of its logits. Without chunks, all logits and their gradient in
/// `f32`; where the loss is a custom call, a chunk of exponentials and the gradient of the head, with
/// a copy of the head in `f32` if the call does not support its dtype.
fn logits(spec: &StepSpec, kind: Platform) -> u64 {
    let placement = &spec.placement;
    let model = spec.model.dimensions();
    let Local { tokens, vocabulary, .. } = Local::new(spec);
    if model.vocabulary < CHUNKED_FROM && vocabulary == model.vocabulary {
        return (2 * tokens * vocabulary * F32) as u64;
    }
    let lowering = &placement.options.lowering;
    let tile = if lowering.padded_vocabulary { TILE } else { 1 };
    let vocabulary = vocabulary.next_multiple_of(tile);
    let chunk = chunk_size(tokens, vocabulary, lowering.chunk_bytes);
    let size = placement.comm.compute.size();
    if lowering.loss_custom_call && placement.tensor_shards() == 1 {
        let (exponentials, heads) = match placement.comm.compute {
            DType::Bf16 => (size, 1),
            DType::F32 => (F32, 1),
            _ => (F32, 2),
        };
        return ((chunk * exponentials + heads * model.hidden * F32) * vocabulary) as u64;
    }
    // With tensor parallelism the gradient waits for sums over devices.
    let shared = placement.tensor_shards() == 1;
    let (logits_and_gradients, of_head) = match (kind, chunk < tokens) {
        (Platform::Cuda, true) => (2 * size, F32),
        (Platform::Cuda, false) if !shared => (2 * size, size),
        (Platform::Cuda, false) => (size, size),
        (_, true) => (F32 + size, F32),
        (_, false) => (F32 + size, size),
    };
    ((chunk * logits_and_gradients + model.hidden * of_head) * vocabulary) as u64
}

/// Bytes of gradient shards, given their bytes in `f32`. Those of unrolled layers stay in the
/// reduce dtype until they are used; a scan stacks them in `f32`.
fn gradients(spec: &StepSpec, wide: u64) -> u64 {
    let stacked = spec.placement.options.scan_layers || spec.batch.accumulation > 1;
    let size = if stacked { F32 } else { spec.placement.comm.reduce.size() };
    wide / F32 as u64 * size as u64
}

/// Bytes of activations in host memory.
pub(super) fn offloaded(spec: &StepSpec, kind: Platform) -> u64 {
    layer::saved(spec, kind).host
}

/// Bytes that a scan stacks in the forward pass for the backward pass.
pub(super) fn stacked(spec: &StepSpec, kind: Platform) -> u64 {
    if spec.placement.options.scan_layers { layer::saved(spec, kind).all } else { 0 }
}
