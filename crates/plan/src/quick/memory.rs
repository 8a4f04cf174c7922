//! What a step needs, from the recipe's estimate and what compilers were seen to make of steps.
//!
//! Parameters and the optimizer's state are exact. Of the rest, most is alive either when logits
//! are there or when the last layer is on its way back:
//!
//! - gathered parameters and their gradients before they are reduced, at both times: the root's,
//!   and of layers the largest parameter, or all where they are packed; and a layer ahead. Where
//!   nothing is let go, it is what the recipe's estimate says.
//! - what layers keep, at both times. With `full` it is their inputs, with `dots` also the results
//!   of all products but the last, which nothing needs. Without rematerialisation a layer that is
//!   written out keeps what its products take, each once, and what its activation needs: the
//!   stream and the normal twice each, queries, keys, values and what they mix, and three or four
//!   times its inner width. A loop keeps every value that the way back uses, in the type that it
//!   was computed in, and for each block of attention all keys and values it sees.
//! - a chunk of logits in `f32`, or on GPUs as it is computed, its gradient in the type computed
//!   in, and the gradient of the head, in `f32` if chunks add to it; or what the recipe's estimate says where there are no chunks.
//! - on the way back one layer whole, what its products take and give and as much for their
//!   gradients, with the scores of one block; and gradients. Those of layers that are written out
//!   stay in the type they are reduced in until they are used; a loop stacks them in `f32`.

use crate::error::Error;
use crate::machine::Machine;
use crate::report::{Memory, Part};
use fullshard_models::layers::attention::{BLOCK, BLOCKWISE_FROM};
use fullshard_models::layers::loss::{CHUNKED_FROM, TILE, chunk_size};
use fullshard_parallel::{Remat, Stored};
use fullshard_pjrt::plugins::PluginKind;
use fullshard_train::{Estimate, Recipe};

/// The memory of one device.
pub(super) fn memory(recipe: &Recipe, machine: &Machine) -> Result<Memory, Error> {
    let estimate = recipe.estimate()?;
    let layer = Layer::new(recipe);
    let kept = kept(recipe, &layer, machine.kind);
    let (gradients, at_work) = (gradients(recipe, &estimate), at_work(recipe, &layer));
    let logits = logits(recipe, &estimate, machine.kind);
    // A loop has all of its stacks from beginning to end. Layers that are written out let go of
    // what they keep, one after the other, as their gradients come: where the scheduler sees to it.
    let apart = machine.kind == PluginKind::Cuda && !recipe.placement.options.scan_layers;
    let [gradients, activations, logits] = match (apart, gradients + at_work > logits) {
        (true, _) if gradients + at_work > kept + logits.max(at_work) => [gradients, at_work, 0],
        (true, _) if at_work > logits => [0, kept + at_work, 0],
        (false, true) => [gradients, kept + at_work, 0],
        _ => [0, kept, logits],
    };
    let parts = [
        ("parameters", estimate.parameters),
        ("optimizer", estimate.optimizer),
        ("gradients", gradients),
        ("activations", activations),
        ("temporaries", gathered(recipe, &estimate) + logits),
    ];
    Ok(Memory {
        limit: machine.memory,
        total: parts.iter().map(|(_, bytes)| bytes).sum(),
        parts: parts.map(|(what, bytes)| Part { what, bytes }).to_vec(),
        largest: Vec::new(),
    })
}

const F32: usize = 4;

fn gathered(recipe: &Recipe, estimate: &Estimate) -> u64 {
    let (placement, batch) = (&recipe.placement, &recipe.batch);
    let units = recipe.unit_rows();
    let layers = &units[1.min(units.len())..];
    let again = placement.devices() > 1 || placement.remat != Remat::None;
    let let_go = again && layers.iter().all(|unit| unit.reshard);
    let once = batch.accumulation > 1 && !batch.reduce_each;
    if estimate.gathered == 0 || once || !let_go {
        return estimate.gathered;
    }
    let root = units.first().map_or(0, |unit| unit.whole_bytes);
    let layer = layers.iter().map(|unit| unit.whole_bytes).max().unwrap_or(0);
    let of_layers = placement.parameters.iter().filter(|it| it.stack.or(it.layer).is_some());
    let elements = of_layers.map(|stored| stored.elements() / stored.stack.unwrap_or(1));
    let largest = elements.max().unwrap_or(0) * placement.wire.compute.size();
    let at_once = if placement.wire.packed { layer } else { layer.min(largest as u64) };
    let ahead = if placement.gathers_ahead() { layer } else { 0 };
    2 * (root + at_once) + ahead
}

fn logits(recipe: &Recipe, estimate: &Estimate, kind: PluginKind) -> u64 {
    let model = recipe.model.dimensions();
    if model.vocabulary < CHUNKED_FROM {
        return estimate.logits;
    }
    let tile = if recipe.placement.options.forms.padded_vocabulary { TILE } else { 1 };
    let vocabulary = model.vocabulary.next_multiple_of(tile);
    let tokens = recipe.batch.sequences / recipe.placement.devices() * recipe.batch.tokens;
    let large = recipe.placement.options.forms.large_chunks;
    let (chunk, size) =
        (chunk_size(tokens, vocabulary, large), recipe.placement.wire.compute.size());
    let logit = if kind == PluginKind::Cuda { size } else { F32 };
    let gradient = if chunk < tokens { F32 } else { size };
    ((chunk * (logit + size) + model.hidden * gradient) * vocabulary) as u64
}

