//! Training steps on devices.

use crate::checkpoint::{read_checkpoint, read_weights, saved_tensors};
use crate::compiler::{Compiled, Compiler};
use crate::error::{Error, mismatch};
use crate::evaluation::{Evaluated, Evaluation};
use crate::evaluator::{Evaluator, PendingLoss};
use crate::parameters::Parameters;
use crate::state::{
    Argument, ReadSaved, compile_with_state, numbers, seed_tensor, upload_all, upload_batch,
};
use crate::weights::model_tensors;
use fullshard_checkpoint::Weights;
use fullshard_checkpoint::sharded::Checkpoint;
use fullshard_parallel::ShardedParam;
use fullshard_pjrt::{Array, Client, HostTensor};
use fullshard_step::{
    METRICS, Ordered, StepArguments, StepInputs, StepResults, StepSpec, TrainState,
};
use std::borrow::Borrow;
use std::sync::Arc;

/// A compiled training step and its state, which can also be evaluated.
pub struct Runner<'a> {
    spec: &'a StepSpec,
    compiler: &'a Compiler<'a>,
    step: Compiled,
    /// The arguments for the step's inputs.
    inputs: StepInputs<Argument>,
    state: TrainState<Array>,
    /// The metrics of the previous step, on the devices.
    metrics: Arc<Array>,
    seed: HostTensor,
    steps: u64,
    evaluator: Evaluator<'a>,
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

/// The metrics of a launched step.
pub struct Pending {
    metrics: Arc<Array>,
}

