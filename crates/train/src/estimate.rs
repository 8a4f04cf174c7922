//! What a training step will need on each device, before anything is compiled.
//!
//! Parameters, gradients and optimizer state are exact. The rest is a model of what a compiler
//! does, with n tokens on a device at once and in the type computed in unless said otherwise:
//!
//! - gathered: the root's parameters and the largest other unit's, twice that with a gather
//!   ahead; all units where none is let go; and as much again for their gradients before they
//!   are reduced. Nothing where every device has parameters whole and in the type it computes in.
//! - activations of a layer: its input is n·hidden. Its matrix products of `[in, out]` give n·out
//!   each, and attention n·heads·head; where sequences are too short for blockwise attention,
//!   also n·heads·tokens of probabilities in `f32`, twice. Everything else that is kept without
//!   rematerialisation is taken to be as much again as products take in and give.
//!   - `full` keeps the inputs of all layers, `dots` also the results of products, `none` all of
//!     it. On the way back one layer is whole in any case.
//! - logits: a chunk of them and of their gradient in `f32`, and the gradient of the head that
//!   chunks add to, in `f32`; or all logits where there are no chunks.
//!
//! It is meant for choosing settings, to within a third or so; what the compiler then says is
//! what counts.

use crate::error::Error;
use crate::recipe::Recipe;
use fullshard_graph::DType;
use fullshard_models::layers::attention::BLOCKWISE_FROM;
use fullshard_models::layers::loss::{CHUNKED_FROM, TILE, chunk_size};
use fullshard_parallel::{Layout, PlacedUnit, Remat, Stored};

/// Bytes on each device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Estimate {
    /// The parts of parameters, in `f32`.
    pub parameters: u64,
    /// The optimizer's state.
    pub optimizer: u64,
    /// The parts of gradients, in `f32`.
    pub gradients: u64,
    /// Parameters that are whole at once, and their gradients.
    pub gathered: u64,
    /// What layers remember, and one layer at work.
    pub activations: u64,
    /// Logits, their gradient and what it gives the head.
    pub logits: u64,
    /// All of it.
    pub total: u64,
}

/// A unit of the plan.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct UnitRow {
    /// The path of its module, with a `*` for the layer in a loop; empty for the root.
    pub path: String,
    /// The class of its module.
    pub class: &'static str,
    /// How many units there are of this kind.
    pub count: usize,
    /// The elements of one unit, whole.
    pub elements: u64,
    /// The bytes of one unit's parts on a device, padding included.
    pub part_bytes: u64,
    /// The bytes of one unit when it is whole, as it is computed with.
    pub whole_bytes: u64,
    /// Whether it is let go after the forward pass and gathered again.
    pub reshard: bool,
}

const F32: usize = 4;

impl Recipe {
    /// The elements of all parameters; tied ones count once.
    pub fn parameter_count(&self) -> usize {
        self.placement.parameters.iter().map(Stored::elements).sum()
    }

    /// The elements of all parameters but those of embeddings, which are looked up and not
    /// computed with: what Hugging Face counts operations by.
    pub fn count_without_embeddings(&self) -> usize {
        let computed = |stored: &&Stored| stored.class != "Embedding";
        self.placement.parameters.iter().filter(computed).map(Stored::elements).sum()
    }

    /// The elements of the parameters that are trained.
    pub fn trained_count(&self) -> usize {
        let trained = self.placement.parameters.iter().filter(|stored| !stored.frozen);
        trained.map(Stored::elements).sum()
    }

    /// The units, parents first; the first is the root.
    pub fn unit_rows(&self) -> Vec<UnitRow> {
        let row = |unit: &PlacedUnit| {
            let owned = || unit.parameters.iter().map(|&i| &self.placement.parameters[i]);
            let elements = owned().map(Stored::elements).sum::<usize>() / unit.count;
            let part = owned().map(Stored::part_elements).sum::<usize>() / unit.count;
            UnitRow {
                path: unit.path.clone(),
                class: unit.class,
                count: unit.count,
                elements: elements as u64,
                part_bytes: (part * F32) as u64,
                whole_bytes: (elements * self.placement.wire.compute.size()) as u64,
                reshard: unit.reshard,
            }
        };
        self.placement.units.iter().map(row).collect()
    }

