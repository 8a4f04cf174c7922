//! How one parameter is sharded over devices: the shard of each, and how to convert
//! between the full parameter and its shards.
//!
//! With tensor parallelism a device computes with a slice of the parameter, which is then what
//! `full` means here: FSDP shards the slice and all-gathers it.
//!
//! Only shards have padding. It is zero, and so is its gradient.

use fullshard_core::Layout;
use fullshard_graph::{Error, Mesh, MeshError, Result, Sharding, Tensor};
use fullshard_models::{Initializer, slice_size};

/// The flat layout pads each shard to a multiple of this, so that a shard is full rows of a tile
/// on every kind of device.
pub(crate) const FLAT_MULTIPLE: usize = 128;

/// A sharded parameter, or the stack of one parameter of all layers.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardedParam {
    /// Its full name, with a `*` for the layer if all layers are stacked.
    pub name: String,
    /// The class of its module.
    pub class: &'static str,
    /// The dimensions of one full parameter.
    pub dims: Vec<usize>,
    /// Its initializer.
    pub initializer: Initializer,
    /// A row that is initialized with zeros, whatever the rest.
    pub zero_row: Option<usize>,
    /// The number of layers stacked along a first dimension.
    pub stack: Option<usize>,
    /// Its name with a `*` for the layer, whether stacked or not.
    pub template: String,
    /// The layer it belongs to, if it belongs to one.
    pub layer: Option<usize>,
    /// How it is sharded.
    pub layout: Layout,
    /// The positions of the mesh axes that shard it, the major first.
    pub axes: Vec<usize>,
    /// Why it is sharded so.
    pub reason: String,
    /// The number of shards.
    pub num_shards: usize,
    /// The slice of it that each device computes with, if not all of it.
    pub slice: Option<TensorSlice>,
    /// The dim of equal parts that are fused along it, and their number.
    pub fused: Option<(usize, usize)>,
    /// Whether it is frozen.
    pub frozen: bool,
}

/// The slices of a parameter along a dim, one per device.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorSlice {
    /// The dim.
    pub dim: usize,
    /// The equal parts that are fused along it. Each is sliced.
    pub parts: usize,
    /// The positions of the mesh axes of the devices.
    pub axes: Vec<usize>,
    /// The number of slices.
    pub count: usize,
    /// Whether the axes are automatic: devices compute with all slices, and the compiler shards
    /// them.
    pub automatic: bool,
}

/// A dimension of the state of a parameter, over all devices.
#[derive(Debug, Clone, PartialEq)]
pub struct GridDim {
    /// Its size without padding.
    pub size: usize,
    /// Its size on each device, padding included.
    pub local: usize,
    /// The positions of the mesh axes that shard it, the major first.
    pub axes: Vec<usize>,
    /// The number of shards.
    pub shards: usize,
}

impl GridDim {
    fn whole(size: usize) -> GridDim {
        GridDim { size, local: size, axes: Vec::new(), shards: 1 }
    }

    fn sharded(size: usize, axes: &[usize], shards: usize) -> GridDim {
        GridDim { size, local: size.div_ceil(shards), axes: axes.to_vec(), shards }
    }
}

impl ShardedParam {
    /// The dimensions of the state: those of the parameter, or one if it is flat. A dim of fused
    /// parts that is sliced is two, so that a shard is a block.
    pub fn grid(&self) -> Vec<GridDim> {
        if self.layout == Layout::Flat {
            let (size, local) = (self.dims.iter().product(), self.shard_dims()[0]);
            return vec![GridDim { size, local, axes: self.axes.clone(), shards: self.num_shards }];
        }
        let mut grid = Vec::new();
        for (dim, &size) in self.dims.iter().enumerate() {
            match &self.slice {
                Some(slice) if slice.dim == dim => {
                    grid.extend((slice.parts > 1).then(|| GridDim::whole(slice.parts)));
                    grid.push(GridDim::sharded(size / slice.parts, &slice.axes, slice.count));
                }
                _ if self.layout == Layout::Dim(dim) => {
                    grid.push(GridDim::sharded(size, &self.axes, self.num_shards));
                }
                _ => grid.push(GridDim::whole(size)),
            }
        }
        grid
    }

