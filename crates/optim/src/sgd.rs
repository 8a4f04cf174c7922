//! Stochastic gradient descent, with momentum.

use crate::arguments::{Arguments, at_least_zero};
use crate::error::Error;
use crate::named::{OptimizerKind, OptimizerOptions};
use crate::optimizer::{Optimizer, Slot, SlotKind, Update, Updated, check, unpack};
use crate::shard::Shard;
use fullshard_graph::Result;

/// Stochastic gradient descent, as in torch.
///
/// Weight decay is added to the gradient, as in `torch.optim.SGD`, which Trainer uses for
/// `--optim sgd`: it goes through the momentum, unlike that of [`AdamW`](crate::AdamW).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sgd {
    /// The decay of the momentum buffer; without momentum there is no state.
    pub momentum: f64,
    /// The dampening of gradients in the momentum buffer, except for the first.
    pub dampening: f64,
    /// Whether to use Nesterov momentum.
    pub nesterov: bool,
    /// The weight decay: the multiple of the parameter added to its gradient.
    pub weight_decay: f64,
}

/// SGD by name.
pub(crate) const KIND: OptimizerKind =
    OptimizerKind { names: &["sgd"], make: |options| Ok(Box::new(from_options(options)?)) };

fn from_options(options: &OptimizerOptions) -> std::result::Result<Sgd, Error> {
    let known = &["momentum", "dampening", "nesterov", "weight_decay"];
    let arguments = Arguments::parse("SGD", &options.arguments, known)?;
    let sgd = Sgd {
        momentum: arguments.number("momentum")?.unwrap_or(0.0),
        dampening: arguments.number("dampening")?.unwrap_or(0.0),
        nesterov: arguments.flag("nesterov")?.unwrap_or(false),
        weight_decay: arguments.number("weight_decay")?.unwrap_or(options.weight_decay),
    };
    at_least_zero("momentum", sgd.momentum)?;
    at_least_zero("weight_decay", sgd.weight_decay)?;
    if sgd.nesterov && (sgd.momentum == 0.0 || sgd.dampening != 0.0) {
        return Err(Error::NesterovWithoutMomentum);
    }
    Ok(sgd)
}

/// The scalars of a step: the learning rate, and the weight of the gradient in the momentum buffer.
const SCALARS: usize = 2;

impl Optimizer for Sgd {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn slots(&self, _: &Shard) -> Vec<Slot> {
        let slot = Slot { name: "momentum_buffer", kind: SlotKind::Like };
        if self.momentum == 0.0 { vec![] } else { vec![slot] }
    }

    fn scalars(&self, step: u64, learning_rate: f64) -> Vec<f32> {
        let gain = if step == 1 { 1.0 } else { 1.0 - self.dampening };
        vec![learning_rate as f32, gain as f32]
    }

    fn scalar_count(&self) -> usize {
        SCALARS
    }

    fn update(&self, parameters: Vec<Update>) -> Result<Vec<Updated>> {
        parameters.iter().map(|update| self.update_one(update)).collect()
    }
}

impl Sgd {
    fn update_one(&self, update: &Update) -> Result<Updated> {
        check("sgd", update, &self.slots(&update.shard))?;
        let [learning_rate, gain]: &[_; SCALARS] = &unpack("sgd", &update.scalars)?;
        let decays = update.decays && self.weight_decay != 0.0;
        let gradient = if decays {
            (&update.gradient + (&update.parameter * self.weight_decay)?)?
        } else {
            update.gradient.clone()
        };
        let sum = update
            .slots
            .first()
            .map(|sum| (sum * self.momentum)? + (&gradient * gain)?)
            .transpose()?;
        let step = match &sum {
            Some(sum) if self.nesterov => (&gradient + (sum * self.momentum)?)?,
            Some(sum) => sum.clone(),
            None => gradient,
        };
        let parameter = (&update.parameter - (step * learning_rate)?)?;
        Ok(Updated { parameter, slots: sum.into_iter().collect() })
    }
}