fn gradients(recipe: &Recipe, estimate: &Estimate) -> u64 {
    let stacked = recipe.placement.options.scan_layers || recipe.batch.accumulation > 1;
    let size = if stacked { F32 } else { recipe.placement.wire.reduce.size() };
    estimate.gradients / F32 as u64 * size as u64
}

/// What a loop stacks on its way forth, for its way back.
pub(super) fn stacked(recipe: &Recipe, kind: PluginKind) -> u64 {
    match recipe.placement.options.scan_layers {
        true => kept(recipe, &Layer::new(recipe), kind),
        false => 0,
    }
}

/// What all layers remember.
fn kept(recipe: &Recipe, layer: &Layer, kind: PluginKind) -> u64 {
    let layers = recipe.model.dimensions().layers;
    let kept = match recipe.placement.remat {
        Remat::Full => layer.input(),
        Remat::Dots => layer.input() + layer.products(),
        Remat::None if recipe.placement.options.scan_layers => layer.everything_in_a_loop(),
        Remat::None => layer.everything(kind),
    };
    (layers * kept) as u64
}

/// The share of a layer on its way back that is alive at once where layers are written out, since
/// the compiler orders what it sees.
const IN_ORDER: f64 = 0.8;

fn at_work(recipe: &Recipe, layer: &Layer) -> u64 {
    let bytes = layer.at_work() as f64;
    let share = if recipe.placement.options.scan_layers { 1.0 } else { IN_ORDER };
    (share * bytes) as u64
}

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
    fn new(recipe: &Recipe) -> Layer {
        let model = recipe.model.dimensions();
        let sequence = recipe.batch.tokens;
        let tokens = recipe.batch.sequences / recipe.placement.devices() * sequence;
        let widths = widths(recipe);
        let into_inner = |width: &&(usize, usize)| **width == (model.hidden, model.inner);
        let gates = widths.iter().filter(into_inner).count() / model.layers;
        let sum = widths.iter().fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        let all_scores = tokens * model.heads * sequence;
        let fused = recipe.attention_obstacle().is_none();
        let (blocks, scores) = match sequence < BLOCKWISE_FROM {
            _ if fused => (1, 0),
            true => (1, all_scores),
            false => (sequence.div_ceil(BLOCK), 0),
        };
        Layer {
            tokens,
            size: recipe.placement.wire.compute.size(),
            scores,
            block_scores: if fused { 0 } else { all_scores / blocks },
            blocks,
            hidden: model.hidden,
            inner: model.inner,
            gated: gates > 1,
            mixed: model.heads * model.head,
            taken: sum.0 / model.layers,
            given: sum.1 / model.layers,
            recomputed: recipe.placement.options.forms.recomputed_activations,
        }
    }

    fn input(&self) -> usize {
        self.tokens * self.size * self.hidden
    }

    /// The results of products but the last, those of attention among them.
    fn products(&self) -> usize {
        self.size * (self.tokens * (self.given - self.hidden + self.mixed) + self.scores)
    }

    fn everything(&self, kind: PluginKind) -> usize {
        let inner = match kind {
            _ if self.gated => GATED_INNER,
            PluginKind::Tpu => RECOMPUTED_INNER,
            _ if self.recomputed => RECOMPUTED_INNER,
            PluginKind::Cpu | PluginKind::Cuda => INNER,
        };
        let width = 4 * self.hidden + self.projected() + self.mixed + inner * self.inner;
        self.tokens * self.size * width + self.scores * (F32 + self.size)
    }

    fn everything_in_a_loop(&self) -> usize {
        let of = |(wide, narrow): (usize, usize)| wide * F32 + narrow * self.size;
        let inner = if self.gated { LOOPED_GATED_INNER } else { LOOPED_INNER };
        // Block after block sees all keys and values so far.
        let keys = (self.projected() - self.mixed.min(self.projected())) * (self.blocks + 1) / 2;
        let bytes = of(LOOPED_HIDDEN) * self.hidden
            + of(inner) * self.inner
            + (keys + self.mixed) * self.size;
        // Of softmax, what it shifts, its exponentials, its results, and these as products take
        // them.
        self.tokens * bytes + self.scores * (3 * F32 + self.size)
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
fn widths(recipe: &Recipe) -> Vec<(usize, usize)> {
    let of_layers = |stored: &&Stored| stored.stack.is_some() || stored.layer.is_some();
    let stored = recipe.placement.parameters.iter().filter(of_layers);
    let widths = stored.filter_map(|stored| match (stored.class, &stored.dims[..]) {
        // Transposed, as GPT-2's weights are.
        ("Conv1D", &[taken, given]) | (_, &[given, taken]) => {
            Some(std::iter::repeat_n((taken, given), stored.stack.unwrap_or(1)))
        }
        _ => None,
    });
    widths.flatten().collect()
}
