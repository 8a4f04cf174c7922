//! Parameters that are not trained.

use super::error::WrapError;
use super::paths::{distinct, numbered};
use super::tensors::tensors;
use crate::config::distance;
use fullshard_models::Module;

/// The full names of the parameters that patterns match, in the order of the tree.
///
/// A `*` matches anything, dots included. Tied weights are one tensor: a pattern that matches any
/// of its names freezes it, and it is named as in [`super::Unit`]. A pattern that matches nothing
/// is an error.
pub fn frozen(tree: &Module, patterns: &[String]) -> Result<Vec<String>, WrapError> {
    let tensors = tensors(tree)?;
    let mut frozen = vec![false; tensors.len()];
    for pattern in patterns {
        let mut matched = false;
        for (tensor, frozen) in tensors.iter().zip(&mut frozen) {
            if tensor.names().any(|name| matches(pattern, name)) {
                matched = true;
                *frozen = true;
            }
        }
        if !matched {
            let near = near(pattern, tensors.iter().flat_map(|tensor| tensor.names()));
            return Err(WrapError::NoMatch { pattern: pattern.clone(), near });
        }
    }
    let chosen = tensors.into_iter().zip(frozen).filter(|(_, frozen)| *frozen);
    Ok(chosen.map(|(tensor, _)| tensor.name).collect())
}

/// Whether a pattern with `*` in it matches a full name.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(start) else { return false };
    let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
    for part in middle.split('*') {
        let Some(at) = name.find(part) else { return false };
        name = &name[at + part.len()..];
    }
    name.ends_with(end)
}

/// The names most similar to a pattern, those of all layers as one.
fn near<'a>(pattern: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    const SHOWN: usize = 3;
    let mut near = distinct(names.map(numbered));
    near.sort_by_key(|name| distance(pattern, name));
    near.truncate(SHOWN);
    near
}
