//! The exact sizes of a run's state before anything is compiled: parameters, units, and bytes per
//! device of parameters, gradients and optimizer state.
//!
//! Memory beyond the state depends on the compiler; `fullshard-plan` has a model of it.

use crate::error::Error;
use crate::layout::StateTensor;
use crate::ordered::Ordered;
use crate::spec::StepSpec;
use fullshard_graph::DType;
use fullshard_parallel::{PlacedUnit, ShardedParam};

/// The bytes of the state on each device, padding included. All of it is in `f32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateBytes {
    /// The shards of parameters.
    pub parameters: u64,
    /// The optimizer's state.
    pub optimizer: u64,
    /// The shards of the gradients of trained parameters. They are not state: a step computes them,
    /// and they need not all be live at once.
    pub gradients: u64,
}

/// A unit of the plan.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct UnitRow {
    /// The path of its module, with a `*` for the layer if layers are scanned; empty for the root.
    pub path: String,
    /// The class of its module.
    pub class: &'static str,
    /// Number of units of this kind.
    pub count: usize,
    /// The elements of one unit, unsharded.
    pub elements: u64,
    /// The bytes of one unit's shards per device, padding included.
    pub shard_bytes: u64,
    /// The bytes of one unit when it is unsharded, in the compute type; with tensor parallelism
    /// those of its slices.
    pub unsharded_bytes: u64,
    /// Whether it is resharded after the forward pass and all-gathered again.
    pub reshard: bool,
}

impl StepSpec {
    /// The elements of all parameters; tied ones count once.
    pub fn parameter_count(&self) -> usize {
        self.placement.parameters.iter().map(ShardedParam::elements).sum()
    }

    /// The elements of all parameters except embeddings, which are looked up: what Hugging Face
    /// counts FLOPs by.
    pub fn non_embedding_count(&self) -> usize {
        let computed = |param: &&ShardedParam| param.class != "Embedding";
        self.placement.parameters.iter().filter(computed).map(ShardedParam::elements).sum()
    }

    /// The elements of the parameters that are trained.
    pub fn trained_count(&self) -> usize {
        let trained = self.placement.parameters.iter().filter(|param| !param.frozen);
        trained.map(ShardedParam::elements).sum()
    }

    /// The units, parents first; the first is the root.
    pub fn unit_rows(&self) -> Vec<UnitRow> {
        let row = |unit: &PlacedUnit| {
            let owned = || unit.parameters.iter().map(|&i| &self.placement.parameters[i]);
            let elements = owned().map(ShardedParam::elements).sum::<usize>() / unit.count;
            let unsharded = owned().map(ShardedParam::slice_elements).sum::<usize>() / unit.count;
            let shard = owned().map(ShardedParam::shard_elements).sum::<usize>() / unit.count;
            UnitRow {
                path: unit.path.clone(),
                class: unit.class,
                count: unit.count,
                elements: elements as u64,
                shard_bytes: (shard * DType::F32.size()) as u64,
                unsharded_bytes: (unsharded * self.placement.comm.compute.size()) as u64,
                reshard: unit.reshard,
            }
        };
        self.placement.units.iter().map(row).collect()
    }

    /// The bytes per device of the state and of the gradients that update it.
    pub fn state_bytes(&self) -> Result<StateBytes, Error> {
        let bytes = self.state()?.try_map(|StateTensor { tensor, .. }| {
            let dims = tensor.sharding.local_dims(&tensor.ty)?;
            Ok::<u64, Error>((dims.iter().product::<usize>() * tensor.ty.dtype.size()) as u64)
        })?;
        Ok(StateBytes {
            parameters: bytes.parameters.iter().sum(),
            optimizer: bytes.optimizer.iter().sum(),
            gradients: self.placement.trained().iter().map(|&i| bytes.parameters[i]).sum(),
        })
    }

    /// The bytes of the state that a host with this number of devices reads: the shards of all of
    /// them, and of a tensor at most all.
    pub fn host_state_bytes(&self, devices: usize) -> Result<u64, Error> {
        let bytes = self.state()?.try_map(|StateTensor { tensor, .. }| {
            let elements = |dims: &[usize]| dims.iter().product::<usize>();
            let shard = elements(&tensor.sharding.local_dims(&tensor.ty)?);
            let held = shard.saturating_mul(devices).min(elements(&tensor.ty.dims));
            Ok::<u64, Error>((held * tensor.ty.dtype.size()) as u64)
        })?;
        Ok(bytes.flatten().iter().sum())
    }
}
