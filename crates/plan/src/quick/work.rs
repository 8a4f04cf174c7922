//! The work of one device in a step by module: FLOPs of matmuls and bytes of everything else.
//!
//! With n tokens per device and microbatch:
//!
//! - matmuls of a layer: 2·n FLOPs per matrix element in the forward pass and 4·n in the backward
//!   pass; 2·n more where they are recomputed, which the last matmul of a layer never is, since
//!   the backward pass does not need its result.
//! - blockwise attention covers the pairs of its blocks. It has two matmuls in the forward pass
//!   and five in the backward pass, since scores are always recomputed, and two more where layers
//!   are recomputed. The fused kernel skips future tokens and stores no scores.
//! - the head: 6·n FLOPs per element, including the padding of the vocabulary.
//! - tensor parallelism leaves a device its slices of matrices, heads and vocabulary; context
//!   parallelism its tokens, with the same pairs for each. Its blocks of attention are merged in
//!   `f32`.
//! - everything else is memory bound. It is counted in passes, each of which reads or writes
//!   once: over the inputs and outputs of matmuls, scores in `f32`, tensors stacked by a scan,
//!   logits, and the optimizer state.

use super::local::{Local, layer_params};
use super::memory;
use fullshard_models::layers::attention::BLOCK;
use fullshard_models::layers::loss::{CHUNKED_FROM, TILE, chunk_size};
use fullshard_parallel::Remat;
use fullshard_pjrt::plugins::Platform;
use fullshard_step::StepSpec;

/// Work of one module in the forward or backward pass, on one device.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Work {
    /// The path of the module.
    pub module: String,
    /// Whether it is the backward pass.
    pub backward: bool,
    /// FLOPs of matmuls with weights.
    pub matmul_flops: f64,
    /// FLOPs of attention's matmuls, whose rate depends on the head size.
    pub attention_flops: f64,
    /// Bytes of memory traffic outside of matmuls.
    pub bytes: f64,
    /// Bytes saved by a scan or read back.
    pub stacked: f64,
    /// Bytes moved to host memory or back.
    pub offloaded: f64,
}

/// Passes over tensors, each a read or a write of all elements.
pub(super) struct Passes {
    /// Over the inputs and outputs of a layer's matmuls, forward and backward.
    pub layer: (f64, f64),
    /// Over scores in `f32`, each time they are computed and for their gradient.
    pub scores: (f64, f64),
    /// Over logits in `f32`.
    pub logits: f64,
    /// Over gradients, parameters and optimizer slots in `f32`, beyond one read and one write.
    pub state: f64,
}

const F32: f64 = 4.0;

/// Passes over attention's output in `f32` for each other device along a context axis, forward and
/// backward: blocks are transposed for the kernel, selected and merged.
const MERGES: (f64, f64) = (5.0, 8.0);

/// All work of a step.
pub(super) fn work(spec: &StepSpec, kind: Platform, passes: &Passes) -> Vec<Work> {
    let (stacked, offloaded) = (memory::stacked(spec, kind), memory::offloaded(spec, kind));
    let (stacked, offloaded) = (stacked as f64, offloaded as f64);
    let step = Step { stacked, offloaded, ..Step::new(spec) };
    let times = spec.batch.accumulation as f64;
    let mut all = vec![step.embedding(), step.forward(passes), step.head(passes)];
    all.push(step.backward(passes));
    for work in &mut all {
        work.matmul_flops *= times;
        work.attention_flops *= times;
        work.bytes *= times;
        work.stacked *= times;
        work.offloaded *= times;
    }
    all.push(step.update(passes));
    all
}

/// Bytes of the residual stream on one device.
pub(super) fn residual_bytes(spec: &StepSpec) -> f64 {
    let local = Local::new(spec);
    (local.norm_tokens * local.hidden * spec.placement.comm.compute.size()) as f64
}

/// The sizes of a step on one device.
struct Step<'a> {
    spec: &'a StepSpec,
    local: Local,
    /// Tokens per microbatch.
    tokens: f64,
    layers: f64,
    /// Elements of the matrices of all layers.
    matrices: f64,
    /// The share of the matrices that a device computes with.
    slice: f64,
    /// Inputs and outputs of one layer's matmuls, in elements.
    activations: f64,
    /// Bytes per element of the compute dtype.
    size: f64,
    /// Bytes that a scan stacks, which are written and read once.
    stacked: f64,
    /// Bytes that layers move to host memory, and back once.
    offloaded: f64,
    /// Whether attention is a fused kernel that stores no scores.
    fused: bool,
}

