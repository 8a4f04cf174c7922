//! How one parameter is stored over the devices of an axis: what each holds, and how the whole
//! and the parts become each other.
//!
//! Padding exists in parts alone. It is zero, and so is its gradient.

use fullshard_core::Layout;
use fullshard_graph::{Mesh, MeshError, Result, Sharding, Tensor};
use fullshard_models::Initializer;

/// The flat layout pads each device's part to a multiple of this, so that a part is whole rows of
/// a tile on every device there is.
pub(crate) const FLAT_MULTIPLE: usize = 128;

/// A parameter, or a stack of one parameter of all layers, as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    /// Its full name, with a `*` for the layer if all layers are stacked.
    pub name: String,
    /// The class of its module.
    pub class: &'static str,
    /// The dimensions of one whole parameter.
    pub dims: Vec<usize>,
    /// How it begins.
    pub initializer: Initializer,
    /// A row that begins as zeros, whatever the rest.
    pub zero_row: Option<usize>,
    /// The number of layers stacked along a first dimension.
    pub stack: Option<usize>,
    /// Its name with a `*` for the layer, whether stacked or not.
    pub template: String,
    /// The layer it is of, if it is of one.
    pub layer: Option<usize>,
    /// How it is cut.
    pub layout: Layout,
    /// Into how many parts.
    pub parts: usize,
    /// Whether it stays as it is.
    pub frozen: bool,
}

impl Stored {
    /// The elements of the parameter, of all layers if it is stacked, without padding.
    pub fn elements(&self) -> usize {
        self.dims.iter().product::<usize>() * self.stack.unwrap_or(1)
    }

    /// The elements that one device holds, padding included.
    pub fn part_elements(&self) -> usize {
        self.part_dims().iter().product::<usize>() * self.stack.unwrap_or(1)
    }

    /// The dimensions of one device's part of one layer.
    pub fn part_dims(&self) -> Vec<usize> {
        match self.layout {
            Layout::Replicated => self.dims.clone(),
            Layout::Dim0 => {
                let mut dims = self.dims.clone();
                dims[0] = dims[0].div_ceil(self.parts);
                dims
            }
            Layout::Flat => {
                let elements = self.dims.iter().product::<usize>();
                vec![elements.div_ceil(self.parts * FLAT_MULTIPLE) * FLAT_MULTIPLE]
            }
        }
    }

    /// The dimensions of all parts together, with those of the stack.
    pub fn stored_dims(&self) -> Vec<usize> {
        let mut dims = self.part_dims();
        if self.layout != Layout::Replicated {
            dims[0] *= self.parts;
        }
        dims.splice(0..0, self.stack);
        dims
    }

    /// How the stored tensor is cut over an axis.
    pub fn sharding(&self, mesh: &Mesh, axis: &str) -> Result<Sharding, MeshError> {
        let cut = [axis];
        let mut dims: Vec<&[&str]> = vec![&[]; self.stored_dims().len()];
        if self.layout != Layout::Replicated {
            dims[usize::from(self.stack.is_some())] = &cut;
        }
        mesh.sharding(&dims)
    }

    /// The stored numbers out of the whole parameters of its layers, one after another.
    pub fn pack(&self, wholes: &[f32]) -> Vec<f32> {
        let (whole, stored) = self.lengths();
        let mut all = Vec::with_capacity(stored * self.stack.unwrap_or(1));
        for layer in wholes.chunks(whole) {
            all.extend_from_slice(layer);
            all.resize(all.len() + stored - layer.len(), 0.0);
        }
        all
    }

    /// The whole parameters of its layers, one after another, out of the stored numbers.
    pub fn unpack(&self, stored: &[f32]) -> Vec<f32> {
        let (whole, length) = self.lengths();
        stored.chunks(length).flat_map(|layer| &layer[..whole]).copied().collect()
    }

    /// The elements of one layer, without padding and with it, which always is at the end.
    fn lengths(&self) -> (usize, usize) {
        (self.dims.iter().product(), self.padded_elements())
    }

    /// The elements of all parts of one layer, padding included.
    pub(crate) fn padded_elements(&self) -> usize {
        let parts = if self.layout == Layout::Replicated { 1 } else { self.parts };
        self.part_dims().iter().product::<usize>() * parts
    }

    /// How many dimensions a tensor of parts (or of wholes) has before those of one parameter.
    pub(crate) fn lead(&self, part: &Tensor) -> usize {
        part.rank() - self.part_dims().len()
    }

    /// The whole out of all parts put together along their first dimension: without padding, in
    /// its own dimensions.
    pub(crate) fn trim(&self, parts: &Tensor) -> Result<Tensor> {
        let lead = self.lead(parts);
        match self.layout {
            Layout::Replicated => Ok(parts.clone()),
            Layout::Dim0 => parts.narrow(lead, 0, self.dims[0]),
            Layout::Flat => {
                let elements = self.dims.iter().product();
                let dims = [&parts.dims()[..lead], &self.dims].concat();
                parts.narrow(lead, 0, elements)?.reshape(&dims)
            }
        }
    }

    /// The whole with padding, in the dimensions of all parts put together.
    pub(crate) fn pad(&self, whole: &Tensor) -> Result<Tensor> {
        let lead = whole.rank() - self.dims.len();
        let flat = match self.layout {
            Layout::Replicated => return Ok(whole.clone()),
            Layout::Dim0 => whole.clone(),
            Layout::Flat => {
                let elements = self.dims.iter().product();
                whole.reshape(&[&whole.dims()[..lead], &[elements]].concat())?
            }
        };
        let padded = self.part_dims()[0] * self.parts;
        let zeros = vec![0; flat.rank()];
        let mut high = zeros.clone();
        high[lead] = (padded - flat.dims()[lead]) as i64;
        flat.pad(0.0, &zeros, &high, &vec![0; flat.rank()])
    }

    /// A part as a row of numbers.
    pub(crate) fn to_row(&self, part: &Tensor) -> Result<Tensor> {
        part.reshape(&[1, part.ty().elements()])
    }

    /// The part that a row of numbers is; `lead` are the dimensions before those of one part.
    pub(crate) fn part_of_row(&self, row: &Tensor, lead: &[usize]) -> Result<Tensor> {
        row.reshape(&[lead, &self.part_dims()].concat())
    }

    /// The whole out of the rows of all parts.
    pub(crate) fn whole_of_rows(&self, rows: &Tensor, lead: &[usize]) -> Result<Tensor> {
        let part = self.part_dims();
        let all = [&[self.parts], lead, &part[..]].concat();
        let parts = rows.reshape(&all)?.transpose(&moved(0, lead.len(), all.len()))?;
        let mut joined = [lead, &part[..]].concat();
        joined[lead.len()] *= self.parts;
        self.trim(&parts.reshape(&joined)?)
    }

    /// The rows of all parts of a whole.
    pub(crate) fn to_rows(&self, whole: &Tensor) -> Result<Tensor> {
        let padded = self.pad(whole)?;
        let part = self.part_dims();
        let lead = padded.rank() - part.len();
        let split = [&padded.dims()[..lead], &[self.parts], &part[..]].concat();
        let parts = padded.reshape(&split)?.transpose(&moved(lead, 0, split.len()))?;
        parts.reshape(&[self.parts, padded.ty().elements() / self.parts])
    }
}

/// The permutation that takes dimension `from` to `to` and leaves the others in order.
fn moved(from: usize, to: usize, rank: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..rank).filter(|&dim| dim != from).collect();
    order.insert(to, from);
    order
}
