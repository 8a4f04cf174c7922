//! Benchmarks the training step of a model on synthetic tokens, and its checkpoints.

mod attention;
mod checkpoint;
mod collectives;
mod report;

pub use attention::{AttentionReport, Form};
pub use checkpoint::{CheckpointReport, bench_checkpoint};
pub use collectives::PlannedCollective;
pub use report::{
    BenchSettings, CollectiveReport, CompileReport, FirstAndLast, MemoryReport, MfuReport,
    PlanReport, StepReport,
};

use crate::config::RunConfig;
use crate::error::{Error, Result};
use crate::job::Membership;
use crate::model::ChosenModel;
use fullshard_core::Platform;
use fullshard_data::hub::ModelFiles;
use fullshard_pjrt::{Client, read_profile};
use fullshard_plan::Breakdown;
use fullshard_step::{Chip, StepSpec};
use fullshard_train::{Bench, Compiler, Runner};
use std::time::Instant;

/// Options of a benchmark.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BenchOptions {
    /// Number of steps to measure, once launched asynchronously and once one launch at a time.
    pub steps: usize,
    /// Number of warmup steps.
    pub warmup: usize,
    /// Use the same tokens in every step, so that the loss falls.
    pub fixed_batch: bool,
    /// Report a breakdown of the step time from a profile of further steps; NVIDIA GPUs only.
    pub breakdown: bool,
}

impl Default for BenchOptions {
    fn default() -> BenchOptions {
        BenchOptions { steps: 10, warmup: 2, fixed_batch: false, breakdown: false }
    }
}

/// Number of steps that a breakdown profiles.
const PROFILED: usize = 3;

/// Measures the step of a config on the devices of this machine.
pub fn bench(config: &RunConfig, options: &BenchOptions) -> Result<StepReport> {
    bench_in(&Membership::alone(), config, options)
}

/// Measures the step of a config on the devices of a job, of which every process calls this.
pub fn bench_in(
    membership: &Membership,
    config: &RunConfig,
    options: &BenchOptions,
) -> Result<StepReport> {
    let mut config = config.clone();
    let counted = config.count_devices(membership)?;
    let config = &config;
    let spec = config.bench_spec()?;
    let plan = PlanReport::new(config, options, &spec)?;
    let client = match counted {
        Some(client) => client,
        None => config.client(membership)?,
    };
    if options.breakdown {
        check_breakdown(&client, config)?;
    }
    let cache = config.device.compile_cache()?;
    let compile_options = config.compile_options(spec.model.attention_form())?;
    let job = membership.job().clone();
    let compiler = Compiler { client: &client, cache, options: compile_options, job };
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
        // The measurement is useful even if the breakdown fails.
        match breakdown(&mut runner, &bench, report.chip) {
            Ok(breakdown) => report.breakdown = Some(breakdown),
            Err(error) => report.breakdown_error = Some(error),
        }
    }
    Ok(report)
}

impl RunConfig {
    /// The step spec of a benchmark. The sequence length defaults to the positions of the model.
    pub fn bench_spec(&self) -> Result<StepSpec> {
        self.check()?;
        let missing = || Error::Usage("no model given: pass a config.json with --config".into());
        let local = self.local_model(ModelFiles::Config, &mut ())?;
        let model = ChosenModel::of(&local)?.ok_or_else(missing)?.model;
        let tokens = self.data.block_size.unwrap_or(model.dimensions().positions);
        let spec = self.step_spec(model, tokens)?;
        self.compile_options(spec.model.attention_form())?;
        Ok(spec)
    }
}

/// Rejects a breakdown without a supported profiler, before compilation.
fn check_breakdown(client: &Client, config: &RunConfig) -> Result<()> {
    if config.schedule.iterations_per_loop > 1 {
        return Err(Error::Usage(
            "--breakdown is of a single step: leave out --iterations_per_loop, whose steps are \
             the same"
                .into(),
        ));
    }
    let reason = match config.platform() {
        _ if !client.plugin().has_profiler() => {
            format!("the plugin of {} has no profiler", client.platform_name())
        }
        Platform::Cuda => return Ok(()),
        _ => "it needs an NVIDIA GPU".to_owned(),
    };
    Err(Error::Usage(format!("--breakdown is not supported: {reason}; leave it out")))
}

/// Profiles further steps and breaks down their time.
fn breakdown(runner: &mut Runner<'_>, bench: &Bench, chip: Option<&Chip>) -> Result<Breakdown> {
    let spec = runner.spec();
    let vocabulary = spec.model.dimensions().vocabulary;
    let profile = bench.profile(runner, spec.batch, vocabulary, PROFILED)?;
    let program = runner.program().program.executable().optimized_program()?.module()?;
    let devices = read_profile(&profile)?;
    Ok(Breakdown::new(&devices, &program, spec.model.as_ref(), PROFILED, chip)?)
}
