//! What a device computes in a step: operations of matrix products and bytes of everything else,
//! module by module.
//!
//! With n tokens on a device at once:
//!
//! - products of a layer: 2·n operations for each element of its matrices going forth and 4·n
//!   going back; 2·n more where layers are computed again, but for the last product of a layer,
//!   whose result nothing on the way back needs.
//! - attention in blocks sees the part of all pairs that its blocks cover. Going forth there are
//!   two products; going back five, since scores are computed again whatever is remembered; and
//!   two more where layers are. As a kernel it sees what is not the future, and passes over no
//!   scores.
//! - the head: 6·n operations for each element, with the vocabulary padded as it is.
//! - everything else is bound by memory. It is counted in passes, each of which reads or writes
//!   once: over what products take and give, over scores in `f32`, over what a loop stacks, over
//!   logits, and over the state.

use super::memory;
use fullshard_models::layers::attention::{BLOCK, BLOCKWISE_FROM};
use fullshard_models::layers::loss::{CHUNKED_FROM, TILE, chunk_size};
use fullshard_parallel::{Remat, Stored};
use fullshard_pjrt::plugins::Platform;
use fullshard_step::StepSpec;

/// Work of one module in one direction, on one device.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Work {
    /// The path of the module.
    pub module: String,
    /// Whether it is the way back.
    pub backward: bool,
    /// Operations of matrix products with weights.
    pub products: f64,
    /// Operations of attention's products, by how wide a head is.
    pub attention: f64,
    /// Bytes read and written beside products.
    pub bytes: f64,
    /// Bytes that are put away for later or taken from there.
    pub stacked: f64,
}

/// Passes over things, each a read or a write of all of it.
pub(super) struct Passes {
    /// Over what the products of a layer take and give, going forth and back.
    pub layer: (f64, f64),
    /// Over scores in `f32`, each time they are computed and for their gradient.
    pub scores: (f64, f64),
    /// Over logits in `f32`.
    pub logits: f64,
    /// Over gradients, parameters and slots in `f32`, beyond one read and one write of each.
    pub state: f64,
}

const F32: f64 = 4.0;

/// All work of a step.
pub(super) fn work(spec: &StepSpec, kind: Platform, passes: &Passes) -> Vec<Work> {
    let step = Step { stacked: memory::stacked(spec, kind) as f64, ..Step::new(spec) };
    let times = spec.batch.accumulation as f64;
    let mut all = vec![step.embedding(), step.forward(passes), step.head(passes)];
    all.push(step.backward(passes));
    for work in &mut all {
        work.products *= times;
        work.attention *= times;
        work.bytes *= times;
        work.stacked *= times;
    }
    all.push(step.update(passes));
    all
}

/// Bytes of the stream between layers, on one device at once.
pub(super) fn stream(spec: &StepSpec) -> f64 {
    let step = Step::new(spec);
    step.tokens * spec.model.dimensions().hidden as f64 * step.size
}

/// The sizes of a step on one device.
struct Step<'a> {
    spec: &'a StepSpec,
    /// Tokens at once.
    tokens: f64,
    layers: f64,
    /// Elements of the matrices of all layers.
    matrices: f64,
    /// What the products of one layer take and give together.
    widths: f64,
    /// Bytes of a number that is computed with.
    size: f64,
    /// Bytes that a loop stacks, which are written and read once.
    stacked: f64,
    /// Whether attention is a kernel that keeps no scores.
    fused: bool,
}

