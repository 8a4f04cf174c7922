//! Running a recipe's programs on devices.

use crate::error::Error;
use crate::init::InitProgram;
use crate::recipe::Recipe;
use crate::step::METRICS;
use fullshard_graph::Program;
use fullshard_parallel::Stored;
use fullshard_pjrt::{
    Array, CacheOutcome, Client, CompileCache, CompileOptions, HostTensor, LoadedExecutable,
};
use sha2::{Digest, Sha256};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Compiles programs for the devices of a client.
pub struct Compiler<'a> {
    /// The devices.
    pub client: &'a Client,
    /// Where compiled programs are kept, if anywhere.
    pub cache: Option<CompileCache>,
    /// Options, for as many devices as the programs run on.
    pub options: CompileOptions,
}

/// A compiled program.
pub struct Compiled {
    /// The program.
    pub program: LoadedExecutable,
    /// How long it took.
    pub time: Duration,
    /// Whether the cache had it.
    pub cached: bool,
    /// The SHA-256 of its text.
    pub hash: String,
}

/// The SHA-256 of a program's text: what tells whether two are the same.
pub fn program_hash(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a step is fed between the state and the metrics of the step before.
const FED: usize = 5;

/// Compiled programs and the state they work on.
pub struct Runner<'a> {
    recipe: &'a Recipe,
    compiler: &'a Compiler<'a>,
    step: Compiled,
    /// The compiled evaluation step, and for how many sequences it is.
    eval: Option<(usize, Compiled)>,
    state: Vec<Array>,
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

/// What an evaluation will say when it is done.
pub struct PendingLoss {
    sums: Array,
}

impl Compiler<'_> {
    /// Compiles a program, or takes it from the cache.
    pub fn compile(&self, program: &Program) -> Result<Compiled, Error> {
        self.compile_text(&program.to_text())
    }

    /// Compiles programs, all at the same time.
    pub fn compile_all(&self, programs: &[&Program]) -> Result<Vec<Compiled>, Error> {
        let texts: Vec<String> = programs.iter().map(|program| program.to_text()).collect();
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                texts.iter().map(|text| scope.spawn(|| self.compile_text(text))).collect();
            let compiled = threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
            compiled.collect()
        })
    }

    fn compile_text(&self, text: &str) -> Result<Compiled, Error> {
        let start = Instant::now();
        let (program, cached) = match &self.cache {
            Some(cache) => {
                let (program, outcome) = cache.compile(self.client, text, &self.options)?;
                (program, matches!(outcome, CacheOutcome::Hit))
            }
            None => (self.client.compile(text, &self.options)?, false),
        };
        Ok(Compiled { program, time: start.elapsed(), cached, hash: program_hash(text) })
    }
}

