//! AdamW: Adam with decoupled weight decay.

use crate::arguments::{Arguments, at_least_zero, fraction};
use crate::error::Error;
use crate::named::{OptimizerKind, OptimizerOptions};
use crate::optimizer::{Optimizer, Slot, SlotKind, Update, Updated, check, unpack};
use crate::shard::Shard;
use fullshard_graph::Result;

/// AdamW, with torch's defaults except for weight decay, which is Trainer's.
///
/// The parameter first decays by the learning rate times `weight_decay`; moments are
/// bias-corrected, and `epsilon` is added outside the square root.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// The decay of the running mean of gradients.
    pub beta1: f64,
    /// The decay of the running mean of squared gradients.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// The weight decay, in units of the learning rate.
    pub weight_decay: f64,
}

impl Default for AdamW {
    fn default() -> AdamW {
        AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 }
    }
}

/// AdamW by name. All names are the same here: they only differ in torch's implementation.
pub(crate) const KIND: OptimizerKind = OptimizerKind {
    names: &["adamw", "adamw_torch", "adamw_torch_fused", "adamw_hf"],
    make: |options| Ok(Box::new(from_options(options)?)),
};

fn from_options(options: &OptimizerOptions) -> std::result::Result<AdamW, Error> {
    Arguments::parse("AdamW", &options.arguments, &[])?;
    fraction("adam_beta1", options.adam_beta1)?;
    fraction("adam_beta2", options.adam_beta2)?;
    at_least_zero("adam_epsilon", options.adam_epsilon)?;
    Ok(AdamW {
        beta1: options.adam_beta1,
        beta2: options.adam_beta2,
        epsilon: options.adam_epsilon,
        weight_decay: options.weight_decay,
    })
}

/// The scalars of a step: one minus the decay, the step size, and the root of the bias correction
/// of the second moment.
const SCALARS: usize = 3;

impl Optimizer for AdamW {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn slots(&self, _: &Shard) -> Vec<Slot> {
        ["exp_avg", "exp_avg_sq"].map(|name| Slot { name, kind: SlotKind::Like }).into()
    }

    fn scalars(&self, step: u64, learning_rate: f64) -> Vec<f32> {
        let correction = |beta: f64| 1.0 - beta.powf(step as f64);
        let decay_factor = 1.0 - learning_rate * self.weight_decay;
        let size = learning_rate / correction(self.beta1);
        vec![decay_factor as f32, size as f32, correction(self.beta2).sqrt() as f32]
    }

    fn scalar_count(&self) -> usize {
        SCALARS
    }

    fn update(&self, parameters: Vec<Update>) -> Result<Vec<Updated>> {
        parameters.iter().map(|update| self.update_one(update)).collect()
    }
}

impl AdamW {
    fn update_one(&self, update: &Update) -> Result<Updated> {
        check("adamw", update, &self.slots(&update.shard))?;
        let [decay_factor, size, correction]: &[_; SCALARS] = &unpack("adamw", &update.scalars)?;
        let gradient = &update.gradient;
        let first = &update.slots[0];
        let first = (first + ((gradient - first)? * (1.0 - self.beta1))?)?;
        let second = (&update.slots[1] * self.beta2)?;
        let second = (second + (gradient.square()? * (1.0 - self.beta2))?)?;
        let root = ((second.sqrt()? / correction)? + self.epsilon)?;
        let decays = update.decays && self.weight_decay != 0.0;
        let parameter =
            if decays { (&update.parameter * decay_factor)? } else { update.parameter.clone() };
        let parameter = (parameter - ((&first / root)? * size)?)?;
        Ok(Updated { parameter, slots: vec![first, second] })
    }
}
