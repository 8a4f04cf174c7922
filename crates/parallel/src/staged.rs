//! Collectives over several mesh axes: at once, or along one axis after another.
//!
//! Sharded over the axes of sizes a, b and c, a tensor is a grid of a·b·c blocks. A reduce-scatter
//! along one axis leaves each device the blocks of its own position on it, so the next axis moves
//! less; an all-gather visits the axes in reverse. The order of the axes is free, since each has
//! its own dimension of the grid:
//!
//! - in the order of the mesh, nothing has to be transposed;
//! - from the last axis, which is that of the nearest devices, to the first, the slow network
//!   between distant devices moves the least;
//! - with the payload cut into as many streams as there are axes, each starting with another axis,
//!   the links of all dimensions of a torus can carry at the same time.

use crate::ring::{self, Parts};
use fullshard_core::CollectiveKind;
use fullshard_graph::{Mesh, MeshExt, Result, Tensor, concatenate};
use serde::{Deserialize, Serialize};

/// How a collective over several mesh axes runs: the values of `--collective`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Staging {
    /// One collective over all axes.
    #[default]
    Flat,
    /// One collective per axis, in the order of the mesh.
    Axes,
    /// The same in streams, each starting with another axis.
    Rotated,
    /// One collective per axis, from the last axis to the first.
    Hierarchical,
    /// Large reductions as permutes around the ring of each axis, which overlap with computation;
    /// all else at once.
    Ring,
}

/// A collective over some axes that is a part of one over more.
#[derive(Debug, Clone, PartialEq)]
pub struct Stage {
    /// The kind.
    pub kind: CollectiveKind,
    /// The positions of its axes.
    pub axes: Vec<usize>,
    /// The elements of its full tensor.
    pub elements: usize,
}

/// The elements from which a sum is scattered, summed and gathered. Below, latency dominates.
const LARGE_SUM: usize = 1 << 14;

impl Staging {
    /// Whether collectives run along one axis after another.
    pub fn is_staged(self) -> bool {
        !matches!(self, Staging::Flat | Staging::Ring)
    }

    /// Whether a collective is permutes around rings.
    fn uses_ring(self, kind: CollectiveKind, elements: usize) -> bool {
        let large = elements >= ring::SMALLEST;
        self == Staging::Ring && kind == CollectiveKind::ReduceScatter && large
    }

    /// The orders in which a reduce-scatter visits `count` axes: one per stream. An all-gather
    /// visits them in reverse.
    pub(crate) fn orders(self, count: usize) -> Vec<Vec<usize>> {
        match self {
            Staging::Flat | Staging::Axes | Staging::Ring => vec![(0..count).collect()],
            Staging::Hierarchical => vec![(0..count).rev().collect()],
            Staging::Rotated => {
                let order = |first| (0..count).map(|i| (first + i) % count).collect();
                (0..count).map(order).collect()
            }
        }
    }

    /// The shards of all devices along axes, concatenated on a dim.
    pub(crate) fn all_gather(
        self,
        mesh: &Mesh,
        axes: &[usize],
        shard: &Tensor,
        dim: usize,
    ) -> Result<Tensor> {
        match self {
            _ if axes.len() < 2 => mesh.group(axes).all_gather(shard, dim),
            Staging::Flat | Staging::Ring => mesh.group(axes).all_gather(shard, dim),
            Staging::Axes => axes.iter().rev().try_fold(shard.clone(), |gathered, &axis| {
                mesh.group(&[axis]).all_gather(&gathered, dim)
            }),
            Staging::Rotated | Staging::Hierarchical => {
                let ones = vec![1; axes.len()];
                let blocks = shard.reshape(&with_dims(shard.dims(), dim, &ones))?;
                let gathered = self.streams(&blocks, axes, dim, |order, stream| {
                    order.iter().rev().try_fold(stream, |stream, &i| {
                        mesh.group(&[axes[i]]).all_gather(&stream, dim + i)
                    })
                })?;
                let mut dims = shard.dims().to_vec();
                dims[dim] *= mesh.group_size(axes);
                gathered.reshape(&dims)
            }
        }
    }

    /// Each device's shard, on a dim, of the sum over devices along axes. A tensor of parts that
    /// come from different matmuls can be reduced part by part.
    pub(crate) fn reduce_scatter(
        self,
        mesh: &Mesh,
        axes: &[usize],
        full: &Tensor,
        dim: usize,
        parts: Option<Parts>,
    ) -> Result<Tensor> {
        match self {
            _ if self.uses_ring(CollectiveKind::ReduceScatter, full.ty().elements()) => {
                ring::reduce_scatter(mesh, axes, full, dim, parts)
            }
            _ if axes.len() < 2 => mesh.group(axes).reduce_scatter(full, dim),
            Staging::Flat | Staging::Ring => mesh.group(axes).reduce_scatter(full, dim),
            Staging::Axes => axes.iter().try_fold(full.clone(), |scattered, &axis| {
                mesh.group(&[axis]).reduce_scatter(&scattered, dim)
            }),
            Staging::Rotated | Staging::Hierarchical => {
                let mut dims = full.dims().to_vec();
                dims[dim] /= mesh.group_size(axes);
                let sizes: Vec<usize> = axes.iter().map(|&axis| mesh.axis_size(axis)).collect();
                let blocks = full.reshape(&with_dims(&dims, dim, &sizes))?;
                let scattered = self.streams(&blocks, axes, dim, |order, stream| {
                    order.iter().try_fold(stream, |stream, &i| {
                        mesh.group(&[axes[i]]).reduce_scatter(&stream, dim + i)
                    })
                })?;
                scattered.reshape(&dims)
            }
        }
    }