impl<'a> Step<'a> {
    fn new(spec: &'a StepSpec) -> Step<'a> {
        let local = Local::new(spec);
        let layers = spec.model.dimensions().layers.max(1) as f64;
        let (mut all, mut elements, mut activations) = (0, 0, 0);
        for param in layer_params(spec).filter(|param| param.dims.len() == 2) {
            all += param.elements();
            elements += param.slice_elements();
            let sliced = param.slice.as_ref().map(|slice| slice.dim);
            for (dim, width) in param.slice_dims().into_iter().enumerate() {
                let tokens = if sliced == Some(dim) { local.tokens } else { local.norm_tokens };
                activations += tokens * width * param.stack.unwrap_or(1);
            }
        }
        Step {
            spec,
            local,
            tokens: local.tokens as f64,
            layers,
            matrices: elements as f64,
            slice: elements as f64 / all.max(1) as f64,
            activations: activations as f64 / layers,
            size: spec.placement.comm.compute.size() as f64,
            stacked: 0.0,
            offloaded: 0.0,
            fused: spec.attention_unsupported_reason().is_none(),
        }
    }

    /// The path of a layer, with a `*` for its number.
    fn layer_path(&self) -> String {
        layer_params(self.spec).next().map_or_else(String::new, |param| {
            match param.template.split_once('*') {
                Some((before, _)) => format!("{before}*"),
                None => String::new(),
            }
        })
    }

    /// Pairs that attention computes per token: all earlier tokens, and the future ones in its
    /// block. Of a context axis, all devices compute the same number.
    fn pairs(&self) -> f64 {
        let tokens = self.spec.batch.tokens;
        if self.fused {
            return (tokens + 1) as f64 / 2.0;
        }
        if !self.spec.attends_in_blocks() {
            return tokens as f64;
        }
        let ends = (0..tokens).step_by(BLOCK).map(|start| {
            let end = tokens.min(start + BLOCK);
            ((end - start) * end) as f64
        });
        ends.sum::<f64>() / tokens as f64
    }

    /// FLOPs of one of attention's matmuls, over all layers.
    fn attention_flops(&self) -> f64 {
        2.0 * self.tokens * self.pairs() * self.local.attn_out as f64 * self.layers
    }

    /// Bytes of all scores.
    fn scores(&self) -> f64 {
        if self.fused {
            return 0.0;
        }
        self.tokens * self.pairs() * self.local.heads as f64 * self.layers * F32
    }

    /// Bytes of the inputs and outputs of matmuls.
    fn activations(&self) -> f64 {
        self.activations * self.layers * self.size
    }

    /// Bytes of attention's output in `f32`, once for each other device of a context axis.
    fn merged(&self) -> f64 {
        let others = (self.spec.placement.context_shards() - 1) as f64;
        others * self.tokens * self.local.attn_out as f64 * self.layers * F32
    }

    fn embedding(&self) -> Work {
        let hidden = self.spec.model.dimensions().hidden as f64;
        Work {
            module: "embeddings".into(),
            backward: false,
            matmul_flops: 0.0,
            attention_flops: 0.0,
            bytes: 3.0 * self.tokens * hidden * self.size,
            stacked: 0.0,
            offloaded: 0.0,
        }
    }

    fn forward(&self, passes: &Passes) -> Work {
        Work {
            module: self.layer_path(),
            backward: false,
            matmul_flops: 2.0 * self.tokens * self.matrices,
            attention_flops: 2.0 * self.attention_flops(),
            bytes: passes.layer.0 * self.activations()
                + passes.scores.0 * self.scores()
                + MERGES.0 * self.merged(),
            stacked: self.stacked,
            offloaded: self.offloaded,
        }
    }

    fn backward(&self, passes: &Passes) -> Work {
        let forward = self.forward(passes);
        let recomputed = if self.spec.attends_in_blocks() || self.fused { 1.0 } else { 0.0 };
        let mut work = Work {
            backward: true,
            matmul_flops: 4.0 * self.tokens * self.matrices,
            attention_flops: (4.0 + recomputed) * self.attention_flops(),
            bytes: passes.layer.1 * self.activations()
                + (passes.scores.1 + recomputed * passes.scores.0) * self.scores()
                + MERGES.1 * self.merged(),
            ..forward.clone()
        };
        let saved = if self.spec.placement.saves_last_layer() { 1.0 } else { 0.0 };
        let share = (self.layers - saved) / self.layers;
        if self.spec.placement.remat != Remat::None {
            let again = self.spec.recomputed();
            // Where attention's output is saved, its scores are not.
            let (matmuls, scores) = match again.attention {
                true => (2.0, 1.0),
                false => (1.0 - recomputed, 1.0 - recomputed),
            };
            let weights = self.slice * again.weights as f64 * self.layers;
            work.matmul_flops += share * 2.0 * self.tokens * weights;
            work.attention_flops += share * matmuls * self.attention_flops();
            work.bytes += share * passes.layer.0 * self.activations();
            work.bytes += share * scores * passes.scores.0 * self.scores();
            let merges = if again.attention { MERGES.0 } else { 0.0 };
            work.bytes += share * merges * self.merged();
        }
        work
    }

    fn head(&self, passes: &Passes) -> Work {
        let model = self.spec.model.dimensions();
        let tile = if self.spec.placement.options.lowering.padded_vocabulary { TILE } else { 1 };
        let padded = self.local.vocabulary.next_multiple_of(tile);
        let (hidden, vocabulary) = (model.hidden as f64, padded as f64);
        // Each chunk adds to the gradient of the head.
        let chunk = chunk_size(
            self.tokens as usize,
            padded,
            self.spec.placement.options.lowering.chunk_bytes,
        )
        .max(1);
        let chunks = if model.vocabulary < CHUNKED_FROM { 1.0 } else { self.tokens / chunk as f64 };
        let logits = passes.logits * self.tokens * vocabulary;
        Work {
            module: "lm_head".into(),
            backward: false,
            matmul_flops: 6.0 * self.tokens * hidden * vocabulary,
            attention_flops: 0.0,
            bytes: (logits + 2.0 * chunks.ceil() * hidden * vocabulary) * F32,
            stacked: 0.0,
            offloaded: 0.0,
        }
    }

    fn update(&self, passes: &Passes) -> Work {
        let placement = &self.spec.placement;
        let shards = placement.trained().into_iter().map(|i| {
            let param = &placement.parameters[i];
            param.shard_elements() as f64
        });
        let slots = self.spec.state_bytes().map_or(0, |state| state.optimizer) as f64;
        let parameters = shards.sum::<f64>() * F32;
        Work {
            module: "optimizer".into(),
            backward: true,
            matmul_flops: 0.0,
            attention_flops: 0.0,
            bytes: (3.0 + passes.state) * parameters + 2.0 * slots,
            stacked: 0.0,
            offloaded: 0.0,
        }
    }
}