impl<'a> Runner<'a> {
    /// Compiles the programs of a spec and initializes its state from a seed.
    pub fn new(
        compiler: &'a Compiler<'a>,
        spec: &'a StepSpec,
        seed: u64,
    ) -> Result<Runner<'a>, Error> {
        let (step, init) = (spec.step_program()?, spec.init_programs()?);
        let (step, state) = compile_with_state(compiler, &step, &init, seed)?;
        let inputs = Argument::of_program(&step.program, &spec.step_arguments()?)?.inputs;
        let state = spec.state()?.unflatten(state)?;
        Runner::start(compiler, spec, seed, (step, inputs), state)
    }

    /// Compiles the programs of a spec, with parameters from `parameter`, which returns the full
    /// values of one, with stacked layers concatenated. The seed is for dropout.
    pub fn with_parameters(
        compiler: &'a Compiler<'a>,
        spec: &'a StepSpec,
        seed: u64,
        parameter: impl Fn(&ShardedParam) -> Result<Vec<f32>, Error>,
    ) -> Result<Runner<'a>, Error> {
        let step = compiler.compile(&spec.step_program()?)?;
        let arguments = Argument::of_program(&step.program, &spec.step_arguments()?)?;
        let tensors = spec.state()?;
        let state = arguments.state.zip(&tensors)?.try_map(|(argument, tensor)| {
            argument.upload_initial(compiler.client, spec, tensor, &parameter)
        })?;
        Runner::start(compiler, spec, seed, (step, arguments.inputs), state)
    }

    /// Compiles the programs of a spec and reads its parameters from files, straight into shards.
    /// The seed is for dropout.
    pub fn with_weights(
        compiler: &'a Compiler<'a>,
        spec: &'a StepSpec,
        seed: u64,
        weights: &Weights,
    ) -> Result<Runner<'a>, Error> {
        weights.check(&model_tensors(spec))?;
        let step = compiler.compile(&spec.step_program()?)?;
        let arguments = Argument::of_program(&step.program, &spec.step_arguments()?)?;
        let state = upload_state(compiler.client, spec, &arguments.state, &read_weights(weights))?;
        Runner::start(compiler, spec, seed, (step, arguments.inputs), state)
    }

    /// Compiles the programs of a spec and resumes from the first of some checkpoints whose values
    /// are intact; `damaged` is called with each of those before it. Returns the index of the
    /// checkpoint too, or the error of the last one.
    pub fn resume(
        compiler: &'a Compiler<'a>,
        spec: &'a StepSpec,
        seed: u64,
        checkpoints: &[Checkpoint],
        damaged: &mut dyn FnMut(&Error),
    ) -> Result<(Runner<'a>, usize), Error> {
        let step = compiler.compile(&spec.step_program()?)?;
        let arguments = Argument::of_program(&step.program, &spec.step_arguments()?)?;
        let mut last = mismatch("a checkpoint to resume from", "none", "one");
        for (index, checkpoint) in checkpoints.iter().enumerate() {
            let read = read_checkpoint(checkpoint);
            match upload_state(compiler.client, spec, &arguments.state, &read) {
                Ok(state) => {
                    let compiled = (step, arguments.inputs);
                    let mut runner = Runner::start(compiler, spec, seed, compiled, state)?;
                    runner.steps = checkpoint.manifest().progress.step;
                    return Ok((runner, index));
                }
                Err(error @ Error::Files(_)) => {
                    damaged(&error);
                    last = error;
                }
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// Replaces the state by that of a checkpoint. The memory of the state is freed first, so that
    /// there is none after an error.
    pub fn load_checkpoint(&mut self, checkpoint: &Checkpoint) -> Result<(), Error> {
        let arguments = Argument::of_program(&self.step.program, &self.spec.step_arguments()?)?;
        let read = read_checkpoint(checkpoint);
        self.state = TrainState { parameters: Vec::new(), optimizer: Vec::new() };
        self.state = upload_state(self.compiler.client, self.spec, &arguments.state, &read)?;
        self.steps = checkpoint.manifest().progress.step;
        Ok(())
    }

    /// Replaces the parameters by those of files.
    pub fn load_weights(&mut self, weights: &Weights) -> Result<(), Error> {
        weights.check(&model_tensors(self.spec))?;
        let arguments = Argument::of_program(&self.step.program, &self.spec.step_arguments()?)?;
        let saved = saved_tensors(self.spec, &self.spec.parameter_state()?);
        let arguments: Vec<_> = arguments.state.parameters.iter().zip(saved).collect();
        let read = read_weights(weights);
        self.state.parameters = upload_all(self.compiler.client, &arguments, &read)?;
        Ok(())
    }

    fn start(
        compiler: &'a Compiler<'a>,
        spec: &'a StepSpec,
        seed: u64,
        (step, inputs): (Compiled, StepInputs<Argument>),
        state: TrainState<Array>,
    ) -> Result<Runner<'a>, Error> {
        let zeros = HostTensor::from_values(&[METRICS], &[0.0_f32; METRICS])?;
        let metrics = Arc::new(inputs.previous.upload(compiler.client, &zeros)?);
        let (seed, evaluator) = (seed_tensor(seed)?, Evaluator::new(compiler, spec));
        Ok(Runner { spec, compiler, step, inputs, state, metrics, seed, steps: 0, evaluator })
    }

    /// The spec of the programs.
    pub fn spec(&self) -> &'a StepSpec {
        self.spec
    }

    /// The client it runs on.
    pub fn client(&self) -> &'a Client {
        self.compiler.client
    }

    pub(crate) fn compiler(&self) -> &'a Compiler<'a> {
        self.compiler
    }

    /// Whether to launch a step before the previous one is done; see
    /// [`Compiler::launches_ahead`].
    pub fn launches_ahead(&self) -> bool {
        self.compiler.launches_ahead()
    }

    /// The compiled training step.
    pub fn program(&self) -> &Compiled {
        &self.step
    }

    /// The number of steps done.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The state on the devices.
    pub fn state(&self) -> &TrainState<Array> {
        &self.state
    }

    /// The parameters on the devices.
    pub fn parameters(&self) -> Parameters<'_> {
        Parameters::new(self.spec, &self.state.parameters)
    }

    /// Launches a training step on the tensors of a batch, in the order of the task's inputs: for
    /// language models tokens and labels, `[accumulation, sequences, tokens]`.
    pub fn step<B: Borrow<HostTensor>>(
        &mut self,
        batch: &[B],
        learning_rate: f64,
    ) -> Result<Pending, Error> {
        let (client, inputs) = (self.compiler.client, &self.inputs);
        let scalars = self.spec.optimizer.scalars(self.steps + 1, learning_rate);
        let scalars = HostTensor::from_values(&[scalars.len()], &scalars)?;
        let number = HostTensor::from_values(&[], &[self.steps as i32])?;
        let batch = upload_batch(client, &inputs.batch, batch)?;
        let scalars = inputs.scalars.upload(client, &scalars)?;
        let seed = inputs.seed.upload(client, &self.seed)?;
        let step = inputs.step.upload(client, &number)?;
        let inputs = StepInputs {
            batch: batch.each_ref(),
            scalars: &scalars,
            seed: &seed,
            step: &step,
            previous: &*self.metrics,
        };
        let arguments = StepArguments { state: self.state.each_ref(), inputs };
        let results = self.step.program.execute_arrays(&arguments.flatten())?;
        // Results have the layout of the arguments.
        let layout = StepResults { state: arguments.state, metrics: arguments.inputs.previous };
        let StepResults { state, metrics } = layout.unflatten(results)?;
        self.state = state;
        self.metrics = Arc::new(metrics);
        self.steps += 1;
        Ok(Pending { metrics: Arc::clone(&self.metrics) })
    }

    /// Compiles the program of an evaluation, unless already done.
    pub fn prepare_evaluation(&mut self, evaluation: &Evaluation) -> Result<(), Error> {
        self.evaluator.prepare(evaluation.sequences)
    }

    /// Launches an evaluation of the parameters on one batch; see [`Evaluator::evaluate`].
    pub fn evaluate_batch<B: Borrow<HostTensor>>(
        &mut self,
        batch: &[B],
    ) -> Result<PendingLoss, Error> {
        self.evaluator.evaluate(&self.state.parameters, batch)
    }

    /// Evaluates the parameters; see [`Evaluation::run`].
    pub fn evaluate(
        &mut self,
        evaluation: &Evaluation,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<Evaluated>, Error> {
        evaluation.run(&mut self.evaluator, &self.state.parameters, stop)
    }
}

/// Uploads a state from saved tensors.
fn upload_state(
    client: &Client,
    spec: &StepSpec,
    arguments: &TrainState<Argument>,
    read: &ReadSaved<'_>,
) -> Result<TrainState<Array>, Error> {
    let saved = saved_tensors(spec, &spec.state()?.flatten());
    let arguments: Vec<_> = arguments.each_ref().flatten().into_iter().zip(saved).collect();
    Ok(spec.state()?.unflatten(upload_all(client, &arguments, read)?)?)
}

impl Pending {
    /// Waits for the step.
    pub fn wait(&self) -> Result<Metrics, Error> {
        match numbers(&self.metrics)?[..] {
            [loss, gradient_norm, labels] => Ok(Metrics { loss, gradient_norm, labels }),
            _ => Err(mismatch("the metrics of a step", "another shape", "three numbers")),
        }
    }
}
