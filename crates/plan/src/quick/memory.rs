//! What a step needs, from the recipe's estimate.

use crate::error::Error;
use crate::machine::Machine;
use crate::report::{Memory, Part};
use fullshard_train::Recipe;

/// The memory of one device.
pub(super) fn memory(recipe: &Recipe, machine: &Machine) -> Result<Memory, Error> {
    let estimate = recipe.estimate()?;
    let parts = [
        ("parameters", estimate.parameters),
        ("optimizer", estimate.optimizer),
        ("gradients", estimate.gradients),
        ("activations", estimate.activations),
        ("temporaries", estimate.gathered + estimate.logits),
    ];
    Ok(Memory {
        limit: machine.memory,
        total: parts.iter().map(|(_, bytes)| bytes).sum(),
        parts: parts.map(|(what, bytes)| Part { what, bytes }).to_vec(),
        largest: Vec::new(),
    })
}
