//! From a module tree to FSDP units: which module gathers which parameters.
//!
//! A unit owns every parameter beneath it that no unit inside it owns. Tied weights are one
//! parameter with several users; it is owned by the innermost unit that has all of them in it, so
//! that no wrapping can untie them.

mod error;
mod frozen;
mod paths;
mod plan;
mod policy;
mod tensors;

pub use error::WrapError;
pub use frozen::frozen;
pub(crate) use plan::aligned;
pub use plan::{Column, Tied, UnitGroup, WrapPlan};
pub(crate) use policy::block_classes;

use crate::config::WrapPolicy;
use fullshard_models::Module;
use paths::contains;
use tensors::tensors;

/// A part of the model whose parameters are gathered together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// The path of its module, empty for the root.
    pub path: String,
    /// The class of its module.
    pub class: &'static str,
    /// The full names of the parameters it owns, in the order of the tree. Tied ones are listed
    /// once, under the name that the others are tied to.
    pub parameters: Vec<String>,
    /// The number of elements of those.
    pub elements: usize,
}

/// The units of a model: the root first, the others in the order of the tree, parents before
/// their children.
///
/// By class, every module of one of the classes is a unit, also inside others. By size, a module
/// is a unit if the parameters it can own, less those of units inside it, have at least that many
/// elements; a weight tied to one outside the module cannot be owned inside and does not count.
/// Modules inside a `MultiheadAttention` are never units, nor are lists.
pub fn units(tree: &Module, policy: &WrapPolicy) -> Result<Vec<Unit>, WrapError> {
    let tensors = tensors(tree)?;
    let modules = policy::wrapped(tree, policy, &tensors)?;
    let unit = |(path, class)| Unit { path, class, parameters: Vec::new(), elements: 0 };
    let mut units: Vec<Unit> = modules.into_iter().map(unit).collect();
    for tensor in tensors {
        // Parents come first, so the last unit that has every user in it is the innermost.
        let owner = units.iter_mut().rev().find(|unit| contains(&unit.path, &tensor.home));
        if let Some(owner) = owner {
            owner.elements += tensor.elements;
            owner.parameters.push(tensor.name);
        }
    }
    Ok(units)
}
