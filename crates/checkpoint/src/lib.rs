//! Weights on disk, as Hugging Face keeps them.
//!
//! [`export`] streams tensors into `model.safetensors`, or into shards with an index, and
//! [`Weights`] reads them back from there. [`write_config`] puts the `config.json` beside them
//! that `transformers` opens a model by. Nothing here knows of models or devices: a tensor is a
//! name, its dimensions and values in `f32`.
//!
//! Every file is written under a temporary name and then renamed, by [`write_file`] or the way it
//! does it: whatever fails leaves what was there before, and what is no file is not replaced.
#![forbid(unsafe_code)]

mod config;
mod error;
mod export;
mod import;
mod place;

pub use config::{ModelNames, write_config};
pub use error::{Error, Result};
pub use export::{ExportOptions, Exported, TensorEntry, export};
pub use import::Weights;
pub use place::{check_place, write_file, write_json};
