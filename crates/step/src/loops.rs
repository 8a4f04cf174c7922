//! Several training steps in one program: a loop around the step.
//!
//! A launch costs the host and the runtime time that a small model does not fill. A loop pays it
//! once: the state is carried from step to step on the devices, the inputs that differ between
//! steps come stacked, and the metrics of all steps come back stacked.

use crate::arguments::{StepArguments, StepInputs, StepResults, TrainState};
use crate::error::Error;
use crate::layout::TensorSpec;
use crate::ordered::Ordered;
use crate::program::trace_error;
use crate::spec::StepSpec;
use fullshard_graph::{Argument, Program, Result, Sharding, Tensor, scan};

/// The outputs of a loop of training steps.
#[derive(Debug, Clone, PartialEq)]
pub struct LoopResults<T> {
    /// The results of the last step.
    pub last: StepResults<T>,
    /// The metrics of all steps, stacked.
    pub metrics: T,
}

/// The inputs that differ between the steps of a loop.
struct Stacked<T> {
    batch: Vec<T>,
    scalars: T,
    step: T,
}

impl StepSpec {
    /// The spec with this number of steps per launch, 1 by default.
    pub fn with_iterations_per_loop(mut self, iterations: usize) -> Result<StepSpec, Error> {
        if iterations == 0 {
            let what = "--iterations_per_loop";
            return Err(Error::TooFew { what, found: iterations, least: 1 });
        }
        self.iterations_per_loop = iterations;
        Ok(self)
    }

    /// The program of a launch: that of a training step, or a loop of several, from
    /// [`StepArguments`] to [`LoopResults`].
    pub fn launch_program(&self) -> Result<Program, Error> {
        match self.iterations_per_loop {
            1 => self.step_program(),
            _ => self.loop_program(),
        }
    }

    /// The inputs of a launch. In those of a loop, batch, scalars and step number have the steps
    /// as their first dimension.
    pub fn launch_arguments(&self) -> Result<StepArguments<TensorSpec>, Error> {
        let mut arguments = self.step_arguments()?;
        if self.iterations_per_loop > 1 {
            let StepInputs { batch, scalars, step, .. } = &mut arguments.inputs;
            for tensor in batch.iter_mut().chain([scalars, step]) {
                tensor.ty.dims.insert(0, self.iterations_per_loop);
                tensor.sharding = tensor.sharding.stacked();
            }
        }
        Ok(arguments)
    }

    fn loop_program(&self) -> Result<Program, Error> {
        let layout = self.launch_arguments()?;
        let last = StepResults {
            state: layout.state.map(|tensor| tensor.sharding.clone()),
            metrics: layout.inputs.previous.sharding.clone(),
        };
        let results = LoopResults { last, metrics: self.placement.mesh.replicated(2) };
        let arguments = layout.donated_to(&results.positions().last.state)?;
        let axes = self.placement.manual_axes();
        let program =
            self.manual_program("train_loop", &axes, &arguments, &results, |it| self.steps(it))?;
        Ok(program.in_dialect(self.placement.options.dialect))
    }

    /// A loop of training steps on one device's shards.
    fn steps(&self, arguments: StepArguments<Tensor>) -> Result<LoopResults<Tensor>> {
        let StepArguments { state, inputs } = arguments;
        let StepInputs { batch, scalars, seed, step, previous, loss_limit } = inputs;
        let carried = StepResults { state, metrics: previous };
        let stacked = Stacked { batch, scalars, step };
        let mut results = scan(&carried.each_ref().flatten(), &stacked.each_ref().flatten()).run(
            |carries, slices| {
                let StepResults { state, metrics } = unflatten(&carried, carries)?;
                let Stacked { batch, scalars, step } = unflatten(&stacked, slices)?;
                let (seed, loss_limit) = (seed.clone(), loss_limit.clone());
                let inputs =
                    StepInputs { batch, scalars, seed, step, previous: metrics, loss_limit };
                let next = self.step(StepArguments { state, inputs })?;
                Ok((next.flatten(), vec![next.metrics]))
            },
        )?;
        let metrics = results.stacked.pop();
        let metrics =
            metrics.ok_or_else(|| trace_error("train_loop", "a scan lost its results"))?;
        Ok(LoopResults { last: unflatten(&carried, results.carries)?, metrics })
    }
}

impl StepArguments<TensorSpec> {
    /// The arguments of a program that gives the memory of the state to these results.
    pub(crate) fn donated_to(
        &self,
        next: &TrainState<usize>,
    ) -> Result<StepArguments<(Argument, Sharding)>, Error> {
        let state = self.state.zip(next)?.map(|(tensor, next)| {
            let (argument, sharding) = tensor.argument();
            (argument.donated_to(**next), sharding)
        });
        Ok(StepArguments { state, inputs: self.inputs.map(TensorSpec::argument) })
    }
}

fn unflatten<O: Ordered<Tensor>>(layout: &O, values: Vec<Tensor>) -> Result<O::Of<Tensor>> {
    layout.unflatten(values).map_err(|error| trace_error("train_loop", error))
}

impl<T> Ordered<T> for LoopResults<T> {
    type Of<U> = LoopResults<U>;

    fn try_map<'a, U, E>(
        &'a self,
        mut change: impl FnMut(&'a T) -> std::result::Result<U, E>,
    ) -> std::result::Result<LoopResults<U>, E> {
        Ok(LoopResults { last: self.last.try_map(&mut change)?, metrics: change(&self.metrics)? })
    }
}

impl<T> Ordered<T> for Stacked<T> {
    type Of<U> = Stacked<U>;

    fn try_map<'a, U, E>(
        &'a self,
        mut change: impl FnMut(&'a T) -> std::result::Result<U, E>,
    ) -> std::result::Result<Stacked<U>, E> {
        Ok(Stacked {
            batch: self.batch.try_map(&mut change)?,
            scalars: change(&self.scalars)?,
            step: change(&self.step)?,
        })
    }
}
