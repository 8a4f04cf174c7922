//! Dropout of activations, of which each device draws the part that it has: the same numbers on any
//! mesh. Over automatic axes tensors are full, and so are their masks.

use super::Sharded;
use fullshard_graph::{DType, Draw, Group, Key, Result, Tensor, iota};
use fullshard_models::layers::dim_names::HEADS;
use fullshard_models::{Activations, ContextAxis};

impl Sharded<'_> {
    /// Activations after dropout with a key.
    pub(super) fn dropped_out(
        &self,
        key: &Key,
        x: &Tensor,
        of: Activations,
        probability: f64,
    ) -> Result<Tensor> {
        if let (Activations::Residual, Some(context)) = (of, &self.context) {
            return self.residual_draw(key, x, context)?.dropout(x, probability);
        }
        let groups = self.activation_groups(x, of);
        let full = x.dims().iter().zip(&groups).map(|(size, group)| size * group.size());
        let draw = key.draw(&full.collect::<Vec<_>>());
        let sharded = groups.iter().enumerate().filter(|(_, group)| group.size() > 1);
        let draw = sharded.into_iter().try_fold(draw, |draw, (dim, group)| draw.shard(dim, group));
        draw?.dropout(x, probability)
    }

    /// The devices that each dim of activations is sharded over.
    fn activation_groups(&self, x: &Tensor, of: Activations) -> Vec<Group> {
        let mut groups = vec![self.placement.group(&[]); x.rank()];
        groups[0] = self.placement.sample_group();
        // Attention runs per shard.
        if let (Activations::Attention, Some(annotations)) = (of, &self.annotations) {
            groups[1] = annotations.group(&HEADS);
        }
        match (of, &self.tensor) {
            (Activations::Attention, Some(tensor)) => groups[1] = tensor.group().clone(),
            (Activations::Residual, Some(tensor)) if tensor.is_sequence_parallel() => {
                let dim = x.rank() - 2;
                groups[dim] = groups[dim].joined(tensor.group());
            }
            _ => {}
        }
        groups
    }

    /// Random numbers for the residual stream if sequences are sharded: those of this device's
    /// positions, `[tokens, width]` or `[batch, sequence, width]`.
    fn residual_draw(&self, key: &Key, x: &Tensor, context: &ContextAxis) -> Result<Draw> {
        let tensor = self.tensor.as_ref().filter(|tensor| tensor.is_sequence_parallel());
        let (dim, samples) = (x.rank() - 2, &context.samples);
        let shards = tensor.map_or(1, |tensor| tensor.group().size());
        let length = context.length();
        let sequence = length / context.group.size();
        let positions = context.positions(sequence)?;
        let own = |positions: &Tensor| match tensor {
            Some(tensor) => {
                let count = positions.dims()[0] / shards;
                let start = (tensor.group().index()? * count as f64)?;
                positions.dynamic_slice(&[&start], &[count])
            }
            None => Ok(positions.clone()),
        };
        let mut dims = x.dims().to_vec();
        if dim == 1 {
            dims[0] *= samples.size();
            dims[1] = length;
            let draw = key.draw(&dims).at(1, &own(&positions)?)?;
            return if samples.size() > 1 { draw.shard(0, samples) } else { Ok(draw) };
        }
        let batch = x.dims()[0] * shards / sequence;
        dims[0] = batch * samples.size() * length;
        let mut first = (iota(DType::I32, &[batch, 1], 0)? * length as f64)?;
        if samples.size() > 1 {
            first = (first + (samples.index()? * (batch * length) as f64)?)?;
        }
        let rows = (first + positions.expand(0)?)?.reshape(&[batch * sequence])?;
        key.draw(&dims).at(0, &own(&rows)?)
    }
}
