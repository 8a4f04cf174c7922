//! All-gathering the parameters of a unit in the forward pass, with the gradient of FSDP:
//! reduce-scattering their gradients in the backward pass.

use crate::layout::ShardedParam;
use crate::ring::Parts;
use crate::staged::Staging;
use fullshard_core::Layout;
use fullshard_graph::{DType, Mesh, MeshExt, Result, Tensor, concatenate, custom_vjp, full};

/// How a unit is all-gathered and its gradients are reduce-scattered.
#[derive(Debug, Clone, PartialEq)]
pub struct CommPolicy {
    /// The devices.
    pub mesh: Mesh,
    /// The axes that tokens are sharded over, and gradients are averaged over.
    pub batch_axes: Vec<usize>,
    /// The axes with sequence parallelism, along which devices have the gradients of their own
    /// tokens for parameters that are not sliced.
    pub partial_axes: Vec<usize>,
    /// How reductions over several axes run.
    pub staging: Staging,
    /// How all-gathers over several axes run.
    pub gather_staging: Staging,
    /// The type that parameters are all-gathered and computed in.
    pub compute: DType,
    /// The type that gradients are summed in.
    pub reduce: DType,
    /// Whether a unit is all-gathered in one collective rather than one per parameter.
    pub packed: bool,
    /// Gradients of a unit are bucketed until a bucket exceeds this many bytes.
    pub bucket: usize,
    /// What gradients are divided by before and after the reduction.
    pub divide: (f64, f64),
}

impl CommPolicy {
    /// Which parameters of a unit are all-gathered together.
    pub(crate) fn gathers(&self, parameters: &[&ShardedParam]) -> Vec<Vec<usize>> {
        match self.packed {
            true => by_axes(parameters),
            false => sharded(parameters).into_iter().map(|i| vec![i]).collect(),
        }
    }

    /// The dim of parts that are all-gathered apart, and their number. Beside rings, which reduce
    /// gradients by part, the first matmul waits for one part alone.
    pub(crate) fn gathered_parts(&self, param: &ShardedParam) -> Option<(usize, usize)> {
        param.reduced_parts().filter(|_| self.staging == Staging::Ring && !self.packed)
    }

    /// How the gradient of a parameter is reduced alone. Vectors, many layers of which are one tensor
    /// if they are gathered at once, have no matmul that could hide permutes.
    pub(crate) fn reduction(&self, param: &ShardedParam) -> Staging {
        match self.staging {
            Staging::Ring if param.dims.len() == 1 => Staging::Flat,
            staging => staging,
        }
    }

    /// Which gradients of a unit are reduce-scattered together; `layers` is the number of layers
    /// of each.
    pub(crate) fn scatters(
        &self,
        parameters: &[&ShardedParam],
        layers: &[usize],
    ) -> Vec<Vec<usize>> {
        let mut buckets = Vec::new();
        for together in by_axes(parameters) {
            let (mut queued, mut bytes) = (Vec::new(), 0);
            for i in together {
                queued.push(i);
                bytes += layers[i] * parameters[i].padded_elements() * self.reduce.size();
                if bytes > self.bucket {
                    buckets.push(std::mem::take(&mut queued));
                    bytes = 0;
                }
            }
            buckets.extend((!queued.is_empty()).then_some(queued));
        }
        buckets
    }

    /// The axes over which the gradient of a parameter is summed besides those that shard it.
    pub(crate) fn replica_axes(&self, param: &ShardedParam) -> Vec<usize> {
        let partial = self.partial_axes.iter().filter(|_| param.slice.is_none());
        let axes = self.batch_axes.iter().chain(partial).copied();
        axes.filter(|axis| !param.axes.contains(axis)).collect()
    }

    /// The full parameters of a unit, from this device's shards.
    ///
    /// Gradients of replicated parameters are all-reduced.
    pub(crate) fn gather(
        &self,
        parameters: &[&ShardedParam],
        shards: &[&Tensor],
    ) -> Result<Vec<Tensor>> {
        let unshard = |shards: Vec<Tensor>| self.unshard(parameters, &shards);
        custom_vjp(
            shards,
            unshard,
            |shards| Ok((unshard(shards)?, Vec::new())),
            |_, gradients| self.reduce(parameters, &gradients.iter().collect::<Vec<_>>()),
        )
    }

