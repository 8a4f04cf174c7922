//! Launches of training steps: one, or several in a loop.

use crate::compiler::Compiled;
use crate::error::{Error, mismatch};
use crate::state::{Argument, numbers, upload_batches};
use fullshard_pjrt::{Array, Client, HostTensor};
use fullshard_step::{
    LoopResults, METRICS, Ordered, StepArguments, StepInputs, StepResults, TensorSpec, TrainState,
};
use std::borrow::Borrow;
use std::sync::Arc;

/// The compiled program of a launch.
pub(crate) struct StepLauncher {
    pub program: Compiled,
    /// Steps per launch.
    pub steps: usize,
    /// The arguments for the inputs.
    inputs: StepInputs<Argument>,
}

/// The inputs of a launch in host memory, for each of its steps.
pub(crate) struct LaunchInputs<'a, B> {
    /// The tensors of the batches, in the order of the task's inputs.
    pub batches: &'a [&'a [B]],
    /// The optimizer's scalars.
    pub scalars: Vec<HostTensor>,
    /// The step numbers.
    pub numbers: Vec<HostTensor>,
    /// The seed of dropout, which all steps share.
    pub seed: &'a HostTensor,
    /// The limit of losses, which all steps share, if the spec has one.
    pub loss_limit: Option<HostTensor>,
}

/// The metrics of a training step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Metrics {
    /// The mean loss before the update.
    pub loss: f32,
    /// The norm of the gradient before clipping.
    pub gradient_norm: f32,
    /// The number of labels that are not ignored.
    pub labels: f32,
}

/// The metrics of launched steps.
pub struct Pending {
    metrics: Arc<Array>,
}

/// The results of a launch, on the devices.
pub(crate) struct Launched {
    pub state: TrainState<Array>,
    /// The metrics of the last step.
    pub last: Arc<Array>,
    pub pending: Pending,
}

impl StepLauncher {
    /// The launcher of a compiled program with these arguments.
    pub fn new(
        program: Compiled,
        steps: usize,
        layout: &StepArguments<TensorSpec>,
    ) -> Result<StepLauncher, Error> {
        let inputs = Argument::of_program(&program.program, layout)?.inputs;
        Ok(StepLauncher { program, steps, inputs })
    }

    /// Uploads the metrics before the first step.
    pub fn no_metrics(&self, client: &Client) -> Result<Arc<Array>, Error> {
        let zeros = HostTensor::from_values(&[METRICS], &[0.0_f32; METRICS])?;
        Ok(Arc::new(self.inputs.previous.upload(client, &zeros)?))
    }

    /// Launches the steps from a state and the metrics of the step before.
    pub fn launch<B: Borrow<HostTensor>>(
        &self,
        client: &Client,
        state: &TrainState<Array>,
        previous: &Array,
        inputs: &LaunchInputs<'_, B>,
    ) -> Result<Launched, Error> {
        let results = self.execute(client, state, previous, inputs)?;
        // Results have the layout of the arguments.
        let last = StepResults { state: state.each_ref(), metrics: previous };
        if self.steps == 1 {
            let StepResults { state, metrics } = last.unflatten(results)?;
            let last = Arc::new(metrics);
            let pending = Pending { metrics: Arc::clone(&last) };
            return Ok(Launched { state, last, pending });
        }
        let LoopResults { last, metrics } =
            LoopResults { last, metrics: previous }.unflatten(results)?;
        let pending = Pending { metrics: Arc::new(metrics) };
        Ok(Launched { state: last.state, last: Arc::new(last.metrics), pending })
    }

    /// Runs the program.
    pub fn execute<B: Borrow<HostTensor>>(
        &self,
        client: &Client,
        state: &TrainState<Array>,
        previous: &Array,
        inputs: &LaunchInputs<'_, B>,
    ) -> Result<Vec<Array>, Error> {
        let batch = upload_batches(client, &self.inputs.batch, inputs.batches)?;
        let scalars = self.inputs.scalars.upload_stacked(client, &inputs.scalars)?;
        let seed = self.inputs.seed.upload(client, inputs.seed)?;
        let step = self.inputs.step.upload_stacked(client, &inputs.numbers)?;
        let limit = self.inputs.loss_limit.as_ref().zip(inputs.loss_limit.as_ref());
        let limit = limit.map(|(argument, limit)| argument.upload(client, limit)).transpose()?;
        let inputs = StepInputs {
            batch: batch.each_ref(),
            scalars: &scalars,
            seed: &seed,
            step: &step,
            previous,
            loss_limit: limit.as_ref(),
        };
        let arguments = StepArguments { state: state.each_ref(), inputs };
        Ok(self.program.program.execute_arrays(&arguments.flatten())?)
    }
}

impl Pending {
    /// Waits for the steps, and returns the metrics of the last one.
    pub fn wait(&self) -> Result<Metrics, Error> {
        self.wait_all()?.pop().ok_or_else(|| mismatch("the metrics of a launch", "none", "some"))
    }

    /// Waits for the steps, and returns the metrics of each.
    pub fn wait_all(&self) -> Result<Vec<Metrics>, Error> {
        let metrics = |of_step: &[f32]| match *of_step {
            [loss, gradient_norm, labels] => Ok(Metrics { loss, gradient_norm, labels }),
            _ => Err(mismatch("the metrics of a step", "another shape", "three numbers")),
        };
        numbers(&self.metrics)?.chunks(METRICS).map(metrics).collect()
    }
}
