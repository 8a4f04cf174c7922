//! Row and column statistics of a parameter that is sharded on a dim other than the first.
//!
//! Such a shard is a block of the full parameter, not a range of its elements. Its row and column
//! sums are placed at its position among those of the full parameter, and summed over devices.

use crate::shard::Shard;
use fullshard_graph::{DType, Group, Result, Tensor, zeros};

/// The block of a parameter of rank two or more that a device holds.
pub(crate) struct Blocks {
    stack: usize,
    /// The dimensions of one full parameter.
    dims: Vec<usize>,
    /// The sharded dim, and the number of its shards.
    dim: usize,
    parts: usize,
    group: Group,
    local_dims: Vec<usize>,
}

impl Blocks {
    /// The block of a parameter that is sharded on a dim.
    pub(crate) fn of(shard: &Shard, dim: usize, group: &Group) -> Blocks {
        Blocks {
            stack: shard.stack.unwrap_or(1),
            dims: shard.dims.clone(),
            dim,
            parts: group.size(),
            group: group.clone(),
            local_dims: shard.local_dims(),
        }
    }

    /// The row sums `[stack, batch, rows]` and column sums `[stack, batch, columns]` of the local
    /// elements, zero for rows and columns without any.
    pub(crate) fn sums(&self, elements: &Tensor) -> Result<(Tensor, Tensor)> {
        let elements = elements.reshape(&self.with_stack(&self.block()))?;
        let (rows, columns) = (self.dims.len() - 2, self.dims.len() - 1);
        Ok((self.sum_of(&elements, columns)?, self.sum_of(&elements, rows)?))
    }

    /// The sums over a dim, at their position among all.
    fn sum_of(&self, elements: &Tensor, over: usize) -> Result<Tensor> {
        let sums = elements.sum(&[1 + over])?;
        let sums = match self.dim_without(over) {
            Some(dim) => {
                let mut dims = sums.dims().to_vec();
                dims[dim] = self.dims[self.dim];
                let starts = self.starts(dim, dims.len())?;
                zeros(DType::F32, &dims)?
                    .dynamic_update_slice(&sums, &starts.iter().collect::<Vec<_>>())?
            }
            None => sums,
        };
        sums.reshape(&[self.stack, self.batch(), self.dims[self.kept(over)]])
    }

    /// For each local element, the factor of its row, from `[stack, batch, rows]`, times that of
    /// its column, from `[stack, batch, columns]`.
    pub(crate) fn outer_products(&self, rows: &Tensor, columns: &Tensor) -> Result<Tensor> {
        let (last, before) = (self.dims.len() - 1, self.dims.len() - 2);
        let products = (self.factors(rows, last)? * self.factors(columns, before)?)?;
        products.reshape(&self.local_dims)
    }

    /// The local ones of the factors that do not depend on a dim, with a dimension of size one
    /// for it.
    fn factors(&self, factors: &Tensor, without: usize) -> Result<Tensor> {
        let mut dims = self.dims.clone();
        dims[without] = 1;
        let factors = factors.reshape(&self.with_stack(&dims))?;
        if without == self.dim {
            return Ok(factors);
        }
        let mut local = factors.dims().to_vec();
        local[1 + self.dim] /= self.parts;
        let starts = self.starts(1 + self.dim, local.len())?;
        factors.dynamic_slice(&starts.iter().collect::<Vec<_>>(), &local)
    }

    /// Where the block begins, if its sharded dim is dimension `dim` of `rank`.
    fn starts(&self, dim: usize, rank: usize) -> Result<Vec<Tensor>> {
        let zero = zeros(DType::I32, &[])?;
        let local = self.dims[self.dim] / self.parts;
        let start = (self.group.index()? * local as f64)?;
        Ok((0..rank).map(|i| if i == dim { start.clone() } else { zero.clone() }).collect())
    }

    /// The dimension, after that of the stack, of the sharded dim in sums over another; none in
    /// sums over itself.
    fn dim_without(&self, over: usize) -> Option<usize> {
        match self.dim {
            dim if dim == over => None,
            dim if dim > over => Some(dim),
            dim => Some(dim + 1),
        }
    }

    /// The one of the last two dims that is left after a sum over the other.
    fn kept(&self, over: usize) -> usize {
        2 * self.dims.len() - 3 - over
    }

    fn batch(&self) -> usize {
        self.dims[..self.dims.len() - 2].iter().product()
    }

    fn block(&self) -> Vec<usize> {
        let mut dims = self.dims.clone();
        dims[self.dim] /= self.parts;
        dims
    }

    fn with_stack(&self, dims: &[usize]) -> Vec<usize> {
        [&[self.stack], dims].concat()
    }
}