impl<'a> Step<'a> {
    fn new(spec: &'a StepSpec) -> Step<'a> {
        let of_layers = |stored: &&Stored| stored.stack.is_some() || stored.layer.is_some();
        let matrices = spec.placement.parameters.iter().filter(of_layers);
        let matrices = matrices.filter(|stored| stored.dims.len() == 2);
        let (elements, widths) = matrices.fold((0, 0), |sum, stored| {
            let count = stored.stack.unwrap_or(1);
            let width = stored.dims.iter().sum::<usize>() * count;
            (sum.0 + stored.elements(), sum.1 + width)
        });
        let layers = spec.model.dimensions().layers.max(1) as f64;
        let sequences = spec.batch.sequences / spec.placement.devices();
        Step {
            spec,
            tokens: (sequences * spec.batch.tokens) as f64,
            layers,
            matrices: elements as f64,
            widths: widths as f64 / layers,
            size: spec.placement.wire.compute.size() as f64,
            stacked: 0.0,
            fused: spec.attention_unsupported_reason().is_none(),
        }
    }

    /// The path of a layer, with a `*`, or of where layers are.
    fn layer_path(&self) -> String {
        let units = &self.spec.placement.parameters;
        let of_layer = units.iter().find(|stored| stored.stack.is_some() || stored.layer.is_some());
        of_layer.map_or_else(String::new, |stored| match stored.template.split_once('*') {
            Some((before, _)) => format!("{before}*"),
            None => String::new(),
        })
    }

    /// Pairs of tokens that attention looks at, for one token: all before it, and those of the
    /// future that are in its block.
    fn pairs(&self) -> f64 {
        let tokens = self.spec.batch.tokens;
        if self.fused {
            return (tokens + 1) as f64 / 2.0;
        }
        if tokens < BLOCKWISE_FROM {
            return tokens as f64;
        }
        let ends = (0..tokens).step_by(BLOCK).map(|start| {
            let end = tokens.min(start + BLOCK);
            ((end - start) * end) as f64
        });
        ends.sum::<f64>() / tokens as f64
    }

    /// Operations of one product of attention, over all layers.
    fn attention(&self) -> f64 {
        let model = self.spec.model.dimensions();
        2.0 * self.tokens * self.pairs() * (model.heads * model.head) as f64 * self.layers
    }

    /// Operations of the last product of each layer, going forth.
    fn last_products(&self) -> f64 {
        let model = self.spec.model.dimensions();
        2.0 * self.tokens * (model.hidden * model.inner) as f64 * self.layers
    }

    /// Bytes of all scores.
    fn scores(&self) -> f64 {
        if self.fused {
            return 0.0;
        }
        let heads = self.spec.model.dimensions().heads as f64;
        self.tokens * self.pairs() * heads * self.layers * F32
    }

    /// Bytes of what products take and give.
    fn activations(&self) -> f64 {
        self.tokens * self.widths * self.layers * self.size
    }

    fn embedding(&self) -> Work {
        let hidden = self.spec.model.dimensions().hidden as f64;
        Work {
            module: "embeddings".into(),
            backward: false,
            products: 0.0,
            attention: 0.0,
            bytes: 3.0 * self.tokens * hidden * self.size,
            stacked: 0.0,
        }
    }

    fn forward(&self, passes: &Passes) -> Work {
        Work {
            module: self.layer_path(),
            backward: false,
            products: 2.0 * self.tokens * self.matrices,
            attention: 2.0 * self.attention(),
            bytes: passes.layer.0 * self.activations() + passes.scores.0 * self.scores(),
            stacked: self.stacked,
        }
    }

    fn backward(&self, passes: &Passes) -> Work {
        let forward = self.forward(passes);
        let blockwise = self.spec.batch.tokens >= BLOCKWISE_FROM;
        let again = if blockwise || self.fused { 1.0 } else { 0.0 };
        let mut work = Work {
            backward: true,
            products: 4.0 * self.tokens * self.matrices,
            attention: (4.0 + again) * self.attention(),
            bytes: passes.layer.1 * self.activations()
                + (passes.scores.1 + again * passes.scores.0) * self.scores(),
            ..forward.clone()
        };
        let kept = if self.spec.placement.keeps_last_layer() { 1.0 } else { 0.0 };
        let share = (self.layers - kept) / self.layers;
        match self.spec.placement.remat {
            Remat::None => {}
            // What attention mixes is remembered, but not its scores.
            Remat::Dots => {
                work.attention += share * (1.0 - again) * self.attention();
                work.bytes += share * passes.layer.0 * self.activations();
                work.bytes += share * (1.0 - again) * passes.scores.0 * self.scores();
            }
            Remat::Full => {
                work.products += share * (forward.products - self.last_products());
                work.attention += share * forward.attention;
                work.bytes += share * forward.bytes;
            }
        }
        work
    }

    fn head(&self, passes: &Passes) -> Work {
        let model = self.spec.model.dimensions();
        let tile = if self.spec.placement.options.lowering.padded_vocabulary { TILE } else { 1 };
        let padded = model.vocabulary.next_multiple_of(tile);
        let (hidden, vocabulary) = (model.hidden as f64, padded as f64);
        // Each chunk adds to the gradient of the head.
        let chunk = chunk_size(
            self.tokens as usize,
            padded,
            self.spec.placement.options.lowering.large_chunks,
        )
        .max(1);
        let chunks = if model.vocabulary < CHUNKED_FROM { 1.0 } else { self.tokens / chunk as f64 };
        let logits = passes.logits * self.tokens * vocabulary;
        Work {
            module: "lm_head".into(),
            backward: false,
            products: 6.0 * self.tokens * hidden * vocabulary,
            attention: 0.0,
            bytes: (logits + 2.0 * chunks.ceil() * hidden * vocabulary) * F32,
            stacked: 0.0,
        }
    }

    fn update(&self, passes: &Passes) -> Work {
        let placement = &self.spec.placement;
        let parts = placement.trained().into_iter().map(|i| {
            let stored = &placement.parameters[i];
            stored.part_elements() as f64
        });
        let slots = self.spec.state_bytes().map_or(0, |state| state.optimizer) as f64;
        let parameters = parts.sum::<f64>() * F32;
        Work {
            module: "optimizer".into(),
            backward: true,
            products: 0.0,
            attention: 0.0,
            bytes: (3.0 + passes.state) * parameters + 2.0 * slots,
            stacked: 0.0,
        }
    }
}
