//! Which module an instruction belongs to, by the path that the tracer wrote beside it.
//!
//! Compilers keep these paths as the last part of `op_name`, drop them where they make
//! instructions of their own, and put prefixes before them. What has no path belongs where its
//! result is used, or else where its operands come from.

use fullshard_pjrt::hlo::{Computation, Instruction, InstructionId};
use fullshard_train::Recipe;
use std::collections::{BTreeSet, HashMap};

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
    /// Paths of layers that are a loop.
    stacks: Vec<String>,
}

/// What the tracer writes before paths on the way back.
const BACKWARD: &str = "backward";

/// What the tracer calls everything after gradients.
const OPTIMIZER: &str = "optimizer";

impl Paths {
    /// The paths of a recipe's modules.
    pub fn new(recipe: &Recipe) -> Paths {
        let children = recipe.model.tree().children;
        let roots = children.into_iter().map(|(name, _)| name).chain([OPTIMIZER.to_owned()]);
        let stacked = recipe.placement.parameters.iter().filter(|stored| stored.stack.is_some());
        let stack = |name: &str| name.split_once(".*.").map(|(stack, _)| stack.to_owned());
        let stacks: BTreeSet<String> = stacked.filter_map(|stored| stack(&stored.name)).collect();
        Paths { roots: roots.collect(), stacks: stacks.into_iter().collect() }
    }

    /// No paths at all.
    #[cfg(test)]
    pub fn none() -> Paths {
        Paths { roots: Vec::new(), stacks: Vec::new() }
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
        let starred = self.stacks.iter().find_map(|stack| {
            let rest = path.strip_prefix(stack.as_str())?;
            (rest.is_empty() || rest.starts_with('.')).then(|| format!("{stack}.*{rest}"))
        });
        let module = starred.unwrap_or_else(|| any_layer(path));
        Some(Belongs { module, backward })
    }
}

/// A path with a `*` for the layer, as those of a loop have it.
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
