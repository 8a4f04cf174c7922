//! Adafactor: a second moment factored into row and column means.

use crate::arguments::{Arguments, at_least_zero, fraction, require};
use crate::error::Error;
use crate::factors::Factors;
use crate::named::{OptimizerKind, OptimizerOptions};
use crate::optimizer::{Optimizer, Slot, SlotKind, Update, Updated, check, unpack};
use crate::shard::Shard;
use crate::sums::sum_over_devices;
use fullshard_graph::{DType, Result, Tensor, full};

/// Adafactor, as in Hugging Face's library, for sharded parameters.
///
/// Parameters of rank two or more have a factored second moment, with row and column means: the
/// last two dimensions are a matrix, those before are batch dimensions, whatever the sharding.
/// Others have a second moment per element. An update takes two all-reduces, whatever the number
/// of parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adafactor {
    /// Added to squared gradients.
    pub epsilon: f64,
    /// The lower bound of the parameter scale in `scale_parameter`.
    pub scale_epsilon: f64,
    /// Updates with an RMS above this are scaled down to it.
    pub clip_threshold: f64,
    /// The exponent, below zero, of the step in the weight of a new squared gradient.
    pub decay_rate: f64,
    /// The decay of the running mean of updates; `None` for no running mean.
    pub beta1: Option<f64>,
    /// The weight decay, in units of the step size.
    pub weight_decay: f64,
    /// Whether steps are scaled by the RMS of the parameter.
    pub scale_parameter: bool,
    /// Where the step size comes from.
    pub step_size: StepSize,
}

/// Where Adafactor's step size comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepSize {
    /// The learning rate.
    LearningRate,
    /// From the step alone: one over its square root, but at most 0.01, or, with warmup, 1e-6 times
    /// the step. The learning rate is not used.
    Relative {
        /// Whether to use warmup.
        warmup: bool,
    },
}

/// Adafactor by name.
pub(crate) const KIND: OptimizerKind =
    OptimizerKind { names: &["adafactor"], make: |options| Ok(Box::new(from_options(options)?)) };

fn from_options(options: &OptimizerOptions) -> std::result::Result<Adafactor, Error> {
    let known = &[
        "scale_parameter",
        "relative_step",
        "warmup_init",
        "beta1",
        "clip_threshold",
        "decay_rate",
        "eps1",
        "eps2",
    ];
    let arguments = Arguments::parse("Adafactor", &options.arguments, known)?;
    let trainer = Adafactor::trainer();
    let relative = arguments.flag("relative_step")?.unwrap_or(false);
    let warmup = arguments.flag("warmup_init")?.unwrap_or(false);
    let step_size = match (relative, warmup, options.learning_rate) {
        (true, _, Some(learning_rate)) => {
            return Err(Error::LearningRateWithRelativeStep { learning_rate });
        }
        (true, warmup, None) => StepSize::Relative { warmup },
        (false, true, _) => return Err(Error::WarmupWithoutRelativeStep),
        (false, false, _) => StepSize::LearningRate,
    };
    let adafactor = Adafactor {
        step_size,
        scale_parameter: arguments.flag("scale_parameter")?.unwrap_or(trainer.scale_parameter),
        beta1: arguments.number("beta1")?.or(trainer.beta1),
        clip_threshold: arguments.number("clip_threshold")?.unwrap_or(trainer.clip_threshold),
        decay_rate: arguments.number("decay_rate")?.unwrap_or(trainer.decay_rate),
        epsilon: arguments.number("eps1")?.unwrap_or(trainer.epsilon),
        scale_epsilon: arguments.number("eps2")?.unwrap_or(trainer.scale_epsilon),
        weight_decay: options.weight_decay,
    };
    adafactor.beta1.map_or(Ok(()), |beta1| fraction("beta1", beta1))?;
    let above_zero = |value: f64| value > 0.0;
    require("clip_threshold", adafactor.clip_threshold, above_zero, "above 0")?;
    require("eps1", adafactor.epsilon, above_zero, "above 0")?;
    require("decay_rate", adafactor.decay_rate, |rate| rate < 0.0, "below 0")?;
    at_least_zero("eps2", adafactor.scale_epsilon)?;
    Ok(adafactor)
}

