//! Checkpoints on disk: sharded ones of a run, and weights in other formats.
//!
//! [`sharded`] has the checkpoints that runs save and resume from, [`list`] those of a folder.
//! [`open`] reads their weights, safetensors, torch's files and PyTorch/XLA FSDP checkpoints, each
//! a [`Format`]; [`Weights`] finds a model's tensors in them. [`export`] streams tensors into
//! `model.safetensors`, or into shards with an index. [`write_config`] writes the `config.json`
//! that `transformers` opens a model with. This crate is independent of models and devices: a
//! tensor is a name, dimensions and values in `f32`.
//!
//! Every file is written under a temporary name and then renamed, as by [`write_file`]: a failure
//! leaves the previous file, and only regular files are replaced.
#![forbid(unsafe_code)]

mod checksum;
mod config;
mod error;
mod export;
mod folder;
mod format;
mod formats;
mod header;
mod import;
mod place;
pub mod sharded;

pub use checksum::Checksum;
pub use config::{ModelNames, write_config};
pub use error::{Error, Result};
pub use export::{
    ExportOptions, Exported, SINGLE_FILE, TensorEntry, WeightDtype, export, parse_size,
    shard_file_name,
};
pub use folder::{LOCK, Listed, Lock, checkpoint_name, free_bytes, list, remove_checkpoint, sweep};
pub use format::{Format, SavedTensor};
pub use formats::open;
pub use import::Weights;
pub use place::{check_place, write_file, write_json};
