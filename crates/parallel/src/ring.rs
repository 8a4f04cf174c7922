//! Reduce-scatters around rings, as permutes and adds.
//!
//! Compilers run a permute while they compute something else, also those that wait for every
//! reduce-scatter, so that the gradients of a layer are reduced behind the backward pass of the
//! next. Along an axis of n devices a partial sum visits all of them, and each adds its own part:
//! n-1 permutes of one n-th of the tensor. Half of the payload goes around the other way, since
//! links carry in both directions.
//!
//! A device's own part is sliced from the whole gradient as it is needed, which lets `graph` turn
//! the matmul of the gradient into one per slice: the partial sum is then added inside the next
//! matmul while the one after it is on its way.

use crate::layout::ShardedParam;
use crate::staged::Stage;
use fullshard_core::CollectiveKind;
use fullshard_graph::{DType, Mesh, MeshExt, Result, Tensor, barrier, concatenate, full as filled};
use std::collections::HashMap;

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
    parts: Option<Parts>,
) -> Result<Tensor> {
    axes.iter().try_fold(full.clone(), |scattered, &axis| along(mesh, axis, &scattered, dim, parts))
}

/// The permutes of a reduce-scatter, for a tensor of parts that each split in two.
pub(crate) fn stages(mesh: &Mesh, axes: &[usize], elements: usize, parts: usize) -> Vec<Stage> {
    let (mut stages, mut left) = (Vec::new(), elements);
    for &axis in axes {
        let devices = mesh.axis_size(axis);
        let ways = parts * directions(devices);
        left /= devices;
        let kind = CollectiveKind::CollectivePermute;
        let permute = Stage { kind, axes: vec![axis], elements: left / ways };
        stages.extend(vec![permute; ways * (devices - 1)]);
    }
    stages
}

/// Spreads rings over the dimensions of a torus. A reduction along several axes moves most along the
/// first, whose links alone carry it: so the parameters of a layer are sharded with different axes
/// first, each with the one that has moved least so far, largest parameters first.
pub(crate) fn spread(mesh: &Mesh, parameters: &mut [ShardedParam]) {
    let layer = |param: &ShardedParam| (param.stack.is_some(), param.layer);
    let mut order: Vec<usize> = (0..parameters.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(parameters[i].elements()));
    let mut moved: HashMap<_, Vec<f64>> = HashMap::new();
    for i in order {
        let param = &mut parameters[i];
        let elements = param.elements() as f64;
        let so_far = moved.entry(layer(param)).or_insert_with(|| vec![0.0; mesh.sizes().len()]);
        let after = |axes: &[usize]| {
            let (mut loads, mut left) = (so_far.clone(), elements);
            for &axis in axes {
                let devices = mesh.axis_size(axis);
                let share = (devices - 1) as f64 / (devices * directions(devices)) as f64;
                loads[axis] += left * share;
                left /= devices as f64;
            }
            loads
        };
        let most = |loads: &[f64]| loads.iter().copied().fold(0.0, f64::max);
        let orders = (0..param.axes.len()).map(|first| {
            let mut axes = param.axes.clone();
            axes[..=first].rotate_right(1);
            axes
        });
        let best = orders.min_by(|a, b| most(&after(a)).total_cmp(&most(&after(b))));
        let Some(axes) = best else { continue };
        *so_far = after(&axes);
        param.axes = axes;
    }
}

/// In how many directions a ring moves.
fn directions(devices: usize) -> usize {
    if devices > 2 { 2 } else { 1 }
}

fn along(
    mesh: &Mesh,
    axis: usize,
    full: &Tensor,
    dim: usize,
    parts: Option<Parts>,
) -> Result<Tensor> {
    let others = (0..full.rank()).filter(|&other| other != dim);
    let longest = others.max_by_key(|&other| full.dims()[other]);
    let parts = parts.filter(|parts| parts.dim != dim);
    let (cut, count) = match parts {
        Some(parts) => (Some(parts.dim), parts.count),
        None => (longest, 1),
    };
    let count = count * directions(mesh.axis_size(axis));
    let cut = cut.filter(|&cut| count > 1 && full.dims()[cut].is_multiple_of(count * LANES));
    let Some(cut) = cut else { return Ring { mesh, axis, dim, stream: None }.sum(full, 1) };
    let streams = (0..count).map(|number| {
        let ring = Ring { mesh, axis, dim, stream: Some(Stream { dim: cut, number, count }) };
        ring.sum(full, if number % 2 == 0 { 1 } else { -1 })
    });
    let streams = streams.collect::<Result<Vec<_>>>()?;
    concatenate(&streams.iter().collect::<Vec<_>>(), cut)
}

/// The equal parts that a gradient consists of along a dim, each from a matmul of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parts {
    pub dim: usize,
    pub count: usize,
}

/// One of several equal cuts of the payload along a dim.
struct Stream {
    dim: usize,
    number: usize,
    count: usize,
}

/// A ring of devices, and what goes around it.
struct Ring<'a> {
    mesh: &'a Mesh,
    axis: usize,
    /// The dim that is scattered.
    dim: usize,
    /// What goes around, if not everything.
    stream: Option<Stream>,
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
            let received = group.permute(&sum, &pairs)?;
            // Otherwise all parts are computed before the first sum is sent.
            let place = &barrier(&[&place, &received])?[0];
            let own = self.chunk(full, place, -step * (passed + 1))?;
            sum = (received + own)?;
        }
        Ok(sum)
    }

    /// The part of the device that is `offset` places from this one. It is sliced in all dims at
    /// once, since compilers would write streams of the whole to memory first.
    fn chunk(&self, full: &Tensor, place: &Tensor, offset: i64) -> Result<Tensor> {
        let number = |value: usize| filled(DType::I32, &[], value as f64);
        let devices = self.mesh.axis_size(self.axis);
        let mut dims = full.dims().to_vec();
        dims[self.dim] /= devices;
        let device = (place + number(offset.rem_euclid(devices as i64) as usize)?)?;
        let device = device.remainder(&number(devices)?)?;
        let mut starts = vec![number(0)?; full.rank()];
        starts[self.dim] = (device * number(dims[self.dim])?)?;
        if let Some(stream) = &self.stream {
            dims[stream.dim] /= stream.count;
            starts[stream.dim] = number(stream.number * dims[stream.dim])?;
        }
        full.dynamic_slice(&starts.iter().collect::<Vec<_>>(), &dims)
    }
}
