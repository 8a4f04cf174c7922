//! `fullshard bench`: measures the speed and memory of training.

mod breakdown;
mod print;

use crate::flags::{Flagged, StepFlags, count};
use crate::output::{check_folder, print_json, show};
use clap::{Args, Subcommand};
use fullshard::bench::{BenchOptions, PlanReport, bench, bench_checkpoint};
use fullshard::config::RunConfig;
use fullshard::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};

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
}

pub fn run(args: &BenchArgs) -> Result<()> {
    match &args.what {
        What::Step(args) => run_step(args),
        What::Checkpoint(args) => run_checkpoint(args),
    }
}

fn run_checkpoint(args: &CheckpointArgs) -> Result<()> {
    let mut config = args.step.config(|_| Ok(RunConfig::default()))?;
    config.count_devices()?;
    config.schedule.per_device_batch = 1;
    let report = bench_checkpoint(&config, &args.dir)?;
    match args.json {
        true => print_json(&report)?,
        false => print::checkpoint(&report),
    }
    Ok(())
}

fn run_step(args: &StepArgs) -> Result<()> {
    if let Some(path) = &args.text {
        check_folder("text", path)?;
    }
    let config = args.config()?;
    let options = args.options();
    let spec = config.bench_spec()?;
    warn(config.run_warnings(&spec));
    let plan = PlanReport::new(&config, &options, &spec)?;
    if args.plan && args.json {
        return print_json(&plan);
    }
    if !args.json {
        print::plan(&plan);
    }
    if let Some(path) = &args.text {
        return write_text(&spec.launch_program()?.to_text(), path);
    }
    if args.plan {
        show!("\n{}", plan.placement);
        return Ok(());
    }
    let report = bench(&config, &options)?;
    match args.json {
        true => print_json(&report)?,
        false => print::measured(&report),
    }
    report.breakdown_error.map_or(Ok(()), Err)
}

impl StepArgs {
    /// The config with batch size and sequence length.
    fn config(&self) -> Result<RunConfig> {
        let mut config = self.step.config(|_| Ok(RunConfig::default()))?;
        if !self.plan && self.text.is_none() {
            config.count_devices()?;
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
