//! Llama.

mod config;
mod model;

pub use config::LlamaConfig;
pub use model::Llama;
