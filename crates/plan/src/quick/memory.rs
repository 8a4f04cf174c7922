//! What a step needs on each device: a model of what compilers were seen to make of steps.
//!
//! Parameters and the optimizer's state are exact. What is gathered is taken to be there from
//! beginning to end: parameters in the type computed in, and their gradients before they are
//! reduced. The rest comes and goes, so that what counts is the [`Moment`] with the most of it.
//! `tests/quick.rs` says how near that comes, and `tests/memory.rs` has figures worked out by hand.

mod layer;

use crate::error::Error;
use crate::report::{Memory, Part};
use fullshard_graph::DType;
use fullshard_models::layers::loss::{CHUNKED_FROM, TILE, chunk_size};
use fullshard_parallel::{Layout, Remat, Stored};
use fullshard_pjrt::plugins::Platform;
use fullshard_step::{StepSpec, UnitRow};
use serde::Serialize;

/// What a step should need on each device, in bytes, before anything is compiled: alive at the
/// moment when most is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MemoryEstimate {
    /// The parts of parameters, exactly.
    pub parameters: u64,
    /// The optimizer's state, exactly.
    pub optimizer: u64,
    /// The parts of gradients.
    pub gradients: u64,
    /// What layers remember, and one layer at work.
    pub activations: u64,
    /// Parameters that are whole and their gradients, and logits with theirs.
    pub temporaries: u64,
    /// All of it.
    pub total: u64,
}

impl MemoryEstimate {
    /// How many times the memory there is an estimate must be before a step surely does not fit.
    /// It was at most 1.13 times what compilers said of steps on TPUs, and on GPUs with layers written
    /// out; of the few others that were tried, at most 1.26 times with a loop on GPUs, 1.16 times
    /// with products in 8 bits, and 1.24 times on CPU.
    pub const SURE: f64 = 4.0 / 3.0;

    /// The estimate for a step on devices of a kind.
    pub fn new(spec: &StepSpec, kind: Platform) -> Result<MemoryEstimate, Error> {
        let state = spec.state_bytes()?;
        let peak = peak(spec, kind, gradients(spec, state.gradients));
        let gathered = gathered(spec);
        Ok(MemoryEstimate {
            parameters: state.parameters,
            optimizer: state.optimizer,
            gradients: peak.gradients,
            activations: peak.activations,
            temporaries: gathered + peak.logits,
            total: state.parameters + state.optimizer + gathered + peak.bytes(),
        })
    }

    /// The parts by name, as plans have them.
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

    /// The same for a report, on devices with so much memory.
    pub(super) fn of(self, limit: u64) -> Memory {
        Memory { limit, total: self.total, parts: self.parts(), largest: Vec::new() }
    }
}

const F32: usize = 4;

/// A moment of a step, with what is alive at it that comes and goes.
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

/// The moment at which most is alive.
fn peak(spec: &StepSpec, kind: Platform, gradients: u64) -> Moment {
    let (kept, at_work) = (layer::kept(spec, kind), layer::at_work(spec));
    let loss = Moment { gradients: 0, activations: kept.all, logits: logits(spec, kind) };
    // The CPU's compiler hardly ever puts one thing where another was.
    if kind == Platform::Cpu {
        return Moment { gradients, activations: kept.all + at_work, ..loss };
    }
    // Layers that are written out let go of what they keep, one after the other, as their gradients
    // come: where the scheduler sees to it. A loop has all of its stacks from beginning to end.
    if kind == Platform::Cuda && !spec.placement.options.scan_layers {
        // What only the last layer keeps, it has at work.
        let others = kept.all - kept.more_of_last;
        let activations = others + at_work.max(kept.more_of_last);
        let last_layer = Moment { gradients: 0, activations, logits: 0 };
        let first_layer = Moment { gradients, activations: at_work, logits: 0 };
        return loss.or_larger(last_layer).or_larger(first_layer);
    }
    let any_layer = Moment { gradients, activations: kept.all + at_work, logits: 0 };
    loss.or_larger(any_layer)
}

/// Units that are whole at once, and their gradients before they are reduced.
fn gathered(spec: &StepSpec) -> u64 {
    let (placement, batch) = (&spec.placement, &spec.batch);
    let compute = placement.wire.compute;
    let is_whole = |stored: &Stored| stored.layout == Layout::Replicated;
    if compute == DType::F32 && placement.parameters.iter().all(is_whole) {
        return 0;
    }
    let units = spec.unit_rows();
    let everything = units.iter().map(|unit| unit.whole_bytes * unit.count as u64).sum::<u64>();
    if batch.accumulation > 1 && !batch.sync_each_microbatch {
        // Gradients are added up whole, in f32.
        return everything + everything / compute.size() as u64 * F32 as u64;
    }
    let (root, layer) = root_and_layer(spec, &units, everything);
    if !lets_go(spec, &units) {
        return everything + root + layer;
    }
    // One after the other is gathered when it is used, unless they are packed.
    let at_once = if placement.wire.packed { layer } else { layer.min(largest_of_layers(spec)) };
    let ahead = if placement.gathers_ahead() { layer } else { 0 };
    2 * (root + at_once) + ahead
}

