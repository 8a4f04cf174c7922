//! Tensor parallelism of layers: a device computes with its slice of a weight.
//!
//! A layer whose output is sliced takes inputs that all devices have ([`TensorParallel::enter`]);
//! one whose input is sliced sums its outputs over devices ([`TensorParallel::leave`]). Between
//! them each device has its own heads or its own part of the inner width, and nothing is
//! communicated. With sequence parallelism the tokens outside such pairs are sharded too: entering
//! all-gathers them, leaving scatters the sums.
//!
//! Without sequence parallelism, everything outside is the same on all devices, and so are its
//! gradients. With it, each device has the gradients of its own tokens, and those of parameters
//! that are not sliced are summed over devices.

use crate::layers::dim_names::DimName;
use fullshard_graph::{
    Comparison, DType, Error, Group, Reduction, Result, Tensor, concatenate, constant, custom_vjp,
    full, select, zeros,
};
use std::cell::RefCell;

/// The devices over which layers are sliced, and which of their dims.
#[derive(Debug)]
pub struct TensorParallel {
    group: Group,
    names: Vec<String>,
    sequence_parallel: bool,
    /// The last tensor that was entered, with the result: projections of one input share it.
    entered: RefCell<Option<(Tensor, Tensor)>>,
}

impl TensorParallel {
    /// Slices dims of these names over devices.
    pub fn new(group: Group, names: Vec<String>, sequence_parallel: bool) -> TensorParallel {
        TensorParallel { group, names, sequence_parallel, entered: RefCell::default() }
    }

    /// The devices.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Whether tokens between the sliced layers are sharded.
    pub fn is_sequence_parallel(&self) -> bool {
        self.sequence_parallel
    }

    /// Whether a dim is sliced.
    pub fn slices(&self, dim: &DimName) -> bool {
        self.names.iter().any(|name| name == dim.name)
    }

    /// The size of a dim of this size on each device.
    pub fn local(&self, dim: &DimName, size: usize) -> usize {
        if self.slices(dim) { slice_size(size, dim.parts, self.group.size()) } else { size }
    }

    /// The input of layers whose outputs are sliced: all tokens, of which the gradient is summed
    /// over devices.
    pub(crate) fn enter(&self, x: &Tensor) -> Result<Tensor> {
        let known = self.entered.borrow().clone();
        if let Some((_, all)) = known.filter(|(known, all)| known.is(x) && all.is_usable()) {
            return Ok(all);
        }
        let all = match self.sequence_parallel {
            true => self.group.all_gather(x, token_dim(x))?,
            false => only(custom_vjp(
                &[x],
                Ok,
                |inputs| Ok((inputs, Vec::new())),
                |_, gradients| Ok(vec![self.group.sum(&gradients[0])?]),
            )?)?,
        };
        self.entered.replace(Some((x.clone(), all.clone())));
        Ok(all)
    }

    /// The output of a layer whose input is sliced, from what each device has of the sum.
    pub(crate) fn leave(&self, partial: &Tensor) -> Result<Tensor> {
        match self.sequence_parallel {
            true => self.group.reduce_scatter(partial, token_dim(partial)),
            false => self.sum(partial),
        }
    }

    /// The sum over devices of what each has. Its gradient is the same on all devices, or, with
    /// sequence parallelism, the sum of those of their tokens.
    pub(crate) fn sum(&self, partial: &Tensor) -> Result<Tensor> {
        if self.sequence_parallel {
            return self.group.sum(partial);
        }
        only(custom_vjp(
            &[partial],
            |inputs| Ok(vec![self.group.sum(&inputs[0])?]),
            |inputs| Ok((vec![self.group.sum(&inputs[0])?], Vec::new())),
            |_, gradients| Ok(gradients),
        )?)
    }