    /// All-gathers shards. Over automatic axes it runs on each device's slices: the compiler would
    /// gather what enters a collective over manual axes.
    fn unshard(&self, parameters: &[&ShardedParam], shards: &[Tensor]) -> Result<Vec<Tensor>> {
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for (param, shard) in parameters.iter().zip(shards) {
            inputs.push((shard, param.automatic_sharding(&self.mesh, shard.rank())?));
            let lead = shard.rank() - param.grid().len();
            outputs.push(param.automatic_full_sharding(&self.mesh, lead)?);
        }
        self.mesh.per_shard(&inputs, &outputs, |shards| {
            let full = self.unshard_slices(parameters, &shards)?;
            parameters.iter().zip(&full).map(|(param, full)| param.split_parts(full)).collect()
        })
    }

    fn unshard_slices(
        &self,
        parameters: &[&ShardedParam],
        shards: &[Tensor],
    ) -> Result<Vec<Tensor>> {
        let merged =
            |(param, shard): (&&ShardedParam, &Tensor)| param.merged(&shard.convert(self.compute)?);
        let shards = parameters.iter().zip(shards).map(merged).collect::<Result<Vec<_>>>()?;
        let mut full_params = shards.clone();
        for bucket in self.gathers(parameters) {
            if let [i] = bucket[..] {
                full_params[i] = self.gather_one(parameters[i], &full_params[i])?;
                continue;
            }
            let rows = bucket.iter().map(|&i| parameters[i].to_row(&full_params[i]));
            let rows = rows.collect::<Result<Vec<_>>>()?;
            let packed = concatenate(&rows.iter().collect::<Vec<_>>(), 1)?;
            let axes = &parameters[bucket[0]].axes;
            let gathered = self.gather_staging.all_gather(&self.mesh, axes, &packed, 0)?;
            let mut start = 0;
            for (&i, row) in bucket.iter().zip(&rows) {
                let rows = gathered.narrow(1, start, start + row.dims()[1])?;
                start += row.dims()[1];
                let lead = shards[i].rank() - parameters[i].shard_dims().len();
                let lead = &shards[i].dims()[..lead];
                full_params[i] = parameters[i].unsharded_from_rows(&rows, lead)?;
            }
        }
        Ok(full_params)
    }

    /// This device's shards of the mean over devices of full gradients, in `f32`.
    pub(crate) fn reduce(
        &self,
        parameters: &[&ShardedParam],
        gradients: &[&Tensor],
    ) -> Result<Vec<Tensor>> {
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for (param, &gradient) in parameters.iter().zip(gradients) {
            let lead = gradient.rank() - param.full_rank();
            inputs.push((gradient, param.automatic_full_sharding(&self.mesh, lead)?));
            let rank = lead + param.grid().len();
            outputs.push(param.automatic_sharding(&self.mesh, rank)?);
        }
        self.mesh.per_shard(&inputs, &outputs, |gradients| {
            let joined = parameters.iter().zip(&gradients);
            let joined = joined.map(|(param, gradient)| param.joined_parts(gradient));
            self.reduce_slices(parameters, &joined.collect::<Result<Vec<_>>>()?)
        })
    }

    fn reduce_slices(
        &self,
        parameters: &[&ShardedParam],
        gradients: &[Tensor],
    ) -> Result<Vec<Tensor>> {
        let (before, after) = self.divide;
        let mut shards = Vec::new();
        for (param, gradient) in parameters.iter().zip(gradients) {
            let gradient = divide(&gradient.convert(self.reduce)?, before)?;
            shards.push(match param.layout {
                Layout::Replicated => self.sum(&self.replica_axes(param), &gradient)?,
                Layout::Dim(_) | Layout::Flat => gradient,
            });
        }
        let layers = parameters.iter().zip(gradients).map(|(param, gradient)| {
            gradient.dims()[..gradient.rank() - param.dims.len()].iter().product()
        });
        for bucket in self.scatters(parameters, &layers.collect::<Vec<_>>()) {
            self.scatter(parameters, &bucket, &mut shards)?;
        }
        let finish = |(param, shard): (&&ShardedParam, &Tensor)| {
            param.unmerged(&divide(&shard.convert(DType::F32)?, after)?)
        };
        parameters.iter().zip(&shards).map(finish).collect()
    }

