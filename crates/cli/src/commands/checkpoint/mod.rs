//! `fullshard checkpoint`: verifies, shows, converts and compares checkpoints.

mod convert;
mod diff;
mod info;
mod list;
mod verify;

use crate::bar;
use crate::flags::count;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use fullshard::Result;
use fullshard::config::{FlagValue, SaveDtype, Size};
use indicatif::ProgressBar;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Args)]
#[command(arg_required_else_help = true)]
pub struct CheckpointArgs {
    #[command(subcommand)]
    action: Action,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Action {
    /// Read every byte of a checkpoint, or of all checkpoints of a run, and report damage.
    ///
    /// Exits with 1 if anything is damaged, missing or not committed.
    Verify {
        /// A checkpoint, or the folder of a run.
        #[arg(value_name = "DIR")]
        path: PathBuf,
    },
    /// Show what a checkpoint or a model has: step, mesh, optimizer, tensors, files.
    ///
    /// Reads checkpoints, safetensors, torch files and PyTorch/XLA FSDP files.
    Info {
        /// A checkpoint, a folder or file of weights, or the prefix of PyTorch/XLA FSDP files.
        #[arg(value_name = "PATH")]
        path: PathBuf,
        /// List all tensors with dims and dtype.
        #[arg(long)]
        tensors: bool,
    },
    /// List the checkpoints of a run: when saved, whether complete, which is the best.
    List {
        /// The folder of a run, its --output_dir.
        #[arg(value_name = "DIR")]
        path: PathBuf,
    },
    /// Write a checkpoint again with its tensors in another number of shards.
    ///
    /// A run resumes from it as from the original, bit for bit. No run needs it: any number of
    /// devices resumes from any number of shards. With one shard, `transformers` opens the folder.
    Reshard {
        /// The checkpoint.
        #[arg(value_name = "DIR")]
        path: PathBuf,
        /// The new checkpoint: an empty folder, or one that does not exist.
        #[arg(long, value_name = "DIR")]
        output: PathBuf,
        /// Number of shards of every tensor, the optimizer's too; 1 for full tensors.
        #[arg(long = "num_shards", value_name = "N", value_parser = count)]
        num_shards: usize,
    },
    /// Write the weights of any format as a Hugging Face model.
    ///
    /// Config and tokenizer are copied if they are beside the weights.
    Consolidate {
        /// A checkpoint, a folder or file of weights, or the prefix of PyTorch/XLA FSDP files.
        #[arg(value_name = "PATH")]
        path: PathBuf,
        /// The folder of the model: an empty one, or one that does not exist.
        #[arg(long, value_name = "DIR")]
        output: PathBuf,
        /// Maximum size of a file of weights.
        #[arg(long = "max_shard_size", value_name = "SIZE", default_value = "5GB",
              value_parser = value::<Size>)]
        max_shard_size: Size,
        /// Dtype of all floats; by default they stay as they are.
        #[arg(long = "save_dtype", value_name = "TYPE",
              value_parser = PossibleValuesParser::new(SaveDtype::CHOICES)
                  .try_map(|word| value::<SaveDtype>(&word)))]
        save_dtype: Option<SaveDtype>,
    },
    /// Compare two checkpoints or models, in any formats.
    ///
    /// Two checkpoints are compared with their optimizer state and progress. Exits with 1 if they
    /// differ.
    Diff {
        /// The first.
        #[arg(value_name = "A")]
        a: PathBuf,
        /// The second.
        #[arg(value_name = "B")]
        b: PathBuf,
        /// Accept absolute differences up to this, and other dtypes.
        #[arg(long, value_name = "X", value_parser = tolerance)]
        tolerance: Option<f64>,
    },
}

pub fn run(args: &CheckpointArgs) -> Result<ExitCode> {
    let json = args.json;
    match &args.action {
        Action::Verify { path } => return verify::run(path, json),
        Action::Info { path, tensors } => info::run(path, *tensors, json)?,
        Action::List { path } => list::run(path, json)?,
        Action::Reshard { path, output, num_shards } => {
            convert::reshard(path, output, *num_shards, json)?;
        }
        Action::Consolidate { path, output, max_shard_size, save_dtype } => {
            let dtype = save_dtype.map(Into::into);
            convert::consolidate(path, output, max_shard_size.0, dtype, json)?;
        }
        Action::Diff { a, b, tolerance } => return diff::run(a, b, *tolerance, json),
    }
    Ok(ExitCode::SUCCESS)
}

/// Parses a value as in a run config.
fn value<T: FlagValue>(word: &str) -> Result<T, String> {
    T::read(&[word.to_owned()])
}

fn tolerance(word: &str) -> Result<f64, String> {
    let number = word.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| "expected a number of at least 0".to_owned())
}

/// A bar of the bytes that are read from a path.
fn byte_bar(what: &str, path: &Path, bytes: u64) -> ProgressBar {
    bar::bytes(what, bytes).with_message(path.display().to_string())
}