    /// All of what devices have slices of along the last dimension, without padding. Every device
    /// computes the same with it, so its own slice of the gradient is all there is.
    pub(crate) fn whole(&self, slice: &Tensor, size: usize) -> Result<Tensor> {
        let last = slice.rank() - 1;
        let width = slice.dims()[last];
        let gathered = only(custom_vjp(
            &[slice],
            |inputs| Ok(vec![self.group.all_gather(&inputs[0], last)?]),
            |inputs| Ok((vec![self.group.all_gather(&inputs[0], last)?], Vec::new())),
            |_, gradients| {
                let zero = zeros(DType::I32, &[])?;
                let start = self.start(width)?;
                let starts: Vec<&Tensor> =
                    (0..=last).map(|dim| if dim == last { &start } else { &zero }).collect();
                let mut dims = gradients[0].dims().to_vec();
                dims[last] = width;
                Ok(vec![gradients[0].dynamic_slice(&starts, &dims)?])
            },
        )?)?;
        gathered.narrow(last, 0, size)
    }

    /// This device's tokens of the residual stream, of which all devices have all.
    pub(crate) fn own_tokens(&self, x: &Tensor) -> Result<Tensor> {
        if !self.sequence_parallel {
            return Ok(x.clone());
        }
        let dim = token_dim(x);
        let mut dims = x.dims().to_vec();
        if !dims[dim].is_multiple_of(self.group.size()) {
            let (tokens, devices) = (dims[dim], self.group.size());
            let reason = format!(
                "{tokens} tokens cannot be sharded over {devices} devices: choose a multiple of \
                 {devices}, or --sequence_parallel false"
            );
            return Err(Error::new("sequence parallelism", reason));
        }
        dims[dim] /= self.group.size();
        let zero = zeros(DType::I32, &[])?;
        let start = (self.group.index()? * dims[dim] as f64)?;
        let starts: Vec<&Tensor> =
            (0..x.rank()).map(|i| if i == dim { &start } else { &zero }).collect();
        x.dynamic_slice(&starts, &dims)
    }

    /// The rows of a table that is sliced over devices at indices, `[..., width]`.
    pub(crate) fn take(&self, table: &Tensor, indices: &Tensor) -> Result<Tensor> {
        let (local, inside) = self.local_indices(indices, table.dims()[0])?;
        let rows = table.take(&local)?;
        select(&inside.expand(indices.rank())?, &rows, &zeros(rows.dtype(), &[])?)
    }

    /// Indices into this device's slice of a dim, and whether they are in it; zero if not.
    pub(crate) fn local_indices(&self, indices: &Tensor, slice: usize) -> Result<(Tensor, Tensor)> {
        let zero = zeros(indices.dtype(), &[])?;
        let local = (indices - self.start(slice)?.convert(indices.dtype())?)?;
        let end = full(indices.dtype(), &[], slice as f64)?;
        let inside = local
            .compare(Comparison::GreaterEqual, &zero)?
            .and(&local.compare(Comparison::Less, &end)?)?;
        Ok((select(&inside, &local, &zero)?, inside))
    }

    /// Where this device's slice of a dim begins.
    pub(crate) fn start(&self, slice: usize) -> Result<Tensor> {
        self.group.index()? * constant(&[], &[slice as i32])?
    }

    /// The largest of what each device has.
    pub(crate) fn max(&self, local: &Tensor) -> Result<Tensor> {
        self.group.all_reduce(local, Reduction::Max)
    }

    /// The sums over devices of columns `[rows, 1]`, in one collective.
    pub(crate) fn sum_columns<const N: usize>(&self, columns: [&Tensor; N]) -> Result<[Tensor; N]> {
        let sums = self.group.sum(&concatenate(&columns, 1)?)?;
        let columns = (0..N).map(|i| sums.narrow(1, i, i + 1)).collect::<Result<Vec<_>>>()?;
        columns.try_into().map_err(|_| Error::new("sum", "a column is missing"))
    }
}

/// The size of each device's slice of a dim of several fused parts, padding included.
pub fn slice_size(size: usize, parts: usize, devices: usize) -> usize {
    parts * (size / parts).div_ceil(devices)
}

/// The dim of tokens in `[tokens, width]` or `[batch, sequence, width]`.
fn token_dim(x: &Tensor) -> usize {
    x.rank().saturating_sub(2)
}

fn only(mut results: Vec<Tensor>) -> Result<Tensor> {
    results.pop().ok_or_else(|| Error::new("tensor parallelism", "expected one result"))
}