    /// Reduce-scatters a bucket of full gradients.
    fn scatter(
        &self,
        parameters: &[&ShardedParam],
        bucket: &[usize],
        gradients: &mut [Tensor],
    ) -> Result<()> {
        if let [i] = *bucket {
            gradients[i] = self.scatter_one(parameters[i], &gradients[i])?;
            return Ok(());
        }
        let rows = bucket.iter().map(|&i| parameters[i].to_rows(&gradients[i]));
        let rows = rows.collect::<Result<Vec<_>>>()?;
        let packed = concatenate(&rows.iter().collect::<Vec<_>>(), 1)?;
        let param = parameters[bucket[0]];
        let scattered = self.staging.reduce_scatter(&self.mesh, &param.axes, &packed, 0, None)?;
        let scattered = self.sum(&self.replica_axes(param), &scattered)?;
        let mut start = 0;
        for (&i, rows) in bucket.iter().zip(&rows) {
            let row = scattered.narrow(1, start, start + rows.dims()[1])?;
            start += rows.dims()[1];
            let lead = gradients[i].rank() - parameters[i].dims.len();
            gradients[i] = parameters[i].shard_from_row(&row, &gradients[i].dims()[..lead])?;
        }
        Ok(())
    }

    fn gather_one(&self, param: &ShardedParam, shard: &Tensor) -> Result<Tensor> {
        let lead = param.lead(shard);
        let dim = lead + param.layout.sharded_dim().unwrap_or(0);
        let gather =
            |shard: &Tensor| self.gather_staging.all_gather(&self.mesh, &param.axes, shard, dim);
        let tiled = tiled(param, shard)?;
        let gathered = match self.gathered_parts(param) {
            Some((of, count)) => {
                let parts = tiled.split(lead + of, count)?;
                let parts = parts.iter().map(gather).collect::<Result<Vec<_>>>()?;
                concatenate(&parts.iter().collect::<Vec<_>>(), lead + of)?
            }
            None => gather(&tiled)?,
        };
        let mut dims = shard.dims().to_vec();
        dims[dim] *= param.num_shards;
        param.trim(&gathered.reshape(&dims)?)
    }

    fn scatter_one(&self, param: &ShardedParam, gradient: &Tensor) -> Result<Tensor> {
        let lead = gradient.rank() - param.dims.len();
        let dim = lead + param.layout.sharded_dim().unwrap_or(0);
        let padded = param.pad(gradient)?;
        let tiled = tiled(param, &padded)?;
        let parts = param.reduced_parts().map(|(dim, count)| Parts { dim: lead + dim, count });
        let staging = self.reduction(param);
        let scattered = staging.reduce_scatter(&self.mesh, &param.axes, &tiled, dim, parts)?;
        let scattered = self.sum(&self.replica_axes(param), &scattered)?;
        let mut dims = padded.dims().to_vec();
        dims[dim] /= param.num_shards;
        scattered.reshape(&dims)
    }

    fn sum(&self, axes: &[usize], tensor: &Tensor) -> Result<Tensor> {
        self.staging.sum(&self.mesh, axes, tensor)
    }
}

/// Those of a unit's parameters that are sharded.
fn sharded(parameters: &[&ShardedParam]) -> Vec<usize> {
    (0..parameters.len()).filter(|&i| parameters[i].layout != Layout::Replicated).collect()
}

/// Those of a unit's parameters that are sharded, by the axes they are sharded and summed over.
fn by_axes(parameters: &[&ShardedParam]) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = Vec::new();
    for i in sharded(parameters) {
        let axes = |i: usize| (&parameters[i].axes, parameters[i].slice.is_some());
        let same = |known: &&mut Vec<usize>| axes(known[0]) == axes(i);
        match all.iter_mut().find(same) {
            Some(known) => known.push(i),
            None => all.push(vec![i]),
        }
    }
    all
}

/// A flat shard as a matrix, which devices with tiled memory move without padding every element.
fn tiled(param: &ShardedParam, shard: &Tensor) -> Result<Tensor> {
    if param.layout != Layout::Flat {
        return Ok(shard.clone());
    }
    let multiple = crate::layout::FLAT_MULTIPLE;
    let lead = shard.rank() - 1;
    let rows = shard.dims()[lead] / multiple;
    shard.reshape(&[&shard.dims()[..lead], &[rows, multiple]].concat())
}

fn divide(gradient: &Tensor, by: f64) -> Result<Tensor> {
    if by == 1.0 {
        return Ok(gradient.clone());
    }
    gradient / full(gradient.dtype(), &[], by)?
}
