//! AdamW: Adam with weight decay apart from the gradient.

use crate::arguments::{Arguments, at_least_zero, fraction};
use crate::error::Error;
use crate::named::{OptimizerKind, OptimizerOptions};
use crate::optimizer::{Optimizer, Slot, SlotKind, Update, Updated, check, unpack};
use crate::shard::Shard;
use fullshard_graph::Result;

/// AdamW, with torch's defaults but for weight decay, which is Trainer's.
///
/// The parameter first decays by the learning rate times `weight_decay`; moments are corrected
/// for having begun at zero, and `epsilon` is added outside the root.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// How much of the running mean of gradients stays.
    pub beta1: f64,
    /// How much of the running mean of squared gradients stays.
    pub beta2: f64,
    /// Added to the root of the squares.
    pub epsilon: f64,
    /// How fast parameters decay, in units of the learning rate.
    pub weight_decay: f64,
}

impl Default for AdamW {
    fn default() -> AdamW {
        AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 }
    }
}

/// AdamW by its names, which are all the same here: they only differ in how torch computes it.
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

/// The numbers of a step: what decay leaves, the size of the step, and the root of what the
/// second moment lacks.
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
        let kept = 1.0 - learning_rate * self.weight_decay;
        let size = learning_rate / correction(self.beta1);
        vec![kept as f32, size as f32, correction(self.beta2).sqrt() as f32]
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
        let [kept, size, correction]: &[_; SCALARS] = &unpack("adamw", &update.scalars)?;
        let gradient = &update.gradient;
        let first = &update.slots[0];
        let first = (first + ((gradient - first)? * (1.0 - self.beta1))?)?;
        let second = (&update.slots[1] * self.beta2)?;
        let second = (second + (gradient.square()? * (1.0 - self.beta2))?)?;
        let root = ((second.sqrt()? / correction)? + self.epsilon)?;
        let decays = update.decays && self.weight_decay != 0.0;
        let parameter = if decays { (&update.parameter * kept)? } else { update.parameter.clone() };
        let parameter = (parameter - ((&first / root)? * size)?)?;
        Ok(Updated { parameter, slots: vec![first, second] })
    }
}
