//! The flags of `fullshard train`, by Hugging Face's names and with its defaults. What is left
//! out where the demo has a default of its own is `None`.

use super::unsupported::Unsupported;
use crate::flag::{count, switch};
use crate::step::StepFlags;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Args)]
pub struct TrainArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub data: DataArgs,
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub step: StepFlags,
    #[command(flatten)]
    pub unsupported: Unsupported,
}

#[derive(Args)]
#[command(next_help_heading = "The model")]
pub struct ModelArgs {
    /// Go on from a model: a folder with config.json and model.safetensors.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["config_name", "model_type"])]
    pub model_name_or_path: Option<PathBuf>,
    /// Begin a model anew: a config.json, or a folder that has one.
    #[arg(long, visible_alias = "config", value_name = "FILE|DIR", conflicts_with = "model_type")]
    pub config_name: Option<PathBuf>,
    /// Begin a model anew with the defaults of a type: gpt2 or llama.
    #[arg(long, value_name = "TYPE")]
    pub model_type: Option<String>,
    /// What is different from these defaults, as key=value,key=value.
    #[arg(long, value_name = "ARGS", requires = "model_type")]
    pub config_overrides: Option<String>,
    /// gpt2, which is built in, a tokenizer.json, or a folder that has one; by default that of the
    /// model, or gpt2.
    #[arg(long, value_name = "NAME|PATH")]
    pub tokenizer_name: Option<String>,
    /// Where fetched datasets and tokenised text are kept.
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
}

#[derive(Args)]
#[command(next_help_heading = "The data")]
pub struct DataArgs {
    /// A dataset of the hub.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["train_file", "validation_file"])]
    pub dataset_name: Option<String>,
    /// Which config of the dataset.
    #[arg(long, value_name = "NAME", requires = "dataset_name")]
    pub dataset_config_name: Option<String>,
    /// Text to train on: .txt, .json, .jsonl, .csv or .parquet, one file or several.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub train_file: Vec<PathBuf>,
    /// Text to evaluate on.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub validation_file: Vec<PathBuf>,
    /// Without text to evaluate on, so many percent of the other are set aside for it.
    #[arg(long, value_name = "PERCENT", default_value_t = 5)]
    pub validation_split_percentage: u8,
    /// Tokens in a block; by default as many as tokenizer and model allow, and at most 1024.
    #[arg(long, value_name = "N", value_parser = count)]
    pub block_size: Option<usize>,
    /// Pack text into blocks without leaving anything out. By default what does not fill a block
    /// at the end of every thousand examples is dropped, as run_clm does.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value = "false",
          default_missing_value = "true", value_parser = switch)]
    pub packing: bool,
    /// Whether lines of text keep their line breaks.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value = "true",
          default_missing_value = "true", value_parser = switch)]
    pub keep_linebreaks: bool,
    /// Train on at most so many blocks.
    #[arg(long, value_name = "N", value_parser = count)]
    pub max_train_samples: Option<usize>,
    /// Evaluate on at most so many blocks.
    #[arg(long, value_name = "N", value_parser = count)]
    pub max_eval_samples: Option<usize>,
    /// Tokenise anew.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value = "false",
          default_missing_value = "true", value_parser = switch)]
    pub overwrite_cache: bool,
}