    /// The sum over devices along axes: scattered along all axes but the last in order, summed
    /// along that, and gathered back.
    pub(crate) fn sum(self, mesh: &Mesh, axes: &[usize], tensor: &Tensor) -> Result<Tensor> {
        if axes.is_empty() {
            return Ok(tensor.clone());
        }
        if !self.is_staged() || axes.len() < 2 {
            return mesh.group(axes).sum(tensor);
        }
        let elements = tensor.ty().elements();
        if elements < LARGE_SUM {
            return mesh.group(axes).in_stages().sum(tensor);
        }
        let order = self.sum_order(axes);
        let (first, last) = order.split_at(order.len() - 1);
        let parts = mesh.group_size(first);
        let padding = elements.next_multiple_of(parts) - elements;
        let flat = tensor.reshape(&[elements])?.pad(0.0, &[0], &[padding as i64], &[0])?;
        let scattered = Staging::Axes.reduce_scatter(mesh, first, &flat, 0, None)?;
        let summed = mesh.group(last).sum(&scattered)?;
        let gathered = Staging::Axes.all_gather(mesh, first, &summed, 0)?;
        gathered.narrow(0, 0, elements)?.reshape(tensor.dims())
    }

    /// The collectives that one over axes consists of. `elements` are those of the full tensor: the
    /// result of an all-gather, the operand of a reduce-scatter; `parts` are those that it consists
    /// of.
    pub fn stages(
        self,
        kind: CollectiveKind,
        mesh: &Mesh,
        axes: &[usize],
        elements: usize,
        parts: usize,
    ) -> Vec<Stage> {
        let all = |axes: &[usize]| Stage { kind, axes: axes.to_vec(), elements };
        if axes.is_empty() {
            return Vec::new();
        }
        if self.uses_ring(kind, elements) {
            return ring::stages(mesh, axes, elements, parts);
        }
        if !self.is_staged() || axes.len() < 2 {
            return vec![all(axes)];
        }
        if kind == CollectiveKind::AllReduce {
            return match elements < LARGE_SUM {
                true => axes.iter().map(|&axis| all(&[axis])).collect(),
                false => self.sum_stages(mesh, axes, elements),
            };
        }
        let orders = self.orders(axes.len());
        let streams = orders.len();
        let mut stages = Vec::new();
        for order in orders {
            let mut left = elements / streams;
            for i in order {
                stages.push(Stage { kind, axes: vec![axes[i]], elements: left });
                left /= mesh.axis_size(axes[i]);
            }
        }
        stages
    }

    fn sum_stages(self, mesh: &Mesh, axes: &[usize], elements: usize) -> Vec<Stage> {
        let order = self.sum_order(axes);
        let (first, last) = order.split_at(order.len() - 1);
        let parts = mesh.group_size(first);
        let padded = elements.next_multiple_of(parts);
        let stage = |kind| Staging::Axes.stages(kind, mesh, first, padded, 1);
        let sum = Stage {
            kind: CollectiveKind::AllReduce,
            axes: last.to_vec(),
            elements: padded / parts,
        };
        let scatters = stage(CollectiveKind::ReduceScatter);
        scatters.into_iter().chain([sum]).chain(stage(CollectiveKind::AllGather)).collect()
    }

    /// The order in which a large sum visits axes.
    fn sum_order(self, axes: &[usize]) -> Vec<usize> {
        match self {
            Staging::Hierarchical => axes.iter().rev().copied().collect(),
            _ => axes.to_vec(),
        }
    }

    /// Runs each stream of blocks in its own order. The blocks of the grid are `dim` and the
    /// dimensions after it, one per axis; streams are cut along the one that follows.
    fn streams(
        self,
        blocks: &Tensor,
        axes: &[usize],
        dim: usize,
        run: impl Fn(&[usize], Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let cut = dim + axes.len();
        let length = blocks.dims()[cut];
        let orders = self.orders(axes.len());
        let count = orders.len();
        let bound = |i: usize| i * length / count;
        let mut streams = Vec::new();
        for (i, order) in orders.iter().enumerate() {
            if bound(i) < bound(i + 1) {
                streams.push(run(order, blocks.narrow(cut, bound(i), bound(i + 1))?)?);
            }
        }
        match &streams[..] {
            [stream] => Ok(stream.clone()),
            streams => concatenate(&streams.iter().collect::<Vec<_>>(), cut),
        }
    }
}

/// Dimensions with others before one of them.
fn with_dims(dims: &[usize], dim: usize, others: &[usize]) -> Vec<usize> {
    [&dims[..dim], others, &dims[dim..]].concat()
}
