//! The tensors of a model: its parameters, tied ones as one.

use super::error::WrapError;
use super::paths::{common, parent};
use fullshard_models::{Module, Parameter};
use std::collections::BTreeMap;

/// A parameter and all its users.
#[derive(Debug)]
pub(super) struct Tensor {
    /// Its full name.
    pub name: String,
    /// The full names of the parameters tied to it.
    pub tied: Vec<String>,
    /// The path of the innermost module that contains every user.
    pub home: String,
    /// The number of its elements.
    pub elements: usize,
}

impl Tensor {
    /// All its names, its own first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.name).chain(&self.tied).map(String::as_str)
    }
}

/// Every tensor of a model, in the order of the tree.
pub(super) fn tensors(tree: &Module) -> Result<Vec<Tensor>, WrapError> {
    let named = tree.named_parameters();
    let mut by_name: BTreeMap<&str, &Parameter> = BTreeMap::new();
    for (name, parameter) in &named {
        if by_name.insert(name, parameter).is_some() {
            return Err(WrapError::SameName { name: name.clone() });
        }
    }
    let mut ties: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (name, parameter) in &named {
        if let Some(other) = &parameter.tied_to {
            check_tie(name, parameter, other, by_name.get(other.as_str()).copied())?;
            ties.entry(other).or_default().push(name.clone());
        }
    }
    let own = named.iter().filter(|(_, parameter)| parameter.tied_to.is_none());
    let tensor = |(name, parameter): &(String, &Parameter)| {
        let tied = ties.get(name.as_str()).cloned().unwrap_or_default();
        let home = tied.iter().fold(parent(name), |home, user| common(home, user)).to_owned();
        Tensor { name: name.clone(), tied, home, elements: parameter.elements() }
    };
    Ok(own.map(tensor).collect())
}

fn check_tie(
    name: &str,
    parameter: &Parameter,
    other: &str,
    found: Option<&Parameter>,
) -> Result<(), WrapError> {
    let reason = match found {
        None => "which the model does not have".to_owned(),
        Some(found) => match &found.tied_to {
            Some(third) => {
                format!("which is itself tied to `{third}`: tie both to the same parameter")
            }
            None if found.dims != parameter.dims => {
                format!("which is {:?} and not {:?}", found.dims, parameter.dims)
            }
            None => return Ok(()),
        },
    };
    Err(WrapError::BadTie { name: name.to_owned(), other: other.to_owned(), reason })
}
