//! Running a spec's programs on devices.

use crate::compiler::{Compiled, Compiler};
use crate::error::{Error, mismatch};
use crate::evaluator::Evaluator;
use crate::state::{compile_with_state, given_state, numbers, seed_tensor, upload, upload_from};
use fullshard_parallel::Stored;
use fullshard_pjrt::{Array, Client, HostTensor};
use fullshard_step::METRICS;
use fullshard_step::StepSpec;
use std::sync::Arc;

/// What a step is fed between the state and the metrics of the step before.
const FED: usize = 5;

/// A compiled step and the state it works on, which can be evaluated too.
pub struct Runner<'a> {
    evaluator: Evaluator<'a>,
    step: Compiled,
    /// The metrics of the step before, on the devices.
    metrics: Arc<Array>,
    seed: HostTensor,
    steps: u64,
}

/// What a training step says of itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Metrics {
    /// The mean loss before the update.
    pub loss: f32,
    /// The norm of the gradient before clipping.
    pub gradient_norm: f32,
    /// The number of labels that counted.
    pub labels: f32,
}

/// What a step will say when it is done.
pub struct Pending {
    metrics: Arc<Array>,
}

impl<'a> Runner<'a> {
    /// Compiles the programs of a spec and makes its state from a seed.
    pub fn new(
        compiler: &'a Compiler<'a>,
        spec: &'a StepSpec,
        seed: u64,
    ) -> Result<Runner<'a>, Error> {
        let (step, init) = (spec.step_program()?, spec.init_programs()?);
        let (step, state) = compile_with_state(compiler, &step, &init, seed)?;
        Runner::begin(compiler, spec, seed, step, state)
    }

    /// Compiles the programs of a spec and takes its parameters from `parameter`: the whole
    /// numbers of one, of all layers one after another if they are stacked. The seed is for
    /// dropout.
    pub fn with_parameters(
        compiler: &'a Compiler<'a>,
        spec: &'a StepSpec,
        seed: u64,
        parameter: impl Fn(&Stored) -> Result<Vec<f32>, Error>,
    ) -> Result<Runner<'a>, Error> {
        let step = compiler.compile(&spec.step_program()?)?;
        let state = given_state(compiler, spec, &step.program, &spec.state()?, parameter)?;
        Runner::begin(compiler, spec, seed, step, state)
    }

    fn begin(
        compiler: &'a Compiler<'a>,
        spec: &'a StepSpec,
        seed: u64,
        step: Compiled,
        state: Vec<Array>,
    ) -> Result<Runner<'a>, Error> {
        let none = HostTensor::from_values(&[METRICS], &[0.0_f32; METRICS])?;
        let place = state.len() + FED;
        let metrics = Arc::new(upload(compiler.client, &step.program, place, &none)?);
        let seed = seed_tensor(seed)?;
        let evaluator = Evaluator::of_state(compiler, spec, state);
        Ok(Runner { evaluator, step, metrics, seed, steps: 0 })
    }

    /// What the programs follow from.
    pub fn spec(&self) -> &'a StepSpec {
        self.evaluator.spec()
    }

    /// The devices it runs on.
    pub fn client(&self) -> &'a Client {
        self.evaluator.client()
    }

    /// Whether a program is to be launched before the one before it is done; see
    /// [`Evaluator::launches_ahead`].
    pub fn launches_ahead(&self) -> bool {
        self.evaluator.launches_ahead()
    }

    /// The compiled training step.
    pub fn program(&self) -> &Compiled {
        &self.step
    }

    /// The number of steps done.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// What evaluates the parameters as they are.
    pub fn evaluator(&mut self) -> &mut Evaluator<'a> {
        &mut self.evaluator
    }

    /// Launches a training step on `[accumulation, sequences, tokens]` tokens and labels.
    pub fn step(
        &mut self,
        tokens: &HostTensor,
        labels: &HostTensor,
        learning_rate: f64,
    ) -> Result<Pending, Error> {
        let number = HostTensor::from_values(&[], &[self.steps as i32])?;
        let scalars = self.spec().optimizer.scalars(self.steps + 1, learning_rate);
        let scalars = HostTensor::from_values(&[scalars.len()], &scalars)?;
        let feed: [_; FED] = [tokens, labels, &scalars, &self.seed, &number];
        let feed = upload_from(self.client(), &self.step.program, self.state().len(), &feed)?;
        let arguments: Vec<&Array> =
            self.state().iter().chain(&feed).chain([&*self.metrics]).collect();
        let mut results = self.step.program.execute_arrays(&arguments)?;
        let metrics = results.pop().ok_or_else(|| mismatch("the step", "no results", "metrics"))?;
        self.evaluator.state = results;
        self.steps += 1;
        self.metrics = Arc::new(metrics);
        Ok(Pending { metrics: Arc::clone(&self.metrics) })
    }

    /// A parameter as it is; see [`Evaluator::parameter`].
    pub fn parameter(&self, name: &str) -> Result<Vec<f32>, Error> {
        self.evaluator.parameter(name)
    }

    /// The state on the devices: parameters, then the optimizer's slots.
    pub fn state(&self) -> &[Array] {
        self.evaluator.state()
    }
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
