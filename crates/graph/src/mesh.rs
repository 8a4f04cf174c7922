//! Tracing over meshes: manual regions, in which each device runs on its own shards, and their
//! collectives.

use crate::error::{Error, Result};
use crate::manual;
use crate::op::{Axes, Collective, Op, Reduction};
use crate::ops::zeros;
use crate::tensor::Tensor;
use crate::trace::{self, emit_one};
use fullshard_core::{DType, Mesh, MeshError, Sharding, TensorType};

/// Tracing over a mesh.
pub trait MeshExt {
    /// The group of devices along axes, for collectives in a manual region.
    fn over(&self, names: &[&str]) -> Result<Group>;

    /// The group of devices along axes by their positions.
    fn group(&self, axes: &[usize]) -> Group;

    /// Runs `trace` on every device with its own shard of each input; `outputs` are the shardings
    /// of the results. Only `axes` are manual: over the others tensors stay global and the compiler
    /// shards them. Inside such a region those can be made manual in turn, by a second region whose
    /// shardings do not name axes that are manual already.
    ///
    /// A result that an axis does not shard must be the same on all devices along it. Gradients
    /// pass through; gradients inside are those of the sum of the results of all devices. Values
    /// used in `trace` that are no inputs are replicated. Rematerialization policies do not see
    /// names inside; name the results.
    fn manual(
        &self,
        axes: &[&str],
        inputs: &[(&Tensor, Sharding)],
        outputs: &[Sharding],
        trace: impl FnOnce(Vec<Tensor>) -> Result<Vec<Tensor>>,
    ) -> Result<Vec<Tensor>>;

    /// Runs a function that the compiler cannot shard, such as a custom call, on the shards of
    /// inputs that lie on each device, so that nothing is gathered: a manual region over all axes
    /// that the shardings name and that are automatic here. Without any it is called as it is, on
    /// inputs that are shards already.
    fn per_shard(
        &self,
        inputs: &[(&Tensor, Sharding)],
        outputs: &[Sharding],
        function: impl FnOnce(Vec<Tensor>) -> Result<Vec<Tensor>>,
    ) -> Result<Vec<Tensor>>;
}

impl MeshExt for Mesh {
    fn over(&self, names: &[&str]) -> Result<Group> {
        let mesh_error = |error: MeshError| Error::new("collective", error.to_string());
        Ok(self.group(&self.positions(names).map_err(mesh_error)?))
    }

    fn group(&self, axes: &[usize]) -> Group {
        Group { axes: Axes { mesh: self.clone(), axes: axes.to_vec() }, in_stages: false }
    }

    fn manual(
        &self,
        axes: &[&str],
        inputs: &[(&Tensor, Sharding)],
        outputs: &[Sharding],
        trace: impl FnOnce(Vec<Tensor>) -> Result<Vec<Tensor>>,
    ) -> Result<Vec<Tensor>> {
        let axes = self.positions(axes).map_err(|error| Error::new("manual", error.to_string()))?;
        manual::region(self, &axes, inputs, outputs, trace)
    }

    fn per_shard(
        &self,
        inputs: &[(&Tensor, Sharding)],
        outputs: &[Sharding],
        function: impl FnOnce(Vec<Tensor>) -> Result<Vec<Tensor>>,
    ) -> Result<Vec<Tensor>> {
        manual::per_shard(self, inputs, outputs, function)
    }
}

/// Axes of a mesh to run collectives over.
///
/// Gradients are those of the sum of the results of all devices: the gradient of an all-gather is a
/// reduce-scatter, and that of a sum is a sum.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    axes: Axes,
    /// Whether reductions run along one axis after another.
    in_stages: bool,
}

impl Group {
    /// The number of devices in a group.
    pub fn size(&self) -> usize {
        self.axes.size()
    }

    /// Whether another group has the same devices, in any order: sums over both are the same.
    pub fn has_devices_of(&self, other: &Group) -> bool {
        let axes = |group: &Group| {
            let mut axes = group.axes.axes.clone();
            axes.sort_unstable();
            axes
        };
        self.axes.mesh == other.axes.mesh
            && self.in_stages == other.in_stages
            && axes(self) == axes(other)
    }

    /// The devices along the axes of this group and then along those of another.
    pub fn joined(&self, other: &Group) -> Group {
        let axes = [&self.axes.axes[..], &other.axes.axes[..]].concat();
        Group { axes: Axes { axes, ..self.axes.clone() }, ..self.clone() }
    }

    /// The shards of all devices, concatenated along a dimension.
    pub fn all_gather(&self, tensor: &Tensor, dim: usize) -> Result<Tensor> {
        tensor.check_dim("all_gather", dim)?;
        let mut dims = tensor.dims().to_vec();
        dims[dim] *= self.size();
        let op = self.op("all_gather", Collective::AllGather { dim })?;
        emit_one("all_gather", op, &[tensor], TensorType::new(tensor.dtype(), &dims))
    }

    /// Each device's shard, along a dimension, of the sum over devices.
    pub fn reduce_scatter(&self, tensor: &Tensor, dim: usize) -> Result<Tensor> {
        let mut dims = tensor.dims().to_vec();
        dims[self.check_divides("reduce_scatter", tensor, dim)?] /= self.size();
        let op = self.op("reduce_scatter", Collective::ReduceScatter { dim })?;
        emit_one("reduce_scatter", op, &[tensor], TensorType::new(tensor.dtype(), &dims))
    }

