//! Training steps on devices.

use crate::agreement::Agreement;
use crate::checkpoint::{read_checkpoint, read_weights, saved_tensors};
use crate::compiler::{Compiled, Compiler};
use crate::error::{Error, mismatch};
use crate::evaluation::{Evaluated, Evaluation};
use crate::evaluator::{Evaluator, PendingLoss};
use crate::launch::{LaunchInputs, Launched, Pending, StepLauncher};
use crate::parameters::Parameters;
use crate::state::{Argument, ReadSaved, compile_with_state, seed_tensor, upload_all};
use crate::weights::model_tensors;
use fullshard_checkpoint::Weights;
use fullshard_checkpoint::sharded::Checkpoint;
use fullshard_parallel::ShardedParam;
use fullshard_pjrt::{Array, Client, HostTensor};
use fullshard_step::{Ordered, StepArguments, StepSpec, TrainState};
use std::borrow::Borrow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A compiled training step and its state, which can also be evaluated.
pub struct Runner<'a> {
    spec: &'a StepSpec,
    compiler: &'a Compiler<'a>,
    /// The program of the spec's steps per launch.
    launcher: StepLauncher,
    /// The program of one step, compiled when it is first needed beside a loop.
    single: Option<StepLauncher>,
    state: TrainState<Array>,
    /// The metrics of the previous step, on the devices.
    metrics: Arc<Array>,
    seed: HostTensor,
    steps: u64,
    /// The loss above which a step updates nothing, if the spec has such a limit.
    loss_limit: f32,
    evaluator: Evaluator<'a>,
    /// The time that initializing or reading the state took.
    weights_time: Duration,
}

