//! Weights on disk.
//!
//! [`open`] reads safetensors, torch's files and PyTorch/XLA FSDP checkpoints, each a [`Format`];
//! [`Weights`] finds a model's tensors in them. [`export`] streams tensors into
//! `model.safetensors`, or into shards with an index. [`write_config`] writes the `config.json`
//! that `transformers` opens a model with. This crate is independent of models and devices: a
//! tensor is a name, dimensions and values in `f32`.
//!
//! Every file is written under a temporary name and then renamed, as by [`write_file`]: a failure
//! leaves the previous file, and only regular files are replaced.
#![forbid(unsafe_code)]

mod config;
mod error;
mod export;
mod format;
mod formats;
mod import;
mod place;

pub use config::{ModelNames, write_config};
pub use error::{Error, Result};
pub use export::{ExportOptions, Exported, TensorEntry, WeightDtype, export, parse_size};
pub use format::{Format, SavedTensor};
pub use formats::open;
pub use import::Weights;
pub use place::{check_place, write_file, write_json};
