//! Architectures by Hugging Face's `model_type`: built-in, and registered by other crates.

use crate::config::ConfigError;
use crate::fields::Fields;
use crate::model::AnyModel;
use crate::{gpt2, llama};
use serde_json::Value;
use std::sync::{PoisonError, RwLock};

/// A model architecture that a `config.json` can name.
#[derive(Debug, Clone, Copy)]
pub struct Architecture {
    /// Hugging Face's `model_type`, such as `gpt2`.
    pub model_type: &'static str,
    /// The class that `architectures` names, such as `GPT2LMHeadModel`.
    pub class: &'static str,
    /// The config with all defaults, which defines the keys that can be overridden and their types.
    pub defaults: fn() -> Value,
    /// Builds the model from a config; see [`boxed`](crate::boxed).
    pub read: fn(&Fields<'_>) -> Result<Box<dyn AnyModel>, ConfigError>,
}

/// Built-in architectures.
const BUILT_IN: &[Architecture] = &[gpt2::ARCHITECTURE, llama::ARCHITECTURE];

/// Architectures registered by other crates.
static REGISTERED: RwLock<Vec<Architecture>> = RwLock::new(Vec::new());

/// An architecture that cannot be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the architecture `{name}` is already registered; choose another name")]
pub struct NameTaken {
    /// The `model_type` or class that is already registered.
    pub name: &'static str,
}

/// All architectures: built-in ones, then others in registration order.
pub fn architectures() -> Vec<Architecture> {
    let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
    [BUILT_IN, &registered].concat()
}

/// Registers an architecture of another crate.
pub fn register(architecture: Architecture) -> Result<(), NameTaken> {
    let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
    for known in BUILT_IN.iter().chain(registered.iter()) {
        for (name, taken) in
            [(architecture.model_type, known.model_type), (architecture.class, known.class)]
        {
            if name == taken {
                return Err(NameTaken { name });
            }
        }
    }
    registered.push(architecture);
    Ok(())
}
