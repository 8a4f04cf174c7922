//! Optimizers by the names and options of Hugging Face's Trainer: built-in, and registered by other
//! crates.

use crate::arguments::at_least_zero;
use crate::{AdamW, Error, Optimizer, adafactor, adamw, sgd};
use std::sync::{PoisonError, RwLock};

/// An optimizer that can be selected by name.
#[derive(Debug, Clone, Copy)]
pub struct OptimizerKind {
    /// Its names.
    pub names: &'static [&'static str],
    /// Builds it from options.
    pub make: fn(&OptimizerOptions) -> Result<Box<dyn Optimizer>, Error>,
}

/// Built-in optimizers.
const BUILT_IN: &[OptimizerKind] = &[adamw::KIND, adafactor::KIND, sgd::KIND];

/// Optimizers registered by other crates.
static REGISTERED: RwLock<Vec<OptimizerKind>> = RwLock::new(Vec::new());

/// Trainer's optimizer flags, with their defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct OptimizerOptions {
    /// `learning_rate`, if set: Adafactor with `relative_step` rejects it. The learning rate of a
    /// step is passed to [`Optimizer::scalars`].
    pub learning_rate: Option<f64>,
    /// `weight_decay`.
    pub weight_decay: f64,
    /// `adam_beta1`.
    pub adam_beta1: f64,
    /// `adam_beta2`.
    pub adam_beta2: f64,
    /// `adam_epsilon`.
    pub adam_epsilon: f64,
    /// `optim_args`: more arguments, as `key=value,key=value`. SGD takes `momentum`,
    /// `dampening`, `nesterov` and `weight_decay`; Adafactor takes `scale_parameter`,
    /// `relative_step`, `warmup_init`, `beta1`, `clip_threshold`, `decay_rate`, `eps1` and
    /// `eps2`.
    pub arguments: String,
}

impl Default for OptimizerOptions {
    fn default() -> OptimizerOptions {
        let AdamW { beta1, beta2, epsilon, weight_decay } = AdamW::default();
        OptimizerOptions {
            learning_rate: None,
            weight_decay,
            adam_beta1: beta1,
            adam_beta2: beta2,
            adam_epsilon: epsilon,
            arguments: String::new(),
        }
    }
}

/// The names of all optimizers: built-in ones, then others in registration order.
pub fn optimizers() -> Vec<&'static str> {
    kinds().iter().flat_map(|kind| kind.names).copied().collect()
}

/// Registers an optimizer of another crate.
pub fn register(kind: OptimizerKind) -> Result<(), Error> {
    let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
    let taken = |name: &&&str| BUILT_IN.iter().chain(&*registered).any(|k| k.names.contains(name));
    if let Some(name) = kind.names.iter().find(taken) {
        return Err(Error::NameTaken { name });
    }
    registered.push(kind);
    Ok(())
}

/// The optimizer with a name.
pub fn from_name(name: &str, options: &OptimizerOptions) -> Result<Box<dyn Optimizer>, Error> {
    at_least_zero("weight_decay", options.weight_decay)?;
    match kinds().iter().find(|kind| kind.names.contains(&name)) {
        Some(kind) => (kind.make)(options),
        None => Err(Error::UnknownOptimizer { name: name.to_owned(), known: optimizers() }),
    }
}

fn kinds() -> Vec<OptimizerKind> {
    let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
    [BUILT_IN, &registered].concat()
}
