//! Weights on disk, in Hugging Face's formats.
//!
//! [`export`] streams tensors into `model.safetensors`, or into shards with an index, and
//! [`Weights`] reads them back. [`write_config`] writes the `config.json` that `transformers` opens
//! a model with. This crate is independent of models and devices: a tensor is a name, dimensions
//! and values in `f32`.
//!
//! Every file is written under a temporary name and then renamed, as by [`write_file`]: a failure
//! leaves the previous file, and only regular files are replaced.
#![forbid(unsafe_code)]

mod config;
mod error;
mod export;
mod format;
mod import;
mod place;

pub use config::{ModelNames, write_config};
pub use error::{Error, Result};
pub use export::{ExportOptions, Exported, TensorEntry, export};
pub use format::{Format, SavedTensor};
pub use import::Weights;
pub use place::{check_place, write_file, write_json};