    /// All mesh axes that its state is sharded over.
    pub fn state_axes(&self) -> Vec<usize> {
        let sliced = self.slice.iter().flat_map(|slice| &slice.axes);
        sliced.chain(&self.axes).copied().collect()
    }

    /// The dimensions of what a device computes with.
    pub fn slice_dims(&self) -> Vec<usize> {
        let mut dims = self.dims.clone();
        if let Some(TensorSlice { dim, parts, count, .. }) = self.slice {
            dims[dim] = slice_size(dims[dim], parts, count);
        }
        dims
    }

    /// A shard of the state, in the dimensions of [`ShardedParam::shard_dims`].
    pub(crate) fn merged(&self, shard: &Tensor) -> Result<Tensor> {
        let lead = shard.rank() - self.grid().len();
        shard.reshape(&[&shard.dims()[..lead], &self.shard_dims()].concat())
    }

    /// The inverse of [`ShardedParam::merged`].
    pub(crate) fn unmerged(&self, shard: &Tensor) -> Result<Tensor> {
        let (lead, grid) = (self.lead(shard), self.grid());
        let local: Vec<usize> = grid.iter().map(|dim| dim.local).collect();
        shard.reshape(&[&shard.dims()[..lead], &local].concat())
    }

    /// The sharding over automatic axes of a shard of the state, of this rank.
    pub(crate) fn automatic_sharding(&self, mesh: &Mesh, rank: usize) -> Result<Sharding> {
        let grid: Vec<Vec<usize>> = self.grid().into_iter().map(|dim| dim.axes).collect();
        self.over_automatic(mesh, rank, grid)
    }

    /// The same of the full parameter: without the axes of FSDP, which gathers it.
    pub(crate) fn automatic_full_sharding(&self, mesh: &Mesh, lead: usize) -> Result<Sharding> {
        let full = match self.layout {
            Layout::Flat => vec![Vec::new(); self.dims.len()],
            Layout::Replicated | Layout::Dim(_) => {
                self.grid().into_iter().map(|dim| dim.axes).collect()
            }
        };
        self.over_automatic(mesh, lead + full.len(), full)
    }

    fn over_automatic(
        &self,
        mesh: &Mesh,
        rank: usize,
        mut dims: Vec<Vec<usize>>,
    ) -> Result<Sharding> {
        let slice = self.slice.as_ref().filter(|slice| slice.automatic);
        let is_automatic = |axis: &usize| slice.is_some_and(|slice| slice.axes.contains(axis));
        dims.iter_mut().for_each(|axes| axes.retain(is_automatic));
        let lead = rank.saturating_sub(dims.len());
        dims.splice(0..0, vec![Vec::new(); lead]);
        let invalid = |error: MeshError| Error::new("sharding", error.to_string());
        mesh.sharding_over(dims).map_err(invalid)
    }

    /// A full slice as layers take it: over automatic axes, fused parts are a dim of their own, so
    /// that all slices together are a sharded tensor.
    pub(crate) fn split_parts(&self, full: &Tensor) -> Result<Tensor> {
        let lead = full.rank() - self.dims.len();
        match &self.slice {
            Some(TensorSlice { dim, parts, automatic: true, .. }) if *parts > 1 => {
                let mut dims = full.dims().to_vec();
                let size = dims[lead + dim] / parts;
                dims.splice(lead + dim..=lead + dim, [*parts, size]);
                full.reshape(&dims)
            }
            _ => Ok(full.clone()),
        }
    }

    /// The inverse of [`ShardedParam::split_parts`].
    pub(crate) fn joined_parts(&self, full: &Tensor) -> Result<Tensor> {
        let lead = full.rank() - self.full_rank();
        full.reshape(&[&full.dims()[..lead], &self.slice_dims()].concat())
    }

