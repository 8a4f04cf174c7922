//! What layers keep for their way back, and what one of them needs on it.
//!
//! - With `full` remat they keep their inputs, with `dots` also the results of all products but the
//!   last, which nothing needs, and of attention. Where the last layer has its way back next, it
//!   keeps what layers do without remat.
//! - Without it a layer that is written out keeps what its products take, each once, and what its
//!   activation needs: the stream and the normal twice each, queries, keys, values and what they
//!   mix, and a few times its inner width.
//! - A loop then keeps every value that the way back uses, in the type that it was computed in, and
//!   for each block of attention all keys and values it sees.
//! - On its way back a layer has what its products take and give and as much for their gradients,
//!   with the scores of one block.

use super::{F32, of_layers};
use fullshard_models::layers::attention::{BLOCK, BLOCKWISE_FROM};
use fullshard_parallel::Remat;
use fullshard_pjrt::plugins::Platform;
use fullshard_step::StepSpec;

/// What layers remember.
pub(super) struct Kept {
    /// All of them.
    pub all: u64,
    /// What the last one remembers that the others do not.
    pub more_of_last: u64,
}

/// What layers remember.
pub(super) fn kept(spec: &StepSpec, kind: Platform) -> Kept {
    let layer = Layer::new(spec);
    let everything = match spec.placement.options.scan_layers {
        true => layer.everything_in_a_loop(kind),
        false => layer.everything(kind),
    };
    let kept = match spec.placement.remat {
        Remat::Full => layer.input(),
        Remat::Dots => layer.input() + layer.products(),
        Remat::None => everything,
    };
    let more = if spec.placement.keeps_last_layer() { everything - kept } else { 0 };
    let all = spec.model.dimensions().layers * kept + more;
    Kept { all: all as u64, more_of_last: more as u64 }
}

/// What one layer needs on its way back.
pub(super) fn at_work(spec: &StepSpec) -> u64 {
    let bytes = Layer::new(spec).at_work() as f64;
    let share = if spec.placement.options.scan_layers { 1.0 } else { IN_ORDER };
    (share * bytes) as u64
}

/// The share of a layer on its way back that is alive at once where layers are written out, since
/// the compiler orders what it sees.
const IN_ORDER: f64 = 0.8;

/// How often the inner width is kept without rematerialisation where layers are written out: what
/// goes into an activation, what comes out and what its slope needs; of a gate also what it opens.
/// TPUs compute a slope again, and so do steps in which activations are computed again.
const INNER: usize = 4;
const RECOMPUTED_INNER: usize = 2;
const GATED_INNER: usize = 3;

/// How many tensors a loop keeps of each width, in `f32` and in the type computed in: of the
/// stream and its norms, of the inner width, and of the inner width with a gate.
const LOOPED_HIDDEN: (usize, usize) = (6, 3);
const LOOPED_INNER: (usize, usize) = (4, 1);
const LOOPED_GATED_INNER: (usize, usize) = (2, 3);

/// Sizes of one layer on one device.
struct Layer {
    /// Tokens on a device at once.
    tokens: usize,
    /// The bytes of a number that is computed with.
    size: usize,
    /// Scores of all pairs at once, where attention is not in blocks.
    scores: usize,
    /// Scores of a block.
    block_scores: usize,
    /// Blocks of attention.
    blocks: usize,
    hidden: usize,
    inner: usize,
    gated: bool,
    /// What attention mixes, which is as wide as queries are.
    mixed: usize,
    /// What products take and give.
    taken: usize,
    given: usize,
    /// Whether activations are computed again rather than kept.
    recomputed: bool,
}

impl Layer {
    fn new(spec: &StepSpec) -> Layer {
        let model = spec.model.dimensions();
        let sequence = spec.batch.tokens;
        let tokens = spec.batch.sequences / spec.placement.devices() * sequence;
        let widths = widths(spec);
        let into_inner = |width: &&(usize, usize)| **width == (model.hidden, model.inner);
        let layers = model.layers.max(1);
        let gates = widths.iter().filter(into_inner).count() / layers;
        let sum = widths.iter().fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        let all_scores = tokens * model.heads * sequence;
        let fused = spec.attention_unsupported_reason().is_none();
        let (blocks, scores) = match sequence < BLOCKWISE_FROM {
            _ if fused => (1, 0),
            true => (1, all_scores),
            false => (sequence.div_ceil(BLOCK), 0),
        };
        Layer {
            tokens,
            size: spec.placement.wire.compute.size(),
            scores,
            block_scores: if fused { 0 } else { all_scores / blocks },
            blocks,
            hidden: model.hidden,
            inner: model.inner,
            gated: gates > 1,
            mixed: model.heads * model.head,
            taken: sum.0 / layers,
            given: sum.1 / layers,
            recomputed: spec.placement.options.lowering.recomputed_activations,
        }
    }

    fn input(&self) -> usize {
        self.tokens * self.size * self.hidden
    }

    /// The results of products but the last, those of attention among them.
    fn products(&self) -> usize {
        self.size * self.tokens * (self.given - self.hidden + self.mixed)
    }

    fn everything(&self, kind: Platform) -> usize {
        let inner = match kind {
            _ if self.gated => GATED_INNER,
            Platform::Tpu => RECOMPUTED_INNER,
            _ if self.recomputed => RECOMPUTED_INNER,
            Platform::Cpu | Platform::Cuda => INNER,
        };
        let width = 4 * self.hidden + self.projected() + self.mixed + inner * self.inner;
        self.tokens * self.size * width + self.scores * (F32 + self.size)
    }

    fn everything_in_a_loop(&self, kind: Platform) -> usize {
        let of = |(wide, narrow): (usize, usize)| wide * F32 + narrow * self.size;
        let inner = match self.gated {
            true => LOOPED_GATED_INNER,
            false if self.recomputed => (0, RECOMPUTED_INNER),
            false => LOOPED_INNER,
        };
        // Block after block sees all keys and values so far.
        let keys = (self.projected() - self.mixed.min(self.projected())) * (self.blocks + 1) / 2;
        let bytes = of(LOOPED_HIDDEN) * self.hidden
            + of(inner) * self.inner
            + (keys + self.mixed) * self.size;
        // Of softmax, its results, and these as products take them; but for CPUs also what it shifts
        // and its exponentials.
        let wide_scores = if kind == Platform::Cpu { 1 } else { 3 };
        self.tokens * bytes + self.scores * (wide_scores * F32 + self.size)
    }

    /// The width of queries, keys and values together.
    fn projected(&self) -> usize {
        let gates = if self.gated { 2 } else { 1 };
        self.given.saturating_sub(2 * self.hidden + gates * self.inner)
    }

    /// What one layer needs on its way back.
    fn at_work(&self) -> usize {
        let widths = self.taken + 2 * self.given + self.mixed;
        self.tokens * self.size * widths + self.block_scores * (F32 + self.size)
    }
}

/// What each product of all layers takes and gives.
fn widths(spec: &StepSpec) -> Vec<(usize, usize)> {
    let widths = of_layers(spec).filter_map(|stored| match (stored.class, &stored.dims[..]) {
        // Transposed, as GPT-2's weights are.
        ("Conv1D", &[taken, given]) | (_, &[given, taken]) => {
            Some(std::iter::repeat_n((taken, given), stored.stack.unwrap_or(1)))
        }
        _ => None,
    });
    widths.flatten().collect()
}
