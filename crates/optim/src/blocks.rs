//! Row and column statistics of a parameter of which a device holds a block: sharded on a dim other
//! than the first, or on several.
//!
//! The row and column sums of a block are placed at its position among those of the full parameter,
//! and summed over devices.

use crate::shard::{GridDim, Shard};
use fullshard_graph::{DType, Result, Tensor, zeros};
use std::ops::Range;

/// The block of a parameter of rank two or more that a device holds.
pub(crate) struct Blocks {
    stack: usize,
    grid: Vec<GridDim>,
    /// The dimensions of the grid that are rows. Those before are batch dimensions, those after are
    /// columns.
    rows: Range<usize>,
    local_dims: Vec<usize>,
}

impl Blocks {
    /// The block of a parameter.
    pub(crate) fn of(shard: &Shard) -> Blocks {
        let (grid, rank) = (shard.grid(), shard.dims.len());
        // A dim that is sliced in parts is two dimensions of the grid.
        let start_of = |dim: usize| dim + usize::from(shard.split_dim().is_some_and(|it| it < dim));
        let rows = start_of(rank - 2)..start_of(rank - 1);
        Blocks { stack: shard.stack.unwrap_or(1), grid, rows, local_dims: shard.local_dims() }
    }

    /// The row sums `[stack, batch, rows]` and column sums `[stack, batch, columns]` of the local
    /// elements, zero for rows and columns without any.
    pub(crate) fn sums(&self, elements: &Tensor) -> Result<(Tensor, Tensor)> {
        let local = self.grid.iter().map(|dim| dim.local);
        let elements = elements.reshape(&self.with_stack(local))?;
        Ok((
            self.sum_over(&elements, self.columns())?,
            self.sum_over(&elements, self.rows.clone())?,
        ))
    }

    /// The sums over some dimensions, at their position among all.
    fn sum_over(&self, elements: &Tensor, over: Range<usize>) -> Result<Tensor> {
        let sums = elements.sum(&over.clone().map(|dim| 1 + dim).collect::<Vec<_>>())?;
        let kept = || (0..self.grid.len()).filter(|dim| !over.contains(dim)).map(|i| &self.grid[i]);
        let padded = self.with_stack(kept().map(|dim| dim.local * dim.shards()));
        let starts = starts(kept())?;
        let placed = match padded == sums.dims() {
            true => sums,
            false => zeros(DType::F32, &padded)?
                .dynamic_update_slice(&sums, &starts.iter().collect::<Vec<_>>())?,
        };
        let placed = kept()
            .enumerate()
            .try_fold(placed, |placed, (dim, it)| placed.narrow(1 + dim, 0, it.size))?;
        let last = if over == self.rows { self.columns() } else { self.rows.clone() };
        placed.reshape(&[self.stack, self.size(0..self.rows.start), self.size(last)])
    }

    /// For each local element, the factor of its row, from `[stack, batch, rows]`, times that of
    /// its column, from `[stack, batch, columns]`.
    pub(crate) fn outer_products(&self, rows: &Tensor, columns: &Tensor) -> Result<Tensor> {
        let rows = self.factors(rows, self.columns())?;
        let columns = self.factors(columns, self.rows.clone())?;
        (rows * columns)?.reshape(&self.local_dims)
    }

    /// The local ones of the factors that do not depend on some dimensions, with dimensions of size
    /// one for those.
    fn factors(&self, factors: &Tensor, without: Range<usize>) -> Result<Tensor> {
        let one = GridDim { size: 1, local: 1, group: None };
        let dims = || {
            let dims = self.grid.iter().enumerate();
            dims.map(|(i, dim)| if without.contains(&i) { &one } else { dim })
        };
        let factors = factors.reshape(&self.with_stack(dims().map(|dim| dim.size)))?;
        let padding = dims().map(|dim| (dim.local * dim.shards() - dim.size) as i64);
        let padding: Vec<i64> = [0].into_iter().chain(padding).collect();
        let none = vec![0; padding.len()];
        let factors = factors.pad(0.0, &none, &padding, &vec![0; padding.len()])?;
        let local = self.with_stack(dims().map(|dim| dim.local));
        if factors.dims() == local {
            return Ok(factors);
        }
        factors.dynamic_slice(&starts(dims())?.iter().collect::<Vec<_>>(), &local)
    }

    fn columns(&self) -> Range<usize> {
        self.rows.end..self.grid.len()
    }

    /// The elements of some dimensions, without padding.
    fn size(&self, dims: Range<usize>) -> usize {
        self.grid[dims].iter().map(|dim| dim.size).product()
    }

    fn with_stack(&self, dims: impl Iterator<Item = usize>) -> Vec<usize> {
        [self.stack].into_iter().chain(dims).collect()
    }
}

/// Where the block begins in these dimensions, after that of the stack.
fn starts<'a>(dims: impl Iterator<Item = &'a GridDim>) -> Result<Vec<Tensor>> {
    let zero = zeros(DType::I32, &[])?;
    let start = |dim: &GridDim| match &dim.group {
        Some(group) => group.index()? * dim.local as f64,
        None => Ok(zero.clone()),
    };
    [Ok(zero.clone())].into_iter().chain(dims.map(start)).collect()
}