    /// The dim of parts whose gradients can be reduced apart, and their number: fused parts along
    /// another dim than the sharded one.
    pub(crate) fn reduced_parts(&self) -> Option<(usize, usize)> {
        let dim = self.layout.sharded_dim().filter(|_| self.layout != Layout::Flat)?;
        self.fused.filter(|fused| fused.0 != dim)
    }

    /// The rank of a full parameter as layers take it.
    pub(crate) fn full_rank(&self) -> usize {
        let split = |slice: &TensorSlice| slice.automatic && slice.parts > 1;
        self.dims.len() + usize::from(self.slice.as_ref().is_some_and(split))
    }

    /// The elements of the parameter, of all layers if it is stacked, without padding.
    pub fn elements(&self) -> usize {
        self.dims.iter().product::<usize>() * self.stack.unwrap_or(1)
    }

    /// The elements that one device computes with, of all layers if it is stacked.
    pub fn slice_elements(&self) -> usize {
        self.slice_dims().iter().product::<usize>() * self.stack.unwrap_or(1)
    }

    /// The names of its full parameters: one per layer if it is stacked.
    pub fn layer_names(&self) -> Vec<String> {
        match self.stack {
            Some(layers) => {
                (0..layers).map(|i| self.name.replacen('*', &i.to_string(), 1)).collect()
            }
            None => vec![self.name.clone()],
        }
    }

    /// The elements that one device holds, padding included.
    pub fn shard_elements(&self) -> usize {
        self.shard_dims().iter().product::<usize>() * self.stack.unwrap_or(1)
    }

    /// The dimensions of one device's shard of one layer.
    pub fn shard_dims(&self) -> Vec<usize> {
        match self.layout {
            Layout::Replicated => self.slice_dims(),
            Layout::Dim(dim) => {
                let mut dims = self.slice_dims();
                dims[dim] = dims[dim].div_ceil(self.num_shards);
                dims
            }
            Layout::Flat => {
                let elements = self.dims.iter().product::<usize>();
                vec![elements.div_ceil(self.num_shards * FLAT_MULTIPLE) * FLAT_MULTIPLE]
            }
        }
    }

    /// The dimensions of all shards together, with those of the stack.
    pub fn padded_dims(&self) -> Vec<usize> {
        let grid = self.grid().into_iter().map(|dim| dim.local * dim.shards);
        self.stack.into_iter().chain(grid).collect()
    }

    /// The sharding of the tensor over its axes.
    pub fn sharding(&self, mesh: &Mesh) -> Result<Sharding, MeshError> {
        let stack = self.stack.map(|_| Vec::new());
        let grid = self.grid().into_iter().map(|dim| dim.axes);
        mesh.sharding_over(stack.into_iter().chain(grid).collect())
    }

    /// The padded values of the full parameters of its layers, concatenated.
    pub fn pack(&self, full_params: &[f32]) -> Vec<f32> {
        let (elements, padded) = self.lengths();
        let mut all = Vec::with_capacity(padded * self.stack.unwrap_or(1));
        for layer in full_params.chunks(elements) {
            all.extend_from_slice(layer);
            all.resize(all.len() + padded - layer.len(), 0.0);
        }
        all
    }

    /// The full parameters of its layers, concatenated, from their padded values.
    pub fn unpack(&self, values: &[f32]) -> Vec<f32> {
        let (elements, padded) = self.lengths();
        let mut all = Vec::with_capacity(elements * self.stack.unwrap_or(1));
        for layer in values.chunks(padded) {
            all.extend_from_slice(&layer[..elements]);
        }
        all
    }

    /// The elements of one layer, without and with padding, which is always at the end.
    fn lengths(&self) -> (usize, usize) {
        (self.dims.iter().product(), self.padded_elements())
    }

