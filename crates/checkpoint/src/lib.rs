//! Checkpoints on disk: sharded ones of a run, and weights in other formats.
//!
//! [`sharded`] has the checkpoints that runs save and resume from, [`list`] those of a folder.
//! [`open`] reads their weights, safetensors, torch's files and PyTorch/XLA FSDP checkpoints, each
//! a [`Format`]; [`Weights`] finds a model's tensors in them. [`export`] streams tensors into
//! `model.safetensors`, or into shards with an index. [`write_config`] writes the `config.json`
//! that `transformers` opens a model with. What `fullshard checkpoint` does is here too: [`Opened`]
//! describes what it is given, [`summarize`], [`verify_checkpoint`], [`reshard`], [`consolidate`]
//! and [`compare`] do the rest. This crate is independent of models and devices.
//!
//! Every file is written under a temporary name and then renamed, as by [`write_file`]: a failure
//! leaves the previous file, and only regular files are replaced.
#![forbid(unsafe_code)]

mod checksum;
mod compare;
mod config;
mod consolidate;
mod describe;
mod error;
mod export;
mod folder;
mod format;
mod formats;
mod header;
mod import;
mod listing;
mod opened;
mod place;
mod reshard;
mod runs;
pub mod sharded;

pub use checksum::Checksum;
pub use compare::{
    Comparison, OtherType, ProgressDifference, TensorDifference, bytes_to_compare, compare,
};
pub use config::{ModelNames, write_config};
pub use consolidate::{Consolidated, consolidate};
pub use describe::{CheckpointDescription, Description, TensorDescription};
pub use error::{Error, Result};
pub use export::{
    ExportOptions, Exported, SINGLE_FILE, TensorEntry, WeightDtype, export, parse_size,
    shard_file_name,
};
pub use folder::{LOCK, Listed, Lock, checkpoint_name, free_bytes, list, remove_checkpoint, sweep};
pub use format::{Format, SavedTensor};
pub use formats::open;
pub use import::Weights;
pub use listing::{
    CheckpointState, CheckpointSummary, Verified, bytes_to_verify, summarize, to_verify,
    verify_checkpoint,
};
pub use opened::{Opened, open_checkpoint};
pub use place::{check_output, check_place, write_file, write_json};
pub use reshard::reshard;
