//! Models: Hugging Face configs to traced computations.
//!
//! A model is single-device code, written once through a [`Scope`], which declares and returns
//! parameters where they are used. Its [`Module`] tree, which describes the parameters before any
//! exists, comes from tracing it without values. Where parameters live, whether layers are scanned
//! and what is recomputed in the backward pass is decided by the [`Tracer`] behind the scope.
//! Inputs and loss are defined by a [`Task`].
//!
//! Every architecture is a folder with the same files: `config` reads Hugging Face's
//! `config.json`, `model` defines the computation, and one line of `registry` adds it. Other crates
//! [`register`] theirs:
//!
//! ```
//! use fullshard_graph::{Result, Tensor};
//! use fullshard_models::{
//!     Architecture, CausalLm, Dimensions, Model, Scope, boxed, from_json, register,
//! };
//!
//! #[derive(Debug)]
//! struct Tiny {
//!     vocabulary: usize,
//!     width: usize,
//!     depth: usize,
//! }
//!
//! impl Model for Tiny {
//!     fn class(&self) -> &'static str {
//!         "TinyForCausalLM"
//!     }
//!
//!     fn task(&self) -> CausalLm {
//!         CausalLm { vocabulary: self.vocabulary }
//!     }
//!
//!     fn dimensions(&self) -> Dimensions {
//!         let (layers, hidden, vocabulary) = (self.depth, self.width, self.vocabulary);
//!         Dimensions { layers, hidden, vocabulary, positions: 64, ..Dimensions::default() }
//!     }
//!
//!     fn forward(&self, nn: &Scope<'_>, tokens: &Tensor) -> Result<Tensor> {
//!         let x = nn.embedding("wte", tokens, self.vocabulary, self.width)?;
//!         let x = nn.layers("h", "TinyBlock", self.depth, &x, |nn, x| {
//!             let inner = nn.linear("up", &nn.layer_norm("ln", x)?, 4 * self.width)?;
//!             x + nn.linear("down", &inner.gelu()?, self.width)?
//!         })?;
//!         nn.linear("head", &nn.layer_norm("ln_f", &x)?, self.vocabulary)
//!     }
//! }
//!
//! # fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
//! register(Architecture {
//!     model_type: "tiny",
//!     class: "TinyForCausalLM",
//!     defaults: || serde_json::json!({"model_type": "tiny", "hidden_size": 8}),
//!     read: |fields| {
//!         let width = fields.size(&["hidden_size"], 8)?;
//!         Ok(boxed(Tiny { vocabulary: 100, width, depth: 2 })?)
//!     },
//! })?;
//! let model = from_json("{\"model_type\": \"tiny\", \"hidden_size\": 16}")?;
//! let tree = model.tree();
//! assert_eq!(tree.named_parameters()[0].0, "wte.weight");
//! assert_eq!(tree.elements(), 100 * 16 + 2 * (32 + 16 * 64 + 64 + 64 * 16 + 16) + 32 + 16 * 100 + 100);
//! # Ok(()) }
//! ```
#![forbid(unsafe_code)]

mod annotations;
mod config;
mod context_parallel;
mod declare;
mod fields;
pub mod gpt2;
pub mod layers;
pub mod llama;
mod lowering;
mod model;
mod module;
mod nearest;
mod plain;
mod registry;
mod scope;
mod task;
mod tensor_parallel;
mod tracer;

pub use annotations::{Annotations, DimNames};
pub use config::{ConfigError, default_config, from_file, from_json};
pub use context_parallel::ContextAxis;
pub use declare::{Declared, declare};
pub use fields::Fields;
pub use layers::loss::{IGNORED, label_count};
pub use lowering::LoweringOptions;
pub use model::{AnyModel, Dimensions, Model, boxed};
pub use module::{Initializer, Module, Parameter};
pub use nearest::{distance, nearest};
pub use plain::Plain;
pub use registry::{Architecture, NameTaken, architectures, register};
pub use scope::Scope;
pub use task::{CausalLm, FromTensors, InputSpec, Loss, Task, take_fields};
pub use tensor_parallel::{TensorParallel, slice_size};
pub use tracer::{Activations, Body, Declaration, Layer, LayerBody, Place, Tracer};
