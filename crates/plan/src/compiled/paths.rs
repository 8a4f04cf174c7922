//! Which module an instruction belongs to, by the path that the tracer wrote beside it.
//!
//! Compilers keep these paths as the last part of `op_name`, drop them where they make
//! instructions of their own, and put prefixes before them. What has no path belongs where its
//! result is used, or else where its operands come from.

use fullshard_models::{AnyModel, Module};
use fullshard_pjrt::hlo::{Computation, Instruction, InstructionId};
use std::collections::HashMap;

/// A module on one of the two ways.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Belongs {
    /// The path of the module, with a `*` for the layer; empty for none.
    pub module: String,
    /// Whether it is the way back.
    pub backward: bool,
}

/// The paths of a model's modules.
pub struct Paths {
    /// What paths begin with.
    roots: Vec<String>,
    /// Paths of lists of layers, in which the tracer does not tell one layer from another.
    lists: Vec<String>,
}

/// What the tracer writes before paths on the way back.
const BACKWARD: &str = "backward";

/// The class of lists of modules.
const LIST: &str = "ModuleList";

/// What the tracer calls everything after gradients.
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

    /// What each instruction of a computation belongs to.
    pub fn of(&self, computation: &Computation) -> HashMap<InstructionId, Belongs> {
        let instructions = computation.instructions();
        let mut known: HashMap<InstructionId, Belongs> = HashMap::new();
        for instruction in instructions {
            if let Some(belongs) = self.read(&instruction.metadata.op_name) {
                known.insert(instruction.id, belongs);
            }
        }
        // Users come after what they use, so backwards one pass is enough, and forwards too.
        for user in instructions.iter().rev() {
            let Some(belongs) = known.get(&user.id).cloned() else { continue };
            for operand in &user.operands {
                known.entry(*operand).or_insert_with(|| belongs.clone());
            }
        }
        for instruction in instructions {
            let from = instruction.operands.iter().find_map(|operand| known.get(operand)).cloned();
            if let Some(from) = from {
                known.entry(instruction.id).or_insert(from);
            }
        }
        if known.values().any(|belongs| belongs.backward) && is_body(instructions) {
            known.values_mut().for_each(|belongs| belongs.backward = true);
        }
        known
    }

    /// What the tracer's path says, if there is one.
    fn read(&self, op_name: &str) -> Option<Belongs> {
        let path = op_name.rsplit('/').next()?;
        let (backward, path) = match path.strip_prefix(BACKWARD) {
            Some(rest) => (true, rest.strip_prefix('.').unwrap_or(rest)),
            None => (false, path),
        };
        let root = path.split('.').next()?;
        if !self.roots.iter().any(|known| known == root) {
            return backward.then(|| Belongs { module: String::new(), backward });
        }
        let path = any_layer(path);
        let starred = self.lists.iter().find_map(|list| {
            let rest = path.strip_prefix(list.as_str())?;
            let named = rest.is_empty() || rest.starts_with('.') && !rest.starts_with(".*");
            named.then(|| format!("{list}.*{rest}"))
        });
        Some(Belongs { module: starred.unwrap_or(path), backward })
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

/// A path with a `*` for the layer.
fn any_layer(path: &str) -> String {
    let segment = |segment| match segment {
        number if str::parse::<usize>(number).is_ok() => "*",
        name => name,
    };
    path.split('.').map(segment).collect::<Vec<_>>().join(".")
}

/// Whether these are the instructions of a loop's body, which takes one tuple. All of a body that
/// has gradients in it is the way back, also what is computed again there.
fn is_body(instructions: &[Instruction]) -> bool {
    let mut parameters = instructions.iter().filter(|it| it.parameter_number.is_some());
    let first = parameters.next().is_some_and(|it| it.shape.members().is_some());
    first && parameters.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_fold_and_the_way_back_is_told() {
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
