//! GPT-2.

mod config;
mod model;

pub use config::Gpt2Config;
pub use model::Gpt2;
