//! The statistics of a factored second moment, whatever the sharding of the parameter.

use crate::blocks::Blocks;
use crate::matrices::Matrices;
use crate::shard::Shard;
use fullshard_core::Layout;
use fullshard_graph::{Result, Tensor};

/// The local part of a parameter of rank two or more.
pub(crate) enum Factors {
    /// A range of its elements.
    Range(Matrices),
    /// A block of it.
    Block(Blocks),
}

impl Factors {
    /// The local part of a parameter; `None` if its rank is below two.
    pub(crate) fn of(shard: &Shard) -> Result<Option<Factors>> {
        let on_other_dim = matches!(shard.layout, Layout::Dim(1..)) && shard.parts() > 1;
        match shard.dims.len() > 1 && (on_other_dim || shard.tensor.is_some()) {
            true => Ok(Some(Factors::Block(Blocks::of(shard)))),
            false => Ok(Matrices::of(shard)?.map(Factors::Range)),
        }
    }

    /// The row sums `[stack, batch, rows]` and column sums `[stack, batch, columns]` of the local
    /// elements, zero for rows and columns without any.
    pub(crate) fn sums(&self, elements: &Tensor) -> Result<(Tensor, Tensor)> {
        match self {
            Factors::Range(matrices) => matrices.sums(elements),
            Factors::Block(blocks) => blocks.sums(elements),
        }
    }

    /// For each local element, the factor of its row, from `[stack, batch, rows]`, times that of
    /// its column, from `[stack, batch, columns]`.
    pub(crate) fn outer_products(&self, rows: &Tensor, columns: &Tensor) -> Result<Tensor> {
        match self {
            Factors::Range(matrices) => matrices.outer_products(rows, columns),
            Factors::Block(blocks) => blocks.outer_products(rows, columns),
        }
    }
}
