//! The optimizer trait and its types.

use crate::shard::Shard;
use fullshard_graph::{DType, Error, Result, Tensor};

/// An optimizer state tensor of a parameter: `f32`, zeros before the first step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Its name, as in torch's state.
    pub name: &'static str,
    /// Its dimensions and sharding.
    pub kind: SlotKind,
}

/// The dimensions and sharding of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotKind {
    /// Dimensions and sharding of the parameter.
    Like,
    /// Replicated, with these dimensions, that of the stack first.
    Replicated(Vec<usize>),
}

/// A parameter to be updated: its local shard, all `f32`.
#[derive(Debug, Clone)]
pub struct Update {
    /// The position of the shard in the full parameter.
    pub shard: Shard,
    /// The parameter.
    pub parameter: Tensor,
    /// Its gradient, the same shard.
    pub gradient: Tensor,
    /// The optimizer state, in the order of [`Optimizer::slots`].
    pub slots: Vec<Tensor>,
    /// Whether weight decay applies to it.
    pub decays: bool,
    /// The scalars of the step as one vector; see [`Optimizer::scalars`].
    pub scalars: Tensor,
}

/// A parameter after its update.
#[derive(Debug, Clone)]
pub struct Updated {
    /// The parameter.
    pub parameter: Tensor,
    /// The optimizer state.
    pub slots: Vec<Tensor>,
}

/// Updates parameters and optimizer state from gradients.
///
/// Padding of parameters and gradients is zero and stays zero.
pub trait Optimizer {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// The state of a parameter.
    fn slots(&self, shard: &Shard) -> Vec<Slot>;

    /// The scalars of a step, counted from 1. They are computed on the host in double precision.
    fn scalars(&self, step: u64, learning_rate: f64) -> Vec<f32>;

    /// The number of scalars that [`Optimizer::scalars`] returns.
    fn scalar_count(&self) -> usize;

    /// Traces the update of some parameters. If they are sharded, this must be traced in a region
    /// that is manual over their devices.
    fn update(&self, parameters: Vec<Update>) -> Result<Vec<Updated>>;
}

/// The scalars of a step, each as a tensor without dimensions.
pub(crate) fn unpack<const N: usize>(op: &str, scalars: &Tensor) -> Result<[Tensor; N]> {
    if scalars.dtype() != DType::F32 || scalars.dims() != [N] {
        let reason = format!("the scalars of a step are {}, not f32[{N}]", scalars.ty());
        return Err(Error::new(op, reason));
    }
    let numbers = scalars.split(0, N)?;
    let numbers = numbers.iter().map(|number| number.reshape(&[])).collect::<Result<Vec<_>>>()?;
    numbers.try_into().map_err(|_| Error::new(op, "a step without scalars"))
}

/// Checks the tensors of an update.
pub(crate) fn check(op: &str, update: &Update, slots: &[Slot]) -> Result<()> {
    let shard = &update.shard;
    shard.check(op, "parameter", &update.parameter)?;
    shard.check(op, "gradient", &update.gradient)?;
    if update.slots.len() != slots.len() {
        let (found, expected) = (update.slots.len(), slots.len());
        return Err(Error::new(op, format!("expected {expected} state tensors, got {found}")));
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
