//! Reduce-scatters around rings, as permutes and adds.
//!
//! Compilers run a permute while they compute something else, also those that wait for every
//! reduce-scatter, so that the gradients of a layer are reduced behind the backward pass of the
//! next. Along an axis of n devices a partial sum visits all of them, and each adds its own part:
//! n-1 permutes of one n-th of the tensor. Half of the payload goes around the other way, since
//! links carry in both directions.

use crate::staged::Stage;
use fullshard_core::CollectiveKind;
use fullshard_graph::{DType, Mesh, MeshExt, Result, Tensor, concatenate, full as filled};

/// Elements from which rings are used. Below, one collective has less latency.
pub(crate) const SMALLEST: usize = 1 << 16;

/// The elements of a row that a ring in each direction has at least: the lanes of a TPU.
const LANES: usize = 128;

/// Each device's shard, on a dim, of the sum over the devices along axes, one axis after another.
pub(crate) fn reduce_scatter(
    mesh: &Mesh,
    axes: &[usize],
    full: &Tensor,
    dim: usize,
) -> Result<Tensor> {
    axes.iter().try_fold(full.clone(), |scattered, &axis| along(mesh, axis, &scattered, dim))
}

/// The permutes of a reduce-scatter, for a tensor that splits in two.
pub(crate) fn stages(mesh: &Mesh, axes: &[usize], elements: usize) -> Vec<Stage> {
    let (mut stages, mut left) = (Vec::new(), elements);
    for &axis in axes {
        let devices = mesh.axis_size(axis);
        let ways = if devices > 2 { 2 } else { 1 };
        left /= devices;
        let kind = CollectiveKind::CollectivePermute;
        let permute = Stage { kind, axes: vec![axis], elements: left / ways };
        stages.extend(vec![permute; ways * (devices - 1)]);
    }
    stages
}

fn along(mesh: &Mesh, axis: usize, full: &Tensor, dim: usize) -> Result<Tensor> {
    let devices = mesh.axis_size(axis);
    let others = (0..full.rank()).filter(|&other| other != dim);
    let cut = others.max_by_key(|&other| full.dims()[other]);
    let cut = cut.filter(|&cut| full.dims()[cut].is_multiple_of(2 * LANES) && devices > 2);
    let Some(cut) = cut else { return Ring { mesh, axis, dim, half: None }.sum(full, 1) };
    let half = |number| Ring { mesh, axis, dim, half: Some((cut, number)) };
    concatenate(&[&half(0).sum(full, 1)?, &half(1).sum(full, -1)?], cut)
}

/// A ring of devices, and what goes around it.
struct Ring<'a> {
    mesh: &'a Mesh,
    axis: usize,
    /// The dim that is scattered.
    dim: usize,
    /// Another dim and the half of it that goes around; everything by default.
    half: Option<(usize, usize)>,
}

impl Ring<'_> {
    /// This device's part of the sum, which goes around in one direction.
    fn sum(&self, full: &Tensor, step: i64) -> Result<Tensor> {
        let group = self.mesh.group(&[self.axis]);
        let devices = group.size() as i64;
        let next = |device: i64| ((device + step).rem_euclid(devices)) as usize;
        let pairs: Vec<(usize, usize)> = (0..devices).map(|it| (it as usize, next(it))).collect();
        let place = group.index()?;
        // A sum that is to end here starts at the next device and goes all the way around.
        let mut sum = self.chunk(full, &place, -step)?;
        for passed in 1..devices {
            let own = self.chunk(full, &place, -step * (passed + 1))?;
            sum = (group.permute(&sum, &pairs)? + own)?;
        }
        Ok(sum)
    }

    /// The part of the device that is `offset` places from this one. It is sliced in all dims at
    /// once, since compilers write halves of the whole to memory first.
    fn chunk(&self, full: &Tensor, place: &Tensor, offset: i64) -> Result<Tensor> {
        let number = |value: usize| filled(DType::I32, &[], value as f64);
        let devices = self.mesh.axis_size(self.axis);
        let mut dims = full.dims().to_vec();
        dims[self.dim] /= devices;
        let device = (place + number(offset.rem_euclid(devices as i64) as usize)?)?;
        let device = device.remainder(&number(devices)?)?;
        let mut starts = vec![number(0)?; full.rank()];
        starts[self.dim] = (device * number(dims[self.dim])?)?;
        if let Some((cut, half)) = self.half {
            dims[cut] /= 2;
            starts[cut] = number(half * dims[cut])?;
        }
        full.dynamic_slice(&starts.iter().collect::<Vec<_>>(), &dims)
    }
}