impl<'a> Runner<'a> {
    /// Compiles the programs of a recipe and makes its state from a seed.
    pub fn new(
        compiler: &'a Compiler<'a>,
        recipe: &'a Recipe,
        seed: u64,
    ) -> Result<Runner<'a>, Error> {
        let init = recipe.init_programs()?;
        let step = recipe.step_program()?;
        let programs: Vec<&Program> =
            init.iter().map(|init| &init.program).chain([&step]).collect();
        let mut compiled = compiler.compile_all(&programs)?;
        let step = compiled.pop().ok_or_else(|| mismatch("the step", "nothing", "a program"))?;
        let state = initial_state(compiler.client, &init, &compiled, seed)?;
        drop(compiled);
        Runner::begin(compiler, recipe, seed, step, state)
    }

    /// Compiles the programs of a recipe and takes its parameters from `parameter`: the whole
    /// numbers of one, of all layers one after another if they are stacked. The seed is for
    /// dropout.
    pub fn with_parameters(
        compiler: &'a Compiler<'a>,
        recipe: &'a Recipe,
        seed: u64,
        parameter: impl Fn(&Stored) -> Result<Vec<f32>, Error>,
    ) -> Result<Runner<'a>, Error> {
        let step = compiler.compile(&recipe.step_program()?)?;
        let mut state = Vec::new();
        for (i, tensor) in recipe.state()?.iter().enumerate() {
            let values = match recipe.placement.parameters.get(i) {
                Some(stored) => packed(stored, &parameter(stored)?)?,
                None => {
                    HostTensor::from_values(&tensor.ty.dims, &vec![0.0_f32; tensor.ty.elements()])?
                }
            };
            state.push(upload(compiler.client, &step.program, i, &values)?);
        }
        Runner::begin(compiler, recipe, seed, step, state)
    }

    fn begin(
        compiler: &'a Compiler<'a>,
        recipe: &'a Recipe,
        seed: u64,
        step: Compiled,
        state: Vec<Array>,
    ) -> Result<Runner<'a>, Error> {
        let none = HostTensor::from_values(&[METRICS], &[0.0_f32; METRICS])?;
        let place = state.len() + FED;
        let metrics = Arc::new(upload(compiler.client, &step.program, place, &none)?);
        let seed = seed_tensor(seed)?;
        Ok(Runner { recipe, compiler, step, eval: None, state, metrics, seed, steps: 0 })
    }

    /// What the programs follow from.
    pub fn recipe(&self) -> &'a Recipe {
        self.recipe
    }

    /// The devices it runs on.
    pub fn client(&self) -> &'a Client {
        self.compiler.client
    }

    /// Whether a program is to be launched before the one before it is done. On CPU it is not: the
    /// host has nothing to hide there, the memory of a second step is memory that the caches do
    /// not hold, and two programs with collectives that do not depend on each other may wait for
    /// ever, since they share too few threads.
    pub fn launches_ahead(&self) -> bool {
        self.client().platform_name() != "cpu"
    }

    /// The compiled training step.
    pub fn program(&self) -> &Compiled {
        &self.step
    }

    /// The number of steps done.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The compiled evaluation step, if there was one.
    pub fn eval_program(&self) -> Option<&Compiled> {
        self.eval.as_ref().map(|(_, program)| program)
    }

    /// Launches a training step on `[accumulation, sequences, tokens]` tokens and labels.
    pub fn step(
        &mut self,
        tokens: &HostTensor,
        labels: &HostTensor,
        learning_rate: f64,
    ) -> Result<Pending, Error> {
        let number = HostTensor::from_values(&[], &[self.steps as i32])?;
        let scalars = self.recipe.optimizer.scalars(self.steps + 1, learning_rate);
        let scalars = HostTensor::from_values(&[scalars.len()], &scalars)?;
        let feed: [_; FED] = [tokens, labels, &scalars, &self.seed, &number];
        let feed = self.upload_after_state(&self.step.program, self.state.len(), &feed)?;
        let arguments: Vec<&Array> =
            self.state.iter().chain(&feed).chain([&*self.metrics]).collect();
        let mut results = self.step.program.execute_arrays(&arguments)?;
        let metrics = results.pop().ok_or_else(|| mismatch("the step", "no results", "metrics"))?;
        self.state = results;
        self.steps += 1;
        self.metrics = Arc::new(metrics);
        Ok(Pending { metrics: Arc::clone(&self.metrics) })
    }

    /// Compiles the evaluation of so many sequences, unless that is done.
    pub fn prepare_evaluation(&mut self, sequences: usize) -> Result<(), Error> {
        if self.eval.as_ref().is_none_or(|(known, _)| *known != sequences) {
            let program = self.compiler.compile(&self.recipe.eval_program(sequences)?)?;
            self.eval = Some((sequences, program));
        }
        Ok(())
    }

    /// Launches an evaluation of `[sequences, tokens]` tokens and labels.
    pub fn evaluate(
        &mut self,
        tokens: &HostTensor,
        labels: &HostTensor,
    ) -> Result<PendingLoss, Error> {
        self.prepare_evaluation(tokens.dims().first().copied().unwrap_or(0))?;
        let Some((_, eval)) = &self.eval else { return Err(mismatch("eval", "none", "a program")) };
        let parameters = &self.state[..self.recipe.placement.parameters.len()];
        let feed = self.upload_after_state(&eval.program, parameters.len(), &[tokens, labels])?;
        let arguments: Vec<&Array> = parameters.iter().chain(&feed).collect();
        let mut results = eval.program.execute_arrays(&arguments)?;
        let sums = results.pop().ok_or_else(|| mismatch("evaluation", "no results", "sums"))?;
        Ok(PendingLoss { sums })
    }

    /// A parameter as it is: the whole of it, of all layers one after another if they are stacked,
    /// by the name it is stored under.
    pub fn parameter(&self, name: &str) -> Result<Vec<f32>, Error> {
        let i = self.position(name)?;
        let stored = self.state[i].to_host()?;
        Ok(self.recipe.placement.parameters[i].unpack(&stored.values()?))
    }

    /// The state on the devices: parameters, then the optimizer's slots.
    pub fn state(&self) -> &[Array] {
        &self.state
    }

    fn position(&self, name: &str) -> Result<usize, Error> {
        let parameters = &self.recipe.placement.parameters;
        let position = parameters.iter().position(|stored| stored.name == name);
        position.ok_or_else(|| mismatch(name, "no such parameter", "a parameter of the model"))
    }

    fn upload_after_state(
        &self,
        program: &LoadedExecutable,
        first: usize,
        tensors: &[&HostTensor],
    ) -> Result<Vec<Array>, Error> {
        let upload = |(i, tensor): (usize, &&HostTensor)| {
            upload(self.compiler.client, program, first + i, tensor)
        };
        tensors.iter().enumerate().map(upload).collect()
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

impl PendingLoss {
    /// Waits for the summed loss and the number of labels that counted.
    pub fn wait(&self) -> Result<(f32, f32), Error> {
        match numbers(&self.sums)?[..] {
            [sum, count] => Ok((sum, count)),
            _ => Err(mismatch("the result of evaluation", "another shape", "two numbers")),
        }
    }
}

/// The state that compiled programs make from a seed.
pub fn initial_state(
    client: &Client,
    init: &[InitProgram],
    compiled: &[Compiled],
    seed: u64,
) -> Result<Vec<Array>, Error> {
    let seed = seed_tensor(seed)?;
    let mut state: Vec<(usize, Array)> = Vec::new();
    for (init, Compiled { program, .. }) in init.iter().zip(compiled) {
        for launch in &init.launches {
            let name = HostTensor::from_values(&[2], &launch.name)?;
            let layer = HostTensor::from_values(&[], &[launch.layer])?;
            let upload = |(i, tensor): (usize, &HostTensor)| upload(client, program, i, tensor);
            let arguments: Result<Vec<Array>, Error> =
                [&seed, &name, &layer].into_iter().enumerate().map(upload).collect();
            let arguments = arguments?;
            let made = program.execute_arrays(&arguments.iter().collect::<Vec<_>>())?;
            state.extend(launch.places.iter().copied().zip(made));
        }
    }
    state.sort_by_key(|(place, _)| *place);
    Ok(state.into_iter().map(|(_, array)| array).collect())
}

fn seed_tensor(seed: u64) -> Result<HostTensor, Error> {
    Ok(HostTensor::from_values(&[2], &[(seed >> 32) as u32, seed as u32])?)
}

/// The whole numbers of a parameter as it is stored.
fn packed(stored: &Stored, wholes: &[f32]) -> Result<HostTensor, Error> {
    if wholes.len() != stored.elements() {
        let (found, expected) = (wholes.len(), stored.elements());
        let found = format!("{found} numbers");
        return Err(mismatch(&stored.name, &found, &format!("{expected}")));
    }
    Ok(HostTensor::from_values(&stored.stored_dims(), &stored.pack(wholes))?)
}

fn upload(
    client: &Client,
    program: &LoadedExecutable,
    index: usize,
    tensor: &HostTensor,
) -> Result<Array, Error> {
    let expected = program.argument_type(index)?;
    if expected.ty != *tensor.ty() {
        let (found, expected) = (tensor.ty().to_string(), expected.ty.to_string());
        return Err(mismatch(&format!("argument {index}"), &found, &expected));
    }
    Ok(Array::from_host(client, tensor, expected.sharding, program.devices())?)
}

/// The numbers of a tensor that every device has whole.
fn numbers(array: &Array) -> Result<Vec<f32>, Error> {
    Ok(array.to_host()?.values()?)
}

pub(crate) fn mismatch(what: &str, found: &str, expected: &str) -> Error {
    let [what, found, expected] = [what, found, expected].map(str::to_owned);
    Error::Mismatch { what, found, expected }
}
