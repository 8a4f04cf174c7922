//! The module that an instruction belongs to, by the path that the tracer wrote in its metadata.
//!
//! Compilers keep these paths as the last part of `op_name`, with prefixes, and drop them for
//! instructions that they create. An instruction without a path belongs to the module that uses
//! its result, or else to the module of its operands.

use crate::describe::any_layer;
use fullshard_models::{AnyModel, Module};
use fullshard_pjrt::hlo::{Computation, Instruction, InstructionId};
use std::collections::HashMap;

/// A module in the forward or backward pass.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Owner {
    /// The path of the module, with a `*` for the layer number; empty for none.
    pub module: String,
    /// Whether it is the backward pass.
    pub backward: bool,
}

/// The paths of a model's modules.
pub struct Paths {
    /// First segments of paths.
    roots: Vec<String>,
    /// Paths of lists of layers, in which the tracer does not number the layers.
    lists: Vec<String>,
}

/// The tracer's prefix of paths in the backward pass.
const BACKWARD: &str = "backward";

/// The class of lists of modules.
const LIST: &str = "ModuleList";

/// The tracer's path of everything after the gradients.
pub const OPTIMIZER: &str = "optimizer";

impl Paths {
    /// The paths of a model's modules.
    pub fn new(model: &dyn AnyModel) -> Paths {
        let tree = model.tree();
        let mut lists = Vec::new();
        find_lists("", &tree, &mut lists);
        let roots = tree.children.iter().map(|(name, _)| name.clone());
        Paths { roots: roots.chain([OPTIMIZER.to_owned()]).collect(), lists }
    }

    /// No paths at all.
    #[cfg(test)]
    pub fn none() -> Paths {
        Paths { roots: Vec::new(), lists: Vec::new() }
    }

    /// The owner of each instruction of a computation.
    pub fn of(&self, computation: &Computation) -> HashMap<InstructionId, Owner> {
        let instructions = computation.instructions();
        let mut known: HashMap<InstructionId, Owner> = HashMap::new();
        for instruction in instructions {
            if let Some(owner) = self.read(&instruction.metadata.op_name) {
                known.insert(instruction.id, owner);
            }
        }
        // Users come after their operands, so one pass in each direction is enough.
        for user in instructions.iter().rev() {
            let Some(owner) = known.get(&user.id).cloned() else { continue };
            for operand in &user.operands {
                known.entry(*operand).or_insert_with(|| owner.clone());
            }
        }
        for instruction in instructions {
            let from = instruction.operands.iter().find_map(|operand| known.get(operand)).cloned();
            if let Some(from) = from {
                known.entry(instruction.id).or_insert(from);
            }
        }
        if known.values().any(|owner| owner.backward)
            && is_body(instructions)
            && !has_update(&known)
        {
            known.values_mut().for_each(|owner| owner.backward = true);
        }
        known
    }

    /// Parses the tracer's path, if there is one.
    pub fn read(&self, op_name: &str) -> Option<Owner> {
        let path = op_name.rsplit('/').next()?;
        let (backward, path) = match path.strip_prefix(BACKWARD) {
            Some(rest) => (true, rest.strip_prefix('.').unwrap_or(rest)),
            None => (false, path),
        };
        let root = path.split('.').next()?;
        if !self.roots.iter().any(|known| known == root) {
            return backward.then(|| Owner { module: String::new(), backward });
        }
        let path = any_layer(path);
        let starred = self.lists.iter().find_map(|list| {
            let rest = path.strip_prefix(list.as_str())?;
            let named = rest.is_empty() || rest.starts_with('.') && !rest.starts_with(".*");
            named.then(|| format!("{list}.*{rest}"))
        });
        Some(Owner { module: starred.unwrap_or(path), backward })
    }
}

/// The paths of all lists of modules in a tree.
fn find_lists(path: &str, module: &Module, lists: &mut Vec<String>) {
    for (name, child) in &module.children {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        match child.class == LIST {
            true => lists.push(path),
            false => find_lists(&path, child, lists),
        }
    }
}

/// Whether these are the instructions of a loop body, which takes one tuple. A body that contains
/// gradients is entirely backward, including recomputation.
fn is_body(instructions: &[Instruction]) -> bool {
    let mut parameters = instructions.iter().filter(|it| it.parameter_number.is_some());
    let first = parameters.next().is_some_and(|it| it.shape.members().is_some());
    first && parameters.next().is_none()
}

/// Whether the optimizer is among the owners: a loop of steps, with both passes in its body.
fn has_update(owners: &HashMap<InstructionId, Owner>) -> bool {
    owners.values().any(|owner| owner.module == OPTIMIZER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_fold_layers_and_mark_backward() {
        let config = r#"{"model_type": "gpt2", "vocab_size": 64, "n_positions": 16, "n_embd": 8,
            "n_layer": 2, "n_head": 2}"#;
        let paths = Paths::new(fullshard_models::from_json(config).unwrap().as_ref());
        let read = |name: &str| paths.read(name).map(|it| (it.module, it.backward));
        let is = |module: &str, backward| Some((module.to_owned(), backward));
        let c_fc = "transformer.h.*.mlp.c_fc";
        assert_eq!(read("transformer.h.mlp.c_fc"), is(c_fc, false));
        assert_eq!(read("transformer.h.3.mlp.c_fc"), is(c_fc, false));
        assert_eq!(read("while/body/backward.transformer.h.mlp.c_fc"), is(c_fc, true));
        assert_eq!(read("transformer.h"), is("transformer.h.*", false));
        assert_eq!(read("backward.lm_head"), is("lm_head", true));
        assert_eq!(read("optimizer"), is("optimizer", false));
        assert_eq!(read("backward"), is("", true));
        assert_eq!(read("reduce.3"), None);
    }
}
