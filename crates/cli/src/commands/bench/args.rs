//! What `fullshard bench step` is told, and the spec that follows from it.

use crate::error::Result;
use crate::flag::count;
use crate::step::{StepFlags, StepSize};
use clap::Args;
use fullshard_models::from_file;
use fullshard_step::StepSpec;
use fullshard_train::Bench;
use std::path::PathBuf;

#[derive(Args)]
pub struct StepArgs {
    /// The model: a Hugging Face config.json.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Sequences that all devices together compute at once.
    #[arg(long, value_name = "B", default_value_t = 8, value_parser = count)]
    batch: usize,
    /// Tokens in a sequence; by default all positions of the model.
    #[arg(long, value_name = "S", value_parser = count)]
    seq: Option<usize>,
    #[command(flatten)]
    pub step: StepFlags,
    /// Steps to measure, once launched ahead and once one by one.
    #[arg(long, value_name = "K", default_value_t = 10, value_parser = count)]
    pub steps: usize,
    /// Steps before the clock runs.
    #[arg(long, value_name = "W", default_value_t = 2)]
    pub warmup: usize,
    /// Say where the time of a step goes, by kind of work, module and kernel: from a profile of
    /// three further steps. Of NVIDIA's GPUs.
    #[arg(long, conflicts_with_all = ["plan", "text"])]
    pub breakdown: bool,
    /// The same tokens in every step, so that the loss falls.
    #[arg(long)]
    pub fixed_batch: bool,
    /// What weights and tokens are made up from.
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// Print units and a memory estimate, and stop before touching a device.
    #[arg(long)]
    pub plan: bool,
    /// Write the step as StableHLO text, to be compiled ahead of time, and stop before touching a
    /// device.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["plan", "json"])]
    pub text: Option<PathBuf>,
    /// Print JSON for machines.
    #[arg(long)]
    pub json: bool,
}

impl StepArgs {
    /// How steps are measured.
    pub fn bench(&self) -> Bench {
        Bench {
            warmup: self.warmup,
            steps: self.steps,
            fixed_batch: self.fixed_batch,
            seed: self.seed,
            learning_rate: self.step.rate(),
        }
    }

    /// The spec of the step.
    pub fn spec(&self) -> Result<StepSpec> {
        let model = from_file(&self.config)?;
        let tokens = self.seq.unwrap_or(model.dimensions().positions);
        let size = StepSize { sequences: self.batch, tokens, flags: "--batch, --seq" };
        self.step.spec(model, size)
    }
}
