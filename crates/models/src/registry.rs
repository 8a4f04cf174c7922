//! Architectures by Hugging Face's `model_type`: ours, and those that other crates register.

use crate::config::ConfigError;
use crate::fields::Fields;
use crate::model::AnyModel;
use crate::{gpt2, llama};
use serde_json::Value;
use std::sync::{PoisonError, RwLock};

/// A kind of model that a `config.json` can be of.
#[derive(Debug, Clone, Copy)]
pub struct Architecture {
    /// Hugging Face's `model_type`, such as `gpt2`.
    pub model_type: &'static str,
    /// The class that `architectures` names, such as `GPT2LMHeadModel`.
    pub class: &'static str,
    /// The config with every default, which says what can be overridden and of what kind it is.
    pub defaults: fn() -> Value,
    /// Reads a config. [`boxed`](crate::boxed) turns a model into what is given.
    pub read: fn(&Fields<'_>) -> Result<Box<dyn AnyModel>, ConfigError>,
}

/// Ours.
const BUILT_IN: &[Architecture] = &[gpt2::ARCHITECTURE, llama::ARCHITECTURE];

/// Those of other crates.
static REGISTERED: RwLock<Vec<Architecture>> = RwLock::new(Vec::new());

/// An architecture that cannot be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is an architecture already; register the other under a name of its own")]
pub struct NameTaken {
    /// The `model_type` or class that is taken.
    pub name: &'static str,
}

/// Every architecture there is: ours, then others in the order of their registration.
pub fn architectures() -> Vec<Architecture> {
    let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
    [BUILT_IN, &registered].concat()
}

/// Adds an architecture of another crate, which configs can then be of.
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