    /// The same devices, with reductions along one axis after another.
    pub fn in_stages(&self) -> Group {
        Group { in_stages: true, ..self.clone() }
    }

    /// The reduction over devices.
    pub fn all_reduce(&self, tensor: &Tensor, kind: Reduction) -> Result<Tensor> {
        let axes = &self.axes.axes;
        if axes.is_empty() {
            return Ok(tensor.clone());
        }
        if self.in_stages && axes.len() > 1 {
            let mesh = &self.axes.mesh;
            return axes.iter().try_fold(tensor.clone(), |reduced, &axis| {
                mesh.group(&[axis]).all_reduce(&reduced, kind)
            });
        }
        let op = self.op("all_reduce", Collective::AllReduce { kind })?;
        emit_one("all_reduce", op, &[tensor], tensor.ty().clone())
    }

    /// The sum over devices.
    pub fn sum(&self, tensor: &Tensor) -> Result<Tensor> {
        self.all_reduce(tensor, Reduction::Sum)
    }

    /// The mean over devices.
    pub fn mean(&self, tensor: &Tensor) -> Result<Tensor> {
        self.sum(tensor)? / self.size() as f64
    }

    /// Splits dimension `split` into one part per device and concatenates the parts received from
    /// all devices along `concat`.
    pub fn all_to_all(&self, tensor: &Tensor, split: usize, concat: usize) -> Result<Tensor> {
        tensor.check_dim("all_to_all", concat)?;
        let mut dims = tensor.dims().to_vec();
        dims[self.check_divides("all_to_all", tensor, split)?] /= self.size();
        dims[concat] *= self.size();
        let op = self.op("all_to_all", Collective::AllToAll { split, concat })?;
        emit_one("all_to_all", op, &[tensor], TensorType::new(tensor.dtype(), &dims))
    }

    /// Sends values from device to device, by `(from, to)` pairs of positions in the group. A
    /// device that receives nothing has zeros.
    pub fn permute(&self, tensor: &Tensor, pairs: &[(usize, usize)]) -> Result<Tensor> {
        let size = self.size();
        let twice = |pick: fn(&(usize, usize)) -> usize| {
            let mut ends: Vec<usize> = pairs.iter().map(pick).collect();
            ends.sort_unstable();
            ends.windows(2).any(|pair| pair[0] == pair[1])
        };
        let outside = pairs.iter().any(|&(from, to)| from >= size || to >= size);
        if outside || twice(|pair| pair.0) || twice(|pair| pair.1) {
            let reason = format!("{pairs:?} among {size} devices");
            return Err(Error::new("permute", reason));
        }
        if pairs.is_empty() {
            return zeros(tensor.dtype(), tensor.dims());
        }
        let op = self.op("permute", Collective::Permute { pairs: pairs.to_vec() })?;
        emit_one("permute", op, &[tensor], tensor.ty().clone())
    }

    /// The position of this device in the group.
    pub fn index(&self) -> Result<Tensor> {
        self.check_manual("axis_index")?;
        let op = Op::AxisIndex { axes: self.axes.clone() };
        emit_one("axis_index", op, &[], TensorType::scalar(DType::I32))
    }

    fn check_divides(&self, op: &str, tensor: &Tensor, dim: usize) -> Result<usize> {
        tensor.check_dim(op, dim)?;
        if tensor.dims()[dim].is_multiple_of(self.size()) {
            return Ok(dim);
        }
        let reason = format!("dimension {dim} of {} over {} devices", tensor.ty(), self.size());
        Err(Error::new(op, reason))
    }

    pub(crate) fn shares_axis(&self, other: &Group) -> bool {
        self.axes.axes.iter().any(|axis| other.axes.axes.contains(axis))
    }

    fn op(&self, name: &str, collective: Collective) -> Result<Op> {
        self.check_manual(name)?;
        Ok(Op::Collective(collective, self.axes.clone()))
    }

    /// Collectives run only over manual axes.
    fn check_manual(&self, op: &str) -> Result<()> {
        let names = self.axes.axes.iter().map(|&axis| self.axes.mesh.axis_name(axis));
        match names.into_iter().find(|name| !trace::is_manual(name)) {
            Some(name) => Err(Error::new(
                op,
                format!("axis `{name}` is not manual here; use MeshExt::manual"),
            )),
            None => Ok(()),
        }
    }

    pub(crate) fn from_axes(axes: &Axes) -> Group {
        Group { axes: axes.clone(), in_stages: false }
    }
}

impl Axes {
    /// The number of devices in a group.
    pub(crate) fn size(&self) -> usize {
        self.mesh.group_size(&self.axes)
    }

    /// The devices of each group, in the order of the axes.
    pub(crate) fn groups(&self) -> Vec<Vec<usize>> {
        self.mesh.groups(&self.axes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_axis_is_an_error() {
        let mesh = Mesh::new(&[("data", 2)]).unwrap();
        let error = mesh.over(&["model"]).unwrap_err().to_string();
        assert_eq!(error, "collective: no axis `model` in [\"data\"]");
    }
}
