//! Sharding specs: which mesh axes shard which dims of a tensor.

use crate::TensorType;
use crate::mesh::{Mesh, MeshError};
use std::fmt;

/// How a tensor is sharded over a mesh: for each dimension the axes that shard it, the major
/// first. It is replicated over the other axes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sharding {
    pub(crate) mesh: Mesh,
    pub(crate) dims: Vec<Vec<usize>>,
}

impl Sharding {
    /// Its mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// The sharding of such tensors stacked along a new first dimension, which is not sharded.
    pub fn stacked(&self) -> Sharding {
        let dims = [Vec::new()].into_iter().chain(self.dims.iter().cloned()).collect();
        Sharding { mesh: self.mesh.clone(), dims }
    }

    /// The rank of the tensors it is for.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// For each dimension the positions of the axes that shard it, the major first.
    pub fn dims(&self) -> &[Vec<usize>] {
        &self.dims
    }

    /// The number of shards of each dimension.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = usize> {
        self.dims.iter().map(|axes| axes.iter().map(|&axis| self.mesh.axis_size(axis)).product())
    }

    /// The dimensions of one device's shard of a tensor.
    pub fn local_dims(&self, ty: &TensorType) -> Result<Vec<usize>, MeshError> {
        let all: Vec<usize> = (0..self.mesh.axes().len()).collect();
        Ok(self.local(ty, &all)?.dims)
    }

    /// The shard of a tensor when only `axes`, by position, shard it.
    pub fn local(&self, ty: &TensorType, axes: &[usize]) -> Result<TensorType, MeshError> {
        self.scale(ty, axes, |dim, shards| (dim % shards == 0).then(|| dim / shards))
    }

    /// The full tensor of such shards: the inverse of [`Sharding::local`].
    pub fn global(&self, ty: &TensorType, axes: &[usize]) -> Result<TensorType, MeshError> {
        self.scale(ty, axes, |dim, shards| Some(dim * shards))
    }

    fn scale(
        &self,
        ty: &TensorType,
        over: &[usize],
        scale: impl Fn(usize, usize) -> Option<usize>,
    ) -> Result<TensorType, MeshError> {
        let fail = || MeshError::Indivisible { ty: ty.clone(), sharding: self.to_string() };
        if self.dims.len() != ty.rank() {
            return Err(fail());
        }
        let dims = ty.dims.iter().zip(&self.dims).map(|(&dim, axes)| {
            let axes = axes.iter().filter(|axis| over.contains(axis));
            let shards = axes.map(|&axis| self.mesh.axis_size(axis)).product();
            scale(dim, shards).ok_or_else(fail)
        });
        Ok(TensorType::new(ty.dtype, &dims.collect::<Result<Vec<_>, _>>()?))
    }
}

impl fmt::Display for Sharding {
    /// As in StableHLO text: `[{"data", "fsdp"}, {}]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dim = |axes: &Vec<usize>| {
            let names = axes.iter().map(|&axis| format!("\"{}\"", self.mesh.axis_name(axis)));
            format!("{{{}}}", names.collect::<Vec<_>>().join(", "))
        };
        write!(f, "[{}]", self.dims.iter().map(dim).collect::<Vec<_>>().join(", "))
    }
}
