//! The input tensors of a run's programs: names, types and shardings.

use crate::arguments::{EvalArguments, InitInputs, StepArguments, StepInputs, TrainState};
use crate::error::Error;
use crate::ordered::Ordered;
use crate::program::METRICS;
use crate::spec::{BatchShape, StepSpec};
use fullshard_core::Process;
use fullshard_graph::{Argument, DType, Sharding, TensorType};
use fullshard_models::InputSpec;
use fullshard_optim::{Slot, SlotKind};
use fullshard_parallel::ShardedParam;
use std::ops::Range;

/// A tensor over all devices.
#[derive(Debug, Clone)]
pub struct TensorSpec {
    /// Its name.
    pub name: String,
    /// Its type over all devices.
    pub ty: TensorType,
    /// How it is sharded.
    pub sharding: Sharding,
}

/// A tensor of the state. All of it is `f32`.
#[derive(Debug, Clone)]
pub struct StateTensor {
    /// The tensor. Its name is the parameter's, such as `transformer.wte.weight`, with the slot's
    /// after it if it is one: `transformer.wte.weight.exp_avg`. Scanned layers have a `*`.
    pub tensor: TensorSpec,
    /// The position of its parameter in the placement.
    pub parameter: usize,
    /// Which of the optimizer's slots it is, unless it is the parameter itself.
    pub slot: Option<Slot>,
}

/// The name of an optimizer's slot of a parameter.
pub(crate) fn slot_name(parameter: String, slot: &str) -> String {
    parameter + "." + slot
}

impl TensorSpec {
    fn new(name: &str, dtype: DType, dims: &[usize], sharding: Sharding) -> TensorSpec {
        TensorSpec { name: name.to_owned(), ty: TensorType::new(dtype, dims), sharding }
    }

    /// An argument of a program, and how it is sharded.
    pub(crate) fn argument(&self) -> (Argument, Sharding) {
        (Argument::new(self.ty.clone()).sharded(&self.sharding), self.sharding.clone())
    }
}

impl StepSpec {
    /// The parameters, which are first in the state.
    pub fn parameter_state(&self) -> Result<Vec<StateTensor>, Error> {
        let state = |(parameter, (param, sharding)): (usize, (&ShardedParam, Sharding))| {
            let dims = param.padded_dims();
            let tensor = TensorSpec::new(&param.name, DType::F32, &dims, sharding);
            StateTensor { tensor, parameter, slot: None }
        };
        let shardings = self.placement.shardings()?;
        Ok(self.placement.parameters.iter().zip(shardings).enumerate().map(state).collect())
    }

    /// The training state.
    pub fn state(&self) -> Result<TrainState<StateTensor>, Error> {
        let parameters = self.parameter_state()?;
        let slots_of = |&i: &usize| {
            let slots = self.optimizer.slots(&self.shard(i));
            slots.into_iter().map(|slot| self.slot(&parameters[i], slot)).collect::<Vec<_>>()
        };
        let optimizer = self.placement.trained().iter().flat_map(slots_of).collect();
        Ok(TrainState { parameters, optimizer })
    }

    /// An optimizer's slot of a parameter.
    fn slot(&self, of: &StateTensor, slot: Slot) -> StateTensor {
        let name = slot_name(of.tensor.name.clone(), slot.name);
        let tensor = match &slot.kind {
            SlotKind::Like => TensorSpec { name, ..of.tensor.clone() },
            SlotKind::Replicated(dims) => self.replicated(&name, DType::F32, dims),
        };
        StateTensor { tensor, parameter: of.parameter, slot: Some(slot) }
    }

    /// The inputs of a training step besides the state.
    pub fn step_inputs(&self) -> Result<StepInputs<TensorSpec>, Error> {
        let BatchShape { sequences, accumulation, .. } = self.batch;
        Ok(StepInputs {
            batch: self.batch_tensors(&[accumulation, sequences])?,
            scalars: self.replicated("scalars", DType::F32, &[self.optimizer.scalar_count()]),
            seed: self.replicated("seed", DType::U32, &[2]),
            step: self.replicated("step", DType::I32, &[]),
            previous: self.replicated("previous metrics", DType::F32, &[METRICS]),
            loss_limit: self.has_loss_limit.then(|| self.replicated("loss limit", DType::F32, &[])),
        })
    }

    /// The inputs of a training step.
    pub fn step_arguments(&self) -> Result<StepArguments<TensorSpec>, Error> {
        let state = self.state()?.map(|state| state.tensor.clone());
        Ok(StepArguments { state, inputs: self.step_inputs()? })
    }

    /// The inputs of an evaluation step on `sequences` sequences.
    pub fn eval_arguments(&self, sequences: usize) -> Result<EvalArguments<TensorSpec>, Error> {
        let devices = self.placement.batch_shards();
        if !sequences.is_multiple_of(devices) {
            return Err(Error::Batch { batch: sequences, devices });
        }
        let parameters = self.parameter_state()?.into_iter().map(|state| state.tensor).collect();
        Ok(EvalArguments { parameters, batch: self.batch_tensors(&[sequences])? })
    }

    /// The sequences of a batch of `sequences` that the devices of a process hold.
    pub fn process_sequences(
        &self,
        sequences: usize,
        process: Process,
    ) -> Result<Range<usize>, Error> {
        let sharding = self.placement.batch_sharding(1, 0)?;
        let each = self.placement.devices() / process.count.max(1);
        Ok(sharding.span(0, sequences, process.positions(each)))
    }

    /// The inputs of an initialization program.
    pub fn init_inputs(&self) -> InitInputs<TensorSpec> {
        InitInputs {
            seed: self.replicated("seed", DType::U32, &[2]),
            name: self.replicated("name hash", DType::U32, &[2]),
            layer: self.replicated("layer", DType::I32, &[]),
        }
    }

    /// The inputs and labels of the model's task, with leading dimensions, the last of which
    /// is sharded over the devices.
    fn batch_tensors(&self, leading: &[usize]) -> Result<Vec<TensorSpec>, Error> {
        let tensor = |spec: InputSpec| {
            let ty = spec.batched(leading);
            let sharding = self.placement.batch_sharding(ty.rank(), leading.len() - 1)?;
            Ok(TensorSpec { name: spec.name.to_owned(), ty, sharding })
        };
        self.model.batch(self.batch.tokens).into_iter().map(tensor).collect()
    }

    /// A replicated tensor.
    fn replicated(&self, name: &str, dtype: DType, dims: &[usize]) -> TensorSpec {
        TensorSpec::new(name, dtype, dims, self.placement.mesh.replicated(dims.len()))
    }
}