/// The scalars of a step: step size, and the weights of the old and the new second moment.
const SCALARS: usize = 3;

/// An update after the second moment has been updated.
struct Pending {
    /// The direction, before clipping.
    direction: Tensor,
    second: Vec<Tensor>,
    /// The step size of each layer.
    size: Tensor,
}

impl Adafactor {
    /// As in Trainer: the step size is the learning rate, not scaled by the parameter.
    pub fn trainer() -> Adafactor {
        Adafactor {
            scale_parameter: false,
            step_size: StepSize::LearningRate,
            ..Adafactor::paper()
        }
    }

    /// As in the paper: relative step size, scaled by the parameter, without warmup.
    pub fn paper() -> Adafactor {
        Adafactor {
            epsilon: 1e-30,
            scale_epsilon: 1e-3,
            clip_threshold: 1.0,
            decay_rate: -0.8,
            beta1: None,
            weight_decay: 0.0,
            scale_parameter: true,
            step_size: StepSize::Relative { warmup: false },
        }
    }

    /// The local sums that the second moment needs: squared gradients over rows and columns, and
    /// the squared parameter.
    fn first_sums(&self, update: &Update, matrices: Option<&Factors>) -> Result<Vec<Tensor>> {
        let mut sums = Vec::new();
        if let Some(matrices) = matrices {
            let (rows, columns) = matrices.sums(&update.gradient.square()?)?;
            sums.extend([rows, columns]);
        }
        if self.scale_parameter {
            sums.push(layer_squares(&update.parameter, &update.shard)?);
        }
        Ok(sums)
    }

    fn pending(
        &self,
        update: &Update,
        matrices: Option<&Factors>,
        sums: &[Tensor],
    ) -> Result<Pending> {
        let [size, beta2, new]: &[_; SCALARS] = &unpack("adafactor", &update.scalars)?;
        let update_moment = |old: &Tensor, squares: Tensor| {
            let squares = (squares + self.epsilon)?;
            (old.reshape(squares.dims())? * beta2)? + (squares * new)?
        };
        let (inverse_root, second) = match matrices {
            Some(matrices) => {
                let (row_length, column_length) = matrix_lengths(&update.shard);
                let rows = update_moment(&update.slots[0], (&sums[0] / row_length as f64)?)?;
                let columns = update_moment(&update.slots[1], (&sums[1] / column_length as f64)?)?;
                let mean = rows.mean(&[2])?.expand(2)?;
                let root = matrices.outer_products(&(&rows / mean)?.rsqrt()?, &columns.rsqrt()?)?;
                (root, vec![rows, columns])
            }
            None => {
                let second = update_moment(&update.slots[0], update.gradient.square()?)?;
                (second.rsqrt()?, vec![second])
            }
        };
        let size = match sums.last().filter(|_| self.scale_parameter) {
            Some(squares) => {
                let min = full(DType::F32, &[], self.scale_epsilon)?;
                (root_mean(squares, &update.shard)?.maximum(&min)? * size)?
            }
            None => size.clone(),
        };
        Ok(Pending { direction: (inverse_root * &update.gradient)?, second, size })
    }

    fn finish(&self, update: Update, pending: Pending, squares: &Tensor) -> Result<Updated> {
        let shard = &update.shard;
        let excess = (root_mean(squares, shard)? / self.clip_threshold)?;
        let excess = excess.maximum(&full(DType::F32, &[], 1.0)?)?;
        let size = for_layers(&pending.size, shard)?;
        let mut step = ((pending.direction / for_layers(&excess, shard)?)? * &size)?;
        let old_slots = update.slots.iter().take(pending.second.len());
        let slots = pending.second.iter().zip(old_slots);
        let mut slots =
            slots.map(|(new, old)| new.reshape(old.dims())).collect::<Result<Vec<_>>>()?;
        if let (Some(beta1), Some(mean)) = (self.beta1, update.slots.last()) {
            step = ((mean * beta1)? + (step * (1.0 - beta1))?)?;
            slots.push(step.clone());
        }
        let mut parameter = update.parameter;
        if update.decays && self.weight_decay != 0.0 {
            parameter = (&parameter - (&parameter * (size * self.weight_decay)?)?)?;
        }
        Ok(Updated { parameter: (parameter - step)?, slots })
    }
}