    /// What a step will need on each device.
    pub fn estimate(&self) -> Result<Estimate, Error> {
        let state = self.state()?;
        let bytes = state.iter().map(|tensor| {
            let dims = tensor.sharding.local_dims(&tensor.ty)?;
            Ok(dims.iter().product::<usize>() * tensor.ty.dtype.size())
        });
        let bytes = bytes.collect::<Result<Vec<usize>, Error>>()?;
        let (parameters, slots) = bytes.split_at(self.placement.parameters.len());
        let trained = self.placement.trained();
        let sizes = [
            parameters.iter().sum::<usize>(),
            slots.iter().sum(),
            trained.iter().map(|&i| parameters[i]).sum(),
            self.gathered_bytes(),
            self.activation_bytes(),
            self.logit_bytes(),
        ];
        let [parameters, optimizer, gradients, gathered, activations, logits] =
            sizes.map(|size| size as u64);
        let total = sizes.iter().sum::<usize>() as u64;
        Ok(Estimate { parameters, optimizer, gradients, gathered, activations, logits, total })
    }

    fn gathered_bytes(&self) -> usize {
        let compute = self.placement.wire.compute;
        let is_whole = |stored: &Stored| stored.layout == Layout::Whole;
        if compute == DType::F32 && self.placement.parameters.iter().all(is_whole) {
            return 0;
        }
        let rows = self.unit_rows();
        let whole = |row: &UnitRow| row.whole_bytes as usize;
        let everything = || rows.iter().map(|row| whole(row) * row.count).sum::<usize>();
        if self.batch.accumulation > 1 && !self.batch.reduce_each {
            // Gradients are added up whole, in f32.
            return everything() / compute.size() * (compute.size() + F32);
        }
        let root = rows.first().map(whole).unwrap_or(0);
        let largest = rows.iter().skip(1).map(whole).max().unwrap_or(0);
        let at_once = if self.placement.options.gather_ahead { 2 } else { 1 };
        let let_go = self.lets_go() && rows.iter().skip(1).all(|row| row.reshard);
        let gathered = if let_go { root + at_once * largest } else { everything() };
        gathered + root + largest
    }

    /// Whether units that are to be let go are. One device gathers nothing but converts, and what
    /// it converts stays, unless layers are computed again and convert again with that.
    fn lets_go(&self) -> bool {
        self.placement.devices() > 1 || self.placement.remat != Remat::None
    }

    fn activation_bytes(&self) -> usize {
        let model = self.model.dimensions();
        let tokens = self.tokens_at_once();
        let compute = self.placement.wire.compute.size();
        let (taken, given) = self.products_of_a_layer();
        let probabilities = match self.batch.tokens < BLOCKWISE_FROM {
            true => 2 * tokens * model.heads * self.batch.tokens * F32,
            false => 0,
        };
        let input = tokens * model.hidden * compute;
        let dots = tokens * (given + model.heads * model.head) * compute + probabilities;
        let all = dots + tokens * (taken + given) * compute;
        let kept = match self.placement.remat {
            Remat::Full => input,
            Remat::Dots => input + dots,
            Remat::None => input + all,
        };
        model.layers * kept + all
    }

    /// How wide the products of one layer are, one after another: what they take and give.
    fn products_of_a_layer(&self) -> (usize, usize) {
        let layers = self.model.dimensions().layers;
        let of_layers = |stored: &&Stored| stored.stack.is_some() || stored.layer.is_some();
        let stored = self.placement.parameters.iter().filter(of_layers);
        let widths = stored.filter_map(|stored| match (stored.class, &stored.dims[..]) {
            // Transposed, as GPT-2's weights are.
            ("Conv1D", &[taken, given]) | (_, &[given, taken]) => {
                let count = stored.stack.unwrap_or(1);
                Some((taken * count, given * count))
            }
            _ => None,
        });
        let (taken, given) = widths.fold((0, 0), |sum, width| (sum.0 + width.0, sum.1 + width.1));
        (taken / layers, given / layers)
    }

    fn logit_bytes(&self) -> usize {
        let model = self.model.dimensions();
        let tokens = self.tokens_at_once();
        if model.vocabulary < CHUNKED_FROM {
            return 2 * tokens * model.vocabulary * F32;
        }
        let tile = if self.placement.options.forms.padded_vocabulary { TILE } else { 1 };
        let vocabulary = model.vocabulary.next_multiple_of(tile);
        (2 * chunk_size(tokens, vocabulary, self.placement.options.forms.large_chunks)
            + model.hidden)
            * vocabulary
            * F32
    }

    /// The tokens that a device computes at once.
    fn tokens_at_once(&self) -> usize {
        self.batch.sequences / self.placement.devices() * self.batch.tokens
    }
}
