//! Measuring the training step of a model on made-up tokens.

mod attention;
mod collectives;
mod report;

pub use attention::{AttentionReport, Form};
pub use collectives::PlannedCollective;
pub use report::{
    BenchSettings, CollectiveReport, CompileReport, FirstAndLast, MemoryReport, MfuReport,
    PlanReport, StepReport,
};

use crate::config::RunConfig;
use crate::error::{Error, Result};
use crate::model::ChosenModel;
use fullshard_core::Platform;
use fullshard_pjrt::{Client, read_profile};
use fullshard_plan::Breakdown;
use fullshard_step::{Chip, StepSpec};
use fullshard_train::{Bench, Compiler, Runner};
use std::time::Instant;

/// How steps are measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BenchOptions {
    /// Steps to measure, once launched ahead and once one by one.
    pub steps: usize,
    /// Steps before the clock runs.
    pub warmup: usize,
    /// The same tokens in every step, so that the loss falls.
    pub fixed_batch: bool,
    /// Say where the time of a step goes, from a profile of further steps; on NVIDIA GPUs.
    pub breakdown: bool,
}

impl Default for BenchOptions {
    fn default() -> BenchOptions {
        BenchOptions { steps: 10, warmup: 2, fixed_batch: false, breakdown: false }
    }
}

/// Steps that a breakdown profiles.
const PROFILED: usize = 3;

/// Measures the step of a config, on devices of this machine.
pub fn bench(config: &RunConfig, options: &BenchOptions) -> Result<StepReport> {
    let spec = config.bench_spec()?;
    let plan = PlanReport::new(config, options, &spec)?;
    let client = client(config)?;
    if options.breakdown {
        check_breakdown(&client, config.platform())?;
    }
    let cache = config.device.compile_cache()?;
    let compile_options = config.compile_options(spec.model.attention_form())?;
    let compiler = Compiler { client: &client, cache, options: compile_options };
    let bench = Bench {
        warmup: options.warmup,
        steps: options.steps,
        fixed_batch: options.fixed_batch,
        seed: config.schedule.seed,
        learning_rate: config.learning_rate(),
    };
    let start = Instant::now();
    let mut runner = Runner::new(&compiler, &spec, bench.seed)?;
    let setup = start.elapsed().as_secs_f64();
    let measured = bench.run(&mut runner, spec.batch, spec.model.dimensions().vocabulary)?;
    let mut report = StepReport::new(&compiler, &spec, &runner, setup, measured, plan)?;
    if options.breakdown {
        // What was measured is worth having even where a profile says nothing.
        match breakdown(&mut runner, &bench, report.chip) {
            Ok(breakdown) => report.breakdown = Some(breakdown),
            Err(error) => report.breakdown_error = Some(error),
        }
    }
    Ok(report)
}

impl RunConfig {
    /// The spec of the step that a benchmark measures: of sequences as long as the model allows,
    /// unless the config says how long.
    pub fn bench_spec(&self) -> Result<StepSpec> {
        self.check()?;
        let missing = || Error::Usage("there is no model: name a config.json with --config".into());
        let model = ChosenModel::of(&self.model)?.ok_or_else(missing)?.model;
        let tokens = self.data.block_size.unwrap_or(model.dimensions().positions);
        let spec = self.step_spec(model, tokens)?;
        self.compile_options(spec.model.attention_form())?;
        Ok(spec)
    }
}

/// The devices to measure on. Plans and texts are for TPUs that are elsewhere as well.
fn client(config: &RunConfig) -> Result<Client> {
    config.client().map_err(|error| match (config.platform(), error) {
        (Platform::Tpu, error @ (Error::Pjrt(_) | Error::Plugin(_))) => Error::Usage(format!(
            "no TPU can be used here: {error}; --plan tells what one would have to hold, --text \
             writes the step for `fullshard compile`, and --device cpu measures on virtual devices"
        )),
        (_, error) => error,
    })
}

/// Whether there will be anything to read, before anything is compiled.
fn check_breakdown(client: &Client, kind: Platform) -> Result<()> {
    let reason = match kind {
        _ if !client.plugin().has_profiler() => {
            format!("the plugin of {} has no profiler", client.platform_name())
        }
        Platform::Cuda => return Ok(()),
        _ => "profiles are read of NVIDIA's GPUs alone".to_owned(),
    };
    Err(Error::Usage(format!("--breakdown cannot be honoured: {reason}; leave it out")))
}

/// Profiles further steps and reads where their time went.
fn breakdown(runner: &mut Runner<'_>, bench: &Bench, chip: Option<&Chip>) -> Result<Breakdown> {
    let spec = runner.spec();
    let vocabulary = spec.model.dimensions().vocabulary;
    let profile = bench.profile(runner, spec.batch, vocabulary, PROFILED)?;
    let program = runner.program().program.executable().optimized_program()?.module()?;
    let devices = read_profile(&profile)?;
    Ok(Breakdown::new(&devices, &program, spec.model.as_ref(), PROFILED, chip)?)
}