impl Optimizer for Adafactor {
    fn name(&self) -> &'static str {
        "adafactor"
    }

    fn slots(&self, shard: &Shard) -> Vec<Slot> {
        let mut slots = match shard.dims.as_slice() {
            [leading @ .., rows, columns] => {
                let kind = |last: usize| {
                    let dims: Vec<usize> = leading.iter().copied().chain([last]).collect();
                    SlotKind::Replicated(shard.stacked(&dims))
                };
                vec![
                    Slot { name: "exp_avg_sq_row", kind: kind(*rows) },
                    Slot { name: "exp_avg_sq_col", kind: kind(*columns) },
                ]
            }
            _ => vec![Slot { name: "exp_avg_sq", kind: SlotKind::Like }],
        };
        if self.beta1.is_some() {
            slots.push(Slot { name: "exp_avg", kind: SlotKind::Like });
        }
        slots
    }

    fn scalars(&self, step: u64, learning_rate: f64) -> Vec<f32> {
        let step = step as f64;
        let size = match self.step_size {
            StepSize::LearningRate => learning_rate,
            StepSize::Relative { warmup } => {
                let limit = if warmup { 1e-6 * step } else { 1e-2 };
                limit.min(1.0 / step.sqrt())
            }
        };
        let beta2 = 1.0 - step.powf(self.decay_rate);
        vec![size as f32, beta2 as f32, (1.0 - beta2) as f32]
    }

    fn scalar_count(&self) -> usize {
        SCALARS
    }

    fn update(&self, parameters: Vec<Update>) -> Result<Vec<Updated>> {
        let matrices = parameters
            .iter()
            .map(|update| {
                check("adafactor", update, &self.slots(&update.shard))?;
                Factors::of(&update.shard)
            })
            .collect::<Result<Vec<_>>>()?;
        let sums = parameters
            .iter()
            .zip(&matrices)
            .map(|(update, matrices)| {
                Ok((self.first_sums(update, matrices.as_ref())?, &update.shard))
            })
            .collect::<Result<Vec<_>>>()?;
        let sums = sum_over_devices(&sums)?;
        let pending = (parameters.iter().zip(&matrices).zip(&sums))
            .map(|((update, matrices), sums)| self.pending(update, matrices.as_ref(), sums))
            .collect::<Result<Vec<_>>>()?;
        let squares = parameters
            .iter()
            .zip(&pending)
            .map(|(update, pending)| {
                let squares = layer_squares(&pending.direction, &update.shard)?;
                Ok((vec![squares], &update.shard))
            })
            .collect::<Result<Vec<_>>>()?;
        let squares = sum_over_devices(&squares)?;
        (parameters.into_iter().zip(pending).zip(&squares))
            .map(|((update, pending), squares)| self.finish(update, pending, &squares[0]))
            .collect()
    }
}

/// The number of elements per row, and per column, of a parameter of rank two or more.
fn matrix_lengths(shard: &Shard) -> (usize, usize) {
    match shard.dims.as_slice() {
        [.., rows, columns] => (*columns, *rows),
        _ => (1, 1),
    }
}

/// The sum of squares of each layer.
fn layer_squares(tensor: &Tensor, shard: &Shard) -> Result<Tensor> {
    let first = usize::from(shard.stack.is_some());
    tensor.square()?.sum(&(first..tensor.rank()).collect::<Vec<_>>())
}

/// The RMS of each layer, without padding.
fn root_mean(squares: &Tensor, shard: &Shard) -> Result<Tensor> {
    (squares / shard.elements().max(1) as f64)?.sqrt()
}

/// A number per layer, or one for all, broadcastable to the local tensor.
fn for_layers(numbers: &Tensor, shard: &Shard) -> Result<Tensor> {
    let mut dims = numbers.dims().to_vec();
    if !dims.is_empty() {
        dims.resize(shard.local_dims().len(), 1);
    }
    numbers.reshape(&dims)
}