impl<'a> Runner<'a> {
    /// Compiles the programs of a spec and initializes its state from a seed.
    pub fn new(
        compiler: &'a Compiler<'a>,
        spec: &'a StepSpec,
        seed: u64,
    ) -> Result<Runner<'a>, Error> {
        let (step, init) = (spec.launch_program()?, spec.init_programs()?);
        let (step, state, time) = compile_with_state(compiler, &step, &init, seed)?;
        let state = spec.state()?.unflatten(state)?;
        Runner::start(compiler, spec, seed, step, (state, time))
    }

    /// Compiles the programs of a spec, with parameters from `parameter`, which returns the full
    /// values of one, with stacked layers concatenated. The seed is for dropout.
    pub fn with_parameters(
        compiler: &'a Compiler<'a>,
        spec: &'a StepSpec,
        seed: u64,
        parameter: impl Fn(&ShardedParam) -> Result<Vec<f32>, Error>,
    ) -> Result<Runner<'a>, Error> {
        let step = compiler.compile(&spec.launch_program()?)?;
        let arguments = Argument::of_program(&step.program, &spec.launch_arguments()?)?;
        let (start, tensors) = (Instant::now(), spec.state()?);
        let state = arguments.state.zip(&tensors)?.try_map(|(argument, tensor)| {
            argument.upload_initial(compiler.client, spec, tensor, &parameter)
        })?;
        Runner::start(compiler, spec, seed, step, (state, start.elapsed()))
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
        let step = compiler.compile(&spec.launch_program()?)?;
        let arguments = Argument::of_program(&step.program, &spec.launch_arguments()?)?;
        let start = Instant::now();
        let state = upload_state(compiler.client, spec, &arguments.state, &read_weights(weights))?;
        Runner::start(compiler, spec, seed, step, (state, start.elapsed()))
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
        let step = compiler.compile(&spec.launch_program()?)?;
        let arguments = Argument::of_program(&step.program, &spec.launch_arguments()?)?;
        let start = Instant::now();
        let mut last = mismatch("a checkpoint to resume from", "none", "one");
        for (index, checkpoint) in checkpoints.iter().enumerate() {
            let read = read_checkpoint(checkpoint);
            let state = upload_state(compiler.client, spec, &arguments.state, &read);
            match compiler.job.agree(&format!("resume/{index}"), state) {
                Ok(state) => {
                    let state = (state, start.elapsed());
                    let mut runner = Runner::start(compiler, spec, seed, step, state)?;
                    runner.steps = checkpoint.manifest().progress.step;
                    return Ok((runner, index));
                }
                Err(error @ (Error::Files(_) | Error::OtherProcess { .. })) => {
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
        let arguments = self.arguments()?;
        let read = read_checkpoint(checkpoint);
        self.state = TrainState { parameters: Vec::new(), optimizer: Vec::new() };
        self.state = upload_state(self.compiler.client, self.spec, &arguments.state, &read)?;
        self.steps = checkpoint.manifest().progress.step;
        self.metrics = self.launcher.no_metrics(self.compiler.client)?;
        Ok(())
    }

    /// Replaces the parameters by those of files.
    pub fn load_weights(&mut self, weights: &Weights) -> Result<(), Error> {
        weights.check(&model_tensors(self.spec))?;
        let arguments = self.arguments()?;
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
        step: Compiled,
        (state, weights_time): (TrainState<Array>, Duration),
    ) -> Result<Runner<'a>, Error> {
        let steps = spec.iterations_per_loop;
        let launcher = StepLauncher::new(step, steps, &spec.launch_arguments()?)?;
        let metrics = launcher.no_metrics(compiler.client)?;
        let (seed, mut evaluator) = (seed_tensor(seed)?, Evaluator::new(compiler, spec));
        evaluator.agreement()?;
        let (single, steps, loss_limit) = (None, 0, f32::INFINITY);
        Ok(Runner {
            spec,
            compiler,
            launcher,
            single,
            state,
            metrics,
            seed,
            steps,
            loss_limit,
            evaluator,
            weights_time,
        })
    }

    /// What the processes of the job agree on between two launches.
    pub(crate) fn agreement(&mut self) -> Result<&mut Agreement<'a>, Error> {
        self.evaluator.agreement()
    }

    /// The arguments of the program of a launch.
    fn arguments(&self) -> Result<StepArguments<Argument>, Error> {
        Argument::of_program(&self.program().program, &self.spec.launch_arguments()?)
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

    /// The compiled program of a launch: a training step, or a loop of several.
    pub fn program(&self) -> &Compiled {
        &self.launcher.program
    }

    /// The time that initializing the state took, or reading it.
    pub fn weights_time(&self) -> Duration {
        self.weights_time
    }

    /// The number of steps done.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The state on the devices.
    pub fn state(&self) -> &TrainState<Array> {
        &self.state
    }

    /// The state, for tests that damage it.
    #[cfg(test)]
    pub(crate) fn state_mut(&mut self) -> &mut TrainState<Array> {
        &mut self.state
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
        self.launch(&[batch], &[learning_rate])
    }

    /// Launches training steps, each on its batch and with its learning rate: as many as the spec
    /// has per launch, or one.
    pub fn launch<B: Borrow<HostTensor>>(
        &mut self,
        batches: &[&[B]],
        learning_rates: &[f64],
    ) -> Result<Pending, Error> {
        let (steps, rates) = (batches.len(), learning_rates.len());
        if rates != steps {
            return Err(mismatch("learning rates", &rates.to_string(), &steps.to_string()));
        }
        self.prepare(steps)?;
        let launcher = match &self.single {
            Some(single) if steps == 1 => single,
            _ => &self.launcher,
        };
        let inputs = self.inputs(batches, learning_rates)?;
        let Launched { state, last, pending } =
            launcher.launch(self.compiler.client, &self.state, &self.metrics, &inputs)?;
        (self.state, self.metrics) = (state, last);
        self.steps += steps as u64;
        Ok(pending)
    }

    /// The inputs of the next steps.
    fn inputs<'i, B>(
        &'i self,
        batches: &'i [&'i [B]],
        learning_rates: &[f64],
    ) -> Result<LaunchInputs<'i, B>, Error> {
        let (mut scalars, mut numbers) = (Vec::new(), Vec::new());
        for (step, &rate) in (self.steps..).zip(learning_rates) {
            let of_step = self.spec.optimizer.scalars(step + 1, rate);
            scalars.push(HostTensor::from_values(&[of_step.len()], &of_step)?);
            numbers.push(HostTensor::from_values(&[], &[step as i32])?);
        }
        let limit = || HostTensor::from_values(&[], &[self.loss_limit]);
        let loss_limit = self.spec.has_loss_limit.then(limit).transpose()?;
        Ok(LaunchInputs { batches, scalars, numbers, seed: &self.seed, loss_limit })
    }

    /// The checksums of the next step, by a program that leaves the state as it is.
    pub(crate) fn step_checksums<B: Borrow<HostTensor>>(
        &self,
        launcher: &StepLauncher,
        batch: &[B],
        learning_rate: f64,
    ) -> Result<Array, Error> {
        let batches = [batch];
        let inputs = self.inputs(&batches, &[learning_rate])?;
        let client = self.compiler.client;
        let mut results = launcher.execute(client, &self.state, &self.metrics, &inputs)?;
        results.pop().ok_or_else(|| mismatch("checksums", "no result", "one"))
    }

    /// From the next launch on, a step whose loss is above this updates nothing, if the spec has a
    /// [loss limit](StepSpec::with_loss_limit).
    pub fn set_loss_limit(&mut self, limit: f32) {
        self.loss_limit = limit;
    }

    /// Whether the program of a launch of this number of steps is compiled.
    pub fn is_prepared(&self, steps: usize) -> bool {
        steps == self.launcher.steps || (steps == 1 && self.single.is_some())
    }

    /// Compiles the program of a launch of this number of steps, unless already done.
    pub fn prepare(&mut self, steps: usize) -> Result<(), Error> {
        if self.is_prepared(steps) {
            return Ok(());
        }
        if steps != 1 {
            let expected = format!("1 or {}", self.launcher.steps);
            return Err(mismatch("the steps of a launch", &steps.to_string(), &expected));
        }
        let program = self.compiler.compile(&self.spec.step_program()?)?;
        self.single = Some(StepLauncher::new(program, steps, &self.spec.step_arguments()?)?);
        Ok(())
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
