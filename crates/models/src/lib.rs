//! Models: Hugging Face configs to traced mathematics.
//!
//! A model is single-device mathematics. It has a [`Module`] tree, which says what parameters
//! there are before any exists, and functions that compute with them through a [`Scope`], which
//! hands out parameters by name. Where the parameters live, whether layers are a loop and what is
//! computed again on the way back is the business of the [`Tracer`] behind the scope.
//!
//! Every architecture is a folder with the same files: `config` reads Hugging Face's
//! `config.json`, `model` has the tree and the mathematics.
#![forbid(unsafe_code)]

mod config;
mod fields;
mod forms;
pub mod gpt2;
pub mod layers;
pub mod llama;
mod model;
mod module;
mod plain;
mod scope;

pub use config::{ConfigError, from_file, from_json};
pub use forms::Forms;
pub use layers::loss::{IGNORED, label_count};
pub use model::{CausalLm, Dimensions, Loss};
pub use module::{Initializer, Module, Parameter};
pub use plain::Plain;
pub use scope::{Body, Layer, LayerBody, Place, Scope, Tracer};
