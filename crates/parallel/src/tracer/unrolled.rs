//! Unrolled layers, and the barriers between them that keep the compiler from all-gathering the
//! parameters of all layers at once.

use super::{Sharded, find};
use crate::layout::ShardedParam;
use fullshard_graph::{Result, Tensor, barrier, custom_vjp};
use fullshard_models::{Layer, LayerBody, Place};

impl Sharded<'_> {
    /// Unrolled layers, each behind the barriers that the configuration requests.
    pub(super) fn unrolled(
        &self,
        place: &Place,
        count: usize,
        carries: Vec<Tensor>,
        body: LayerBody<'_>,
    ) -> Result<Vec<Tensor>> {
        (0..count).try_fold(carries, |carries, index| {
            let place = place.layer(Layer::Known(index));
            let carries = self.with_barriers(&place, carries)?;
            match self.placement.saves_last_layer() && index + 1 == count {
                true => body(&place, carries),
                false => self.layer(&place, carries, body),
            }
        })
    }

    /// Ties the shards of a layer's parameters to its inputs, so that the compiler all-gathers them
    /// no earlier; in the backward pass, their gradients to those of its inputs. Frozen shards have
    /// no gradients to tie.
    fn with_barriers(&self, place: &Place, carries: Vec<Tensor>) -> Result<Vec<Tensor>> {
        let settings = &self.placement.options.config.settings;
        let forward = settings.optimization_barrier_in_forward.unwrap_or(true);
        let backward = settings.optimization_barrier_in_backward.unwrap_or(true);
        if self.placement.devices() == 1 || !(forward || backward) {
            return Ok(carries);
        }
        let path = place.module_path();
        let units = self.placement.units_under(&path).flat_map(|unit| &unit.parameters);
        let params = units.map(|&i| &self.placement.parameters[i]);
        let params = params.filter(|param| self.shards.borrow().contains_key(&param.name));
        let (frozen, trained): (Vec<&ShardedParam>, Vec<&ShardedParam>) =
            params.partition(|param| param.frozen);
        let shards = |list: &[&ShardedParam]| {
            let shards = list.iter().map(|param| find(&self.shards.borrow(), &param.name));
            shards.collect::<Result<Vec<_>>>()
        };
        let pass = |on: bool, values: Vec<Tensor>| match on {
            true => barrier(&values.iter().collect::<Vec<_>>()),
            false => Ok(values),
        };
        if !frozen.is_empty() {
            let mut tied = shards(&frozen)?;
            for carry in &carries {
                tied.push(carry.stop_gradient()?);
            }
            self.set_shards(&frozen, pass(forward, tied)?);
        }
        let mut tied = carries.clone();
        tied.extend(shards(&trained)?);
        let mut tied = custom_vjp(
            &tied.iter().collect::<Vec<_>>(),
            |values| pass(forward, values),
            |values| Ok((pass(forward, values)?, Vec::new())),
            |_, gradients| pass(backward, gradients),
        )?;
        self.set_shards(&trained, tied.split_off(carries.len()));
        Ok(tied)
    }

    /// Replaces shards.
    fn set_shards(&self, parameters: &[&ShardedParam], shards: Vec<Tensor>) {
        let names = parameters.iter().map(|param| param.name.clone());
        self.shards.borrow_mut().extend(names.zip(shards));
    }
}