/// The bytes of the root and of the largest other unit, of so many in all. One device cuts nothing,
/// so that its layers come one by one whether they are units or not.
fn root_and_layer(spec: &StepSpec, units: &[UnitRow], everything: u64) -> (u64, u64) {
    if spec.placement.devices() == 1 {
        let elements = of_layers(spec).map(Stored::elements).sum::<usize>();
        let of_layers = (elements * spec.placement.wire.compute.size()) as u64;
        let layers = spec.model.dimensions().layers.max(1) as u64;
        return (everything.saturating_sub(of_layers), of_layers / layers);
    }
    let largest = units.iter().skip(1).map(|unit| unit.whole_bytes).max();
    (units.first().map_or(0, |unit| unit.whole_bytes), largest.unwrap_or(0))
}

/// Whether units below the root are let go after the forward pass. One device gathers nothing but
/// converts, and what it converts stays, unless layers are computed again and convert again with
/// that.
fn lets_go(spec: &StepSpec, units: &[UnitRow]) -> bool {
    let again = spec.placement.devices() > 1 || spec.placement.remat != Remat::None;
    again && units.iter().skip(1).all(|unit| unit.reshard)
}

/// The parameters of layers.
fn of_layers(spec: &StepSpec) -> impl Iterator<Item = &Stored> {
    spec.placement.parameters.iter().filter(|it| it.stack.or(it.layer).is_some())
}

/// The bytes of the largest parameter of a layer, as it is computed with.
fn largest_of_layers(spec: &StepSpec) -> u64 {
    let elements = of_layers(spec).map(|it| it.elements() / it.stack.unwrap_or(1));
    (elements.max().unwrap_or(0) * spec.placement.wire.compute.size()) as u64
}

/// A chunk of logits in `f32`, or on GPUs as it is computed, its gradient in the type computed in,
/// and the gradient of the head, in `f32` if chunks add to it. On GPUs the gradient of the only chunk
/// takes the place of its logits. Where there are no chunks, all logits
/// and their gradient in `f32`; where the loss is a call, a chunk of exponentials and all else that
/// it takes and gives in `f32`.
fn logits(spec: &StepSpec, kind: Platform) -> u64 {
    let (placement, batch) = (&spec.placement, &spec.batch);
    let model = spec.model.dimensions();
    let tokens = batch.sequences / placement.devices() * batch.tokens;
    if model.vocabulary < CHUNKED_FROM {
        return (2 * tokens * model.vocabulary * F32) as u64;
    }
    let lowering = &placement.options.lowering;
    let tile = if lowering.padded_vocabulary { TILE } else { 1 };
    let vocabulary = model.vocabulary.next_multiple_of(tile);
    let chunk = chunk_size(tokens, vocabulary, lowering.large_chunks);
    let size = placement.wire.compute.size();
    if lowering.loss_custom_call {
        let heads = if size == F32 { 1 } else { 2 };
        return ((chunk + heads * model.hidden) * vocabulary * F32) as u64;
    }
    let (logits_and_gradients, of_head) = match (kind, chunk < tokens) {
        (Platform::Cuda, true) => (2 * size, F32),
        (Platform::Cuda, false) => (size, size),
        (_, true) => (F32 + size, F32),
        (_, false) => (F32 + size, size),
    };
    ((chunk * logits_and_gradients + model.hidden * of_head) * vocabulary) as u64
}

/// The parts of gradients, of so many bytes in `f32`. Those of layers that are written out stay in
/// the type they are reduced in until they are used; a loop stacks them in `f32`.
fn gradients(spec: &StepSpec, wide: u64) -> u64 {
    let stacked = spec.placement.options.scan_layers || spec.batch.accumulation > 1;
    let size = if stacked { F32 } else { spec.placement.wire.reduce.size() };
    wide / F32 as u64 * size as u64
}

/// What a loop stacks on its way forth, for its way back.
pub(super) fn stacked(spec: &StepSpec, kind: Platform) -> u64 {
    if spec.placement.options.scan_layers { layer::kept(spec, kind).all } else { 0 }
}
