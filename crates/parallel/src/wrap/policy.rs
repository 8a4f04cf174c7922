//! Which modules become units.

use super::error::WrapError;
use super::paths::{contains, distinct, inside};
use super::tensors::Tensor;
use crate::config::{WrapPolicy, nearest};
use crate::stack::Stacks;
use fullshard_models::Module;

/// Classes that only hold other modules.
const LISTS: [&str; 4] = ["ModuleList", "ModuleDict", "ParameterList", "ParameterDict"];
/// Classes whose children are never units by size.
const FORCED_LEAVES: [&str; 1] = ["MultiheadAttention"];

/// A module, by its path and class.
pub(super) type Wrapped = (String, &'static str);

/// The modules that are units: the root, then the others in the order of the tree.
pub(super) fn wrapped(
    tree: &Module,
    policy: &WrapPolicy,
    tensors: &[Tensor],
) -> Result<Vec<Wrapped>, WrapError> {
    let root = (String::new(), tree.class);
    let mut inside: Vec<Wrapped> = match policy {
        WrapPolicy::Blocks => blocks(tree),
        WrapPolicy::Root => Vec::new(),
        WrapPolicy::Classes(classes) => by_class(tree, classes)?,
        WrapPolicy::MinSize(min_size) => by_size(tree, *min_size, tensors),
    };
    inside.insert(0, root);
    Ok(inside)
}

/// The classes of the modules of repeated layers, each once.
pub(crate) fn block_classes(tree: &Module) -> Vec<&'static str> {
    distinct(blocks(tree).into_iter().map(|(_, class)| class))
}

/// The modules of repeated layers.
fn blocks(tree: &Module) -> Vec<Wrapped> {
    let stacks = Stacks::of(tree);
    let modules = inner_modules(tree).into_iter();
    let of_stack =
        |path: &str| path.rsplit_once('.').is_some_and(|(list, _)| stacks.contains(list));
    let blocks = modules.filter(|(path, _)| of_stack(path));
    blocks.map(|(path, module)| (path, module.class)).collect()
}

fn by_class(tree: &Module, classes: &[String]) -> Result<Vec<Wrapped>, WrapError> {
    let modules = inner_modules(tree);
    for class in classes {
        check_class(tree, &modules, class)?;
    }
    let requested = |module: &Module| classes.iter().any(|class| class == module.class);
    let wrapped = modules.into_iter().filter(|(_, module)| requested(module));
    Ok(wrapped.map(|(path, module)| (path, module.class)).collect())
}

fn check_class(tree: &Module, modules: &[(String, &Module)], class: &str) -> Result<(), WrapError> {
    let of_class: Vec<_> = modules.iter().filter(|(_, module)| module.class == class).collect();
    if of_class.is_empty() {
        return Err(no_such_class(tree, modules, class));
    }
    if !LISTS.contains(&class) {
        return Ok(());
    }
    let inside =
        of_class.iter().flat_map(|(_, list)| &list.children).map(|(_, module)| module.class);
    Err(WrapError::ListClass { class: class.to_owned(), inside: distinct(inside) })
}

fn no_such_class(tree: &Module, modules: &[(String, &Module)], class: &str) -> WrapError {
    let known = modules.iter().map(|(_, module)| module.class);
    let known = distinct(known.filter(|class| !LISTS.contains(class)));
    let class = class.to_owned();
    if class == tree.class {
        return WrapError::RootClass { class, known };
    }
    let near = nearest(&class, known.iter().copied());
    let hint = near.map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default();
    WrapError::UnknownClass { class, hint, known }
}

fn by_size(tree: &Module, min_size: usize, tensors: &[Tensor]) -> Vec<Wrapped> {
    let mut by_size = BySize { min_size, tensors, wrapped: Vec::new() };
    by_size.visit("", tree);
    by_size.wrapped
}

/// Wrapping by size, from the inside out.
struct BySize<'a> {
    min_size: usize,
    tensors: &'a [Tensor],
    wrapped: Vec<Wrapped>,
}

impl BySize<'_> {
    /// Wraps the children of a module, then itself; returns the number of elements in units.
    fn visit(&mut self, path: &str, module: &Module) -> usize {
        let total = self.elements(path);
        let position = self.wrapped.len();
        let mut in_units = 0;
        if total >= self.min_size && !FORCED_LEAVES.contains(&module.class) {
            for (name, child) in &module.children {
                in_units += self.visit(&inside(path, name), child);
            }
        }
        let is_root = path.is_empty();
        let large = total - in_units >= self.min_size;
        if is_root || !large || LISTS.contains(&module.class) {
            return in_units;
        }
        self.wrapped.insert(position, (path.to_owned(), module.class));
        total
    }

    /// The number of elements that a module can own.
    fn elements(&self, path: &str) -> usize {
        let inside = self.tensors.iter().filter(|tensor| contains(path, &tensor.home));
        inside.map(|tensor| tensor.elements).sum()
    }
}

/// Every module but the root, with its path, in the order of the tree.
fn inner_modules(tree: &Module) -> Vec<(String, &Module)> {
    let mut modules = Vec::new();
    tree.visit(&mut |path, module| modules.push((path.to_owned(), module)));
    modules.remove(0);
    modules
}
