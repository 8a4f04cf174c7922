//! `fullshard bench`: measures the speed and memory of training.

mod breakdown;
mod print;

use crate::flags::{Flagged, StepFlags, count};
use crate::output::{check_folder, print_json, show};
use crate::processes::ProcessArgs;
use clap::{Args, Subcommand};
use fullshard::Membership;
use fullshard::bench::{BenchOptions, PlanReport, bench_checkpoint, bench_in};
use fullshard::config::RunConfig;
use fullshard::{Error, Result};
use fullshard_core::Platform;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Measure training steps on synthetic tokens.
    #[command(allow_negative_numbers = true)]
    Step(Box<StepArgs>),
    /// Measure saving and loading a checkpoint, beside plain writes to the same disk.
    Checkpoint(Box<CheckpointArgs>),
}

#[derive(Args)]
struct CheckpointArgs {
    #[command(flatten)]
    step: Flagged<StepFlags>,
    /// Existing folder on the disk to measure; needs room for two checkpoints and the model.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct StepArgs {
    #[command(flatten)]
    step: Flagged<StepFlags>,
    /// Global micro-batch size in sequences [default: 8].
    #[arg(long, value_name = "B", value_parser = count)]
    batch: Option<usize>,
    /// Tokens per sequence; defaults to the positions of the model.
    #[arg(long, value_name = "S", value_parser = count)]
    seq: Option<usize>,
    /// Number of steps to measure, once launched asynchronously and once one launch at a time.
    #[arg(long, value_name = "K", default_value = "10", value_parser = count)]
    steps: usize,
    /// Number of warmup steps.
    #[arg(long, value_name = "W", default_value_t = 2)]
    warmup: usize,
    /// Break down the step time by kind of work, module and kernel, from a profile of three further
    /// steps. NVIDIA GPUs only.
    #[arg(long, conflicts_with_all = ["plan", "text"])]
    breakdown: bool,
    /// Use the same tokens in every step, so that the loss falls.
    #[arg(long = "fixed_batch")]
    fixed_batch: bool,
    /// Print FSDP units and a memory estimate, and exit without using a device.
    #[arg(long)]
    plan: bool,
    /// Write the step as StableHLO text, for ahead-of-time compilation, and exit without using a
    /// device.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["plan", "json"])]
    text: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    processes: ProcessArgs,
}

impl BenchArgs {
    /// The platform of a benchmark that several processes can run.
    pub fn platform(&self) -> Result<Option<Platform>> {
        match &self.what {
            What::Step(args) => Ok(Some(args.flags()?.platform())),
            What::Checkpoint(_) => Ok(None),
        }
    }
}

pub fn run(args: &BenchArgs) -> Result<ExitCode> {
    match &args.what {
        What::Step(args) => {
            let platform = args.flags()?.platform();
            args.processes.run(platform, |membership| run_step(args, &membership))
        }
        What::Checkpoint(args) => run_checkpoint(args),
    }
}

fn run_checkpoint(args: &CheckpointArgs) -> Result<ExitCode> {
    let mut config = args.step.config(|_| Ok(RunConfig::default()))?;
    config.count_devices(&Membership::alone())?;
    config.schedule.per_device_batch = 1;
    let report = bench_checkpoint(&config, &args.dir)?;
    match args.json {
        true => print_json(&report)?,
        false => print::checkpoint(&report),
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs in one process of a job.
fn run_step(args: &StepArgs, membership: &Membership) -> Result<ExitCode> {
    if let Some(path) = &args.text {
        check_folder("text", path)?;
    }
    let config = args.config(membership)?;
    let options = args.options();
    let spec = config.bench_spec()?;
    warn(config.run_warnings(&spec));
    let plan = PlanReport::new(&config, &options, &spec)?;
    if args.plan && args.json {
        print_json(&plan)?;
        return Ok(ExitCode::SUCCESS);
    }
    if !args.json {
        print::plan(&plan);
    }
    if let Some(path) = &args.text {
        if membership.job().is_first() {
            write_text(&spec.launch_program()?.to_text(), path)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if args.plan {
        show!("\n{}", plan.placement);
        return Ok(ExitCode::SUCCESS);
    }
    let report = bench_in(membership, &config, &options)?;
    match args.json {
        true => print_json(&report)?,
        false => print::measured(&report),
    }
    report.breakdown_error.map_or(Ok(ExitCode::SUCCESS), Err)
}

impl StepArgs {
    /// The config of the flags.
    fn flags(&self) -> Result<RunConfig> {
        self.step.config(|_| Ok(RunConfig::default()))
    }

    /// The config with devices, batch size and sequence length.
    fn config(&self, membership: &Membership) -> Result<RunConfig> {
        let mut config = self.flags()?;
        match self.plan || self.text.is_some() {
            true => config.processes = membership.process().count,
            false => drop(config.count_devices(membership)?),
        }
        let devices = config.batch_shards()?;
        let in_file = self.step.has_file() && config.schedule != RunConfig::default().schedule;
        let default = if in_file { config.schedule.per_device_batch * devices } else { 8 };
        let batch = self.batch.unwrap_or(default);
        if !batch.is_multiple_of(devices) {
            return Err(fullshard_step::Error::Batch { batch, devices }.into());
        }
        config.schedule.per_device_batch = batch / devices;
        config.data.block_size = self.seq.or(config.data.block_size);
        Ok(config)
    }

    fn options(&self) -> BenchOptions {
        BenchOptions {
            steps: self.steps,
            warmup: self.warmup,
            fixed_batch: self.fixed_batch,
            breakdown: self.breakdown,
        }
    }
}

fn warn(warnings: Vec<String>) {
    for warning in warnings {
        tracing::warn!("{warning}");
    }
}

fn write_text(text: &str, path: &Path) -> Result<()> {
    fs::write(path, text).map_err(|error| Error::file(path, error))?;
    show!("step written to {}", path.display());
    Ok(())
}
