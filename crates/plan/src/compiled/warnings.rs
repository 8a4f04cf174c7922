//! What is in the way of a compiled step, and what to do about it.

use super::alive::Peak;
use super::time::Played;
use crate::machine::Machine;
use crate::report::Warning;
use fullshard_train::Recipe;

/// Everything worth a word.
pub fn warnings(recipe: &Recipe, machine: &Machine, played: &Played, peak: &Peak) -> Vec<Warning> {
    let _ = (recipe, machine, played, peak);
    Vec::new()
}
