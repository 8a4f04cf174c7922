//! Stacks of identical layers, which can be scanned.

use fullshard_models::Module;

/// The lists of identical modules in a tree.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stacks {
    /// The path of each list and the number of its modules.
    lists: Vec<(String, usize)>,
}

impl Stacks {
    /// The outermost lists of a tree whose modules are identical.
    pub(crate) fn of(tree: &Module) -> Stacks {
        let mut lists: Vec<(String, usize)> = Vec::new();
        tree.visit(&mut |path, module| {
            let is_stack = module.class == "ModuleList"
                && module.children.windows(2).all(|pair| pair[0].1 == pair[1].1)
                && module.elements() > 0;
            let inner = lists.iter().any(|(list, _)| path.starts_with(&format!("{list}.")));
            if is_stack && !inner {
                lists.push((path.to_owned(), module.children.len()));
            }
        });
        Stacks { lists }
    }

    /// A name with a `*` for the layer, and the layer, if it is inside a stack.
    pub(crate) fn template(&self, name: &str) -> (String, Option<usize>) {
        for (list, _) in &self.lists {
            let Some(rest) = name.strip_prefix(list).and_then(|rest| rest.strip_prefix('.')) else {
                continue;
            };
            let (layer, rest) = rest.split_once('.').map_or((rest, None), |(l, r)| (l, Some(r)));
            if let Ok(layer) = layer.parse() {
                let rest = rest.map_or(String::new(), |rest| format!(".{rest}"));
                return (format!("{list}.*{rest}"), Some(layer));
            }
        }
        (name.to_owned(), None)
    }

    /// The number of layers of the stack that a name is in.
    pub(crate) fn count(&self, name: &str) -> Option<usize> {
        let inside = |list: &str| name.strip_prefix(list).is_some_and(|rest| rest.starts_with('.'));
        self.lists.iter().find(|(list, _)| inside(list)).map(|(_, count)| *count)
    }

    /// Whether the list at a path is a stack.
    pub(crate) fn contains(&self, path: &str) -> bool {
        self.lists.iter().any(|(list, _)| list == path)
    }
}
