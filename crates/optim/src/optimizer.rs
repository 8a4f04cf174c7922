//! What all optimizers have in common.

use crate::shard::Shard;
use fullshard_graph::{DType, Error, Result, Tensor};

/// A tensor of state that an optimizer keeps for a parameter: `f32`, zeros before the first step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Its name, as in torch's state.
    pub name: &'static str,
    /// Its dimensions and where it lies.
    pub kind: SlotKind,
}

/// The dimensions of a slot and where it lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotKind {
    /// Dimensions and cut of the parameter.
    Like,
    /// Whole on every device, with these dimensions, the stack's first.
    Replicated(Vec<usize>),
}

/// A parameter about to be updated: what a device holds of it, all `f32`.
#[derive(Debug, Clone)]
pub struct Update {
    /// Where the part sits in the whole.
    pub shard: Shard,
    /// The parameter.
    pub parameter: Tensor,
    /// Its gradient, the same part of it.
    pub gradient: Tensor,
    /// The optimizer's state, in the order of [`Optimizer::slots`].
    pub slots: Vec<Tensor>,
    /// Whether weight decay applies to it.
    pub decays: bool,
    /// The numbers of the step as one vector, of [`Optimizer::scalars`].
    pub scalars: Tensor,
}

/// A parameter after its update.
#[derive(Debug, Clone)]
pub struct Updated {
    /// The parameter.
    pub parameter: Tensor,
    /// The optimizer's state.
    pub slots: Vec<Tensor>,
}

/// A rule that turns parameters, gradients and state into the next parameters and state.
///
/// Padding of parameters and gradients is zero and stays zero.
pub trait Optimizer {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// The state kept for a parameter.
    fn slots(&self, shard: &Shard) -> Vec<Slot>;

    /// The numbers that change from step to step, which is counted from 1. They are computed on
    /// the host in double precision.
    fn scalars(&self, step: u64, learning_rate: f64) -> Vec<f32>;

    /// How many numbers [`Optimizer::scalars`] gives.
    fn scalar_count(&self) -> usize;

    /// Traces the update of some parameters. If they are cut over more than one device, this must
    /// be traced in a region that is manual over their devices.
    fn update(&self, parameters: Vec<Update>) -> Result<Vec<Updated>>;
}

/// The numbers of a step, each as a tensor without dimensions.
pub(crate) fn unpack<const N: usize>(op: &str, scalars: &Tensor) -> Result<[Tensor; N]> {
    if scalars.dtype() != DType::F32 || scalars.dims() != [N] {
        let reason = format!("the numbers of a step are {}, not f32[{N}]", scalars.ty());
        return Err(Error::new(op, reason));
    }
    let numbers = scalars.split(0, N)?;
    let numbers = numbers.iter().map(|number| number.reshape(&[])).collect::<Result<Vec<_>>>()?;
    numbers.try_into().map_err(|_| Error::new(op, "a step without numbers"))
}

/// Whether the tensors of an update are those an optimizer expects.
pub(crate) fn check(op: &str, update: &Update, slots: &[Slot]) -> Result<()> {
    let shard = &update.shard;
    shard.check(op, "parameter", &update.parameter)?;
    shard.check(op, "gradient", &update.gradient)?;
    if update.slots.len() != slots.len() {
        let (found, expected) = (update.slots.len(), slots.len());
        return Err(Error::new(op, format!("{found} tensors of state, not {expected}")));
    }
    for (slot, tensor) in slots.iter().zip(&update.slots) {
        match &slot.kind {
            SlotKind::Like => shard.check(op, slot.name, tensor)?,
            SlotKind::Replicated(dims) if tensor.dims() != dims || tensor.dtype() != DType::F32 => {
                let reason = format!("{} is {}, not f32 of {dims:?}", slot.name, tensor.ty());
                return Err(Error::new(op, reason));
            }
            SlotKind::Replicated(_) => {}
        }
    }
    Ok(())
}