    /// The elements of all shards of one layer that are all-gathered, padding included.
    pub(crate) fn padded_elements(&self) -> usize {
        let shards = if self.layout == Layout::Replicated { 1 } else { self.num_shards };
        self.shard_dims().iter().product::<usize>() * shards
    }

    /// The number of leading dimensions of a shard (or full tensor) before those of one parameter.
    pub(crate) fn lead(&self, shard: &Tensor) -> usize {
        shard.rank() - self.shard_dims().len()
    }

    /// The full parameter from all shards concatenated along their sharded dimension: without
    /// padding, in its own dimensions.
    pub(crate) fn trim(&self, shards: &Tensor) -> Result<Tensor> {
        let lead = self.lead(shards);
        match self.layout {
            Layout::Replicated => Ok(shards.clone()),
            Layout::Dim(dim) => shards.narrow(lead + dim, 0, self.slice_dims()[dim]),
            Layout::Flat => {
                let elements = self.dims.iter().product();
                let dims = [&shards.dims()[..lead], &self.dims].concat();
                shards.narrow(lead, 0, elements)?.reshape(&dims)
            }
        }
    }

    /// The full parameter with padding, in the dimensions of all shards concatenated.
    pub(crate) fn pad(&self, full: &Tensor) -> Result<Tensor> {
        let lead = full.rank() - self.dims.len();
        let flat = match self.layout {
            Layout::Replicated => return Ok(full.clone()),
            Layout::Dim(_) => full.clone(),
            Layout::Flat => {
                let elements = self.dims.iter().product();
                full.reshape(&[&full.dims()[..lead], &[elements]].concat())?
            }
        };
        let dim = self.layout.sharded_dim().unwrap_or(0);
        let padded = self.shard_dims()[dim] * self.num_shards;
        let zeros = vec![0; flat.rank()];
        let mut high = zeros.clone();
        high[lead + dim] = (padded - flat.dims()[lead + dim]) as i64;
        flat.pad(0.0, &zeros, &high, &vec![0; flat.rank()])
    }

    /// A shard as a row.
    pub(crate) fn to_row(&self, shard: &Tensor) -> Result<Tensor> {
        shard.reshape(&[1, shard.ty().elements()])
    }

    /// The shard of a row; `lead` are the dimensions before those of one shard.
    pub(crate) fn shard_from_row(&self, row: &Tensor, lead: &[usize]) -> Result<Tensor> {
        row.reshape(&[lead, &self.shard_dims()].concat())
    }

    /// The full parameter from the rows of all shards.
    pub(crate) fn unsharded_from_rows(&self, rows: &Tensor, lead: &[usize]) -> Result<Tensor> {
        let shard = self.shard_dims();
        let dim = lead.len() + self.layout.sharded_dim().unwrap_or(0);
        let all = [&[self.num_shards], lead, &shard[..]].concat();
        let shards = rows.reshape(&all)?.transpose(&moved(0, dim, all.len()))?;
        let mut joined = [lead, &shard[..]].concat();
        joined[dim] *= self.num_shards;
        self.trim(&shards.reshape(&joined)?)
    }

    /// The rows of all shards of a full parameter.
    pub(crate) fn to_rows(&self, full: &Tensor) -> Result<Tensor> {
        let padded = self.pad(full)?;
        let shard = self.shard_dims();
        let lead = padded.rank() - shard.len();
        let dim = self.layout.sharded_dim().unwrap_or(0);
        let (before, after) = shard.split_at(dim);
        let split = [&padded.dims()[..lead], before, &[self.num_shards], after].concat();
        let shards = padded.reshape(&split)?.transpose(&moved(lead + dim, 0, split.len()))?;
        shards.reshape(&[self.num_shards, padded.ty().elements() / self.num_shards])
    }
}

/// The permutation that moves dimension `from` to `to` and keeps the order of the others.
fn moved(from: usize, to: usize, rank: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..rank).filter(|&dim| dim != from).collect();
    order.insert(to, from);
    order
}