#[derive(Args)]
#[command(next_help_heading = "The run")]
pub struct RunArgs {
    /// Where the model and the results go; by default trainer_output.
    #[arg(long, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
    /// Write into an output folder that is not empty.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value = "false",
          default_missing_value = "true", value_parser = switch)]
    pub overwrite_output_dir: bool,
    /// Whether to train. `run_clm` only does if it is told to.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true",
          value_parser = switch)]
    pub do_train: Option<bool>,
    /// Whether to evaluate at the end.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true",
          value_parser = switch)]
    pub do_eval: Option<bool>,
    /// Sequences a device trains on at once; by default 8.
    #[arg(long, value_name = "N", value_parser = count)]
    pub per_device_train_batch_size: Option<usize>,
    /// Sequences a device evaluates at once; by default 8.
    #[arg(long, value_name = "N", value_parser = count)]
    pub per_device_eval_batch_size: Option<usize>,
    /// How often all text is seen; by default 3 times.
    #[arg(long, value_name = "X")]
    pub num_train_epochs: Option<f64>,
    /// So many steps instead, if above 0.
    #[arg(long, value_name = "N")]
    pub max_steps: Option<i64>,
    /// How the learning rate goes: linear, cosine, constant_with_warmup and others.
    #[arg(long, value_name = "NAME")]
    pub lr_scheduler_type: Option<String>,
    /// More for the schedule, as JSON.
    #[arg(long, value_name = "JSON")]
    pub lr_scheduler_kwargs: Option<String>,
    /// Steps over which the learning rate rises; below 1 a share of all steps.
    #[arg(long, value_name = "X")]
    pub warmup_steps: Option<f64>,
    /// The same as a share of all steps.
    #[arg(long, value_name = "X", conflicts_with = "warmup_steps")]
    pub warmup_ratio: Option<f64>,
    /// When something is logged.
    #[arg(long, value_enum)]
    pub logging_strategy: Option<When>,
    /// Steps between logs; below 1 a share of all steps; by default 500.
    #[arg(long, value_name = "X")]
    pub logging_steps: Option<f64>,
    /// Log the first step, whatever the others.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value = "false",
          default_missing_value = "true", value_parser = switch)]
    pub logging_first_step: bool,
    /// When there is an evaluation during training.
    #[arg(long, value_enum, visible_alias = "evaluation-strategy")]
    pub eval_strategy: Option<When>,
    /// Steps between evaluations; by default those between logs.
    #[arg(long, value_name = "X")]
    pub eval_steps: Option<f64>,
    /// Steps or epochs before the first evaluation.
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    pub eval_delay: f64,
    /// When a checkpoint is saved during training: only `no` for now. The model is always saved
    /// at the end.
    #[arg(long, value_name = "WHEN", default_value = "no")]
    pub save_strategy: String,
    /// What weights, dropout and the order of blocks are made from.
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// What the order of blocks is made from, if not the seed.
    #[arg(long, value_name = "SEED")]
    pub data_seed: Option<u64>,
    /// Leave out blocks that do not fill the last batch of an epoch.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value = "false",
          default_missing_value = "true", value_parser = switch)]
    pub dataloader_drop_last: bool,
    /// Use Adafactor: the same as --optim adafactor.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value = "false",
          default_missing_value = "true", value_parser = switch)]
    pub adafactor: bool,
    /// Where logs go beside the terminal: tensorboard, none or all.
    #[arg(long, value_name = "WHERE", num_args = 1.., default_value = "tensorboard")]
    pub report_to: Vec<String>,
    /// Show no progress bar.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value = "false",
          default_missing_value = "true", value_parser = switch)]
    pub disable_tqdm: bool,
    /// Write a profile of a few steps below this folder, where the plugin can.
    #[arg(long, value_name = "DIR")]
    pub profile: Option<PathBuf>,
}

/// When something happens during training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum When {
    No,
    Steps,
    Epoch,
}

/// Trainer's default.
const BATCH: usize = 8;

impl RunArgs {
    /// Sequences a device trains on at once.
    pub fn train_batch(&self) -> usize {
        self.per_device_train_batch_size.unwrap_or(BATCH)
    }

    /// Sequences a device evaluates at once.
    pub fn eval_batch(&self) -> usize {
        self.per_device_eval_batch_size.unwrap_or(BATCH)
    }
}

impl TrainArgs {
    /// Whether any data was named.
    pub fn names_data(&self) -> bool {
        let DataArgs { dataset_name, train_file, validation_file, .. } = &self.data;
        dataset_name.is_some() || !train_file.is_empty() || !validation_file.is_empty()
    }
}
