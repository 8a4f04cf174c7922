//! Paths of modules and full names of parameters, as text with dots.

/// The path of a name inside the module at a path.
pub(super) fn inside(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// The path of the enclosing module.
pub(super) fn parent(path: &str) -> &str {
    path.rsplit_once('.').map_or("", |(parent, _)| parent)
}

/// Whether the module at a path is, or contains, what is at another path.
pub(super) fn contains(module: &str, path: &str) -> bool {
    match path.strip_prefix(module) {
        Some(rest) => module.is_empty() || rest.is_empty() || rest.starts_with('.'),
        None => false,
    }
}

/// The path of the innermost module that contains both a module and what is at another path.
pub(super) fn common<'a>(module: &'a str, path: &str) -> &'a str {
    let mut module = module;
    while !contains(module, path) {
        module = parent(module);
    }
    module
}

/// A path with a `*` for each number in it: one name for the same thing in every layer.
pub(super) fn numbered(path: &str) -> String {
    let is_number = |part: &str| part.parse::<usize>().is_ok();
    let parts = path.split('.').map(|part| if is_number(part) { "*" } else { part });
    parts.collect::<Vec<&str>>().join(".")
}

/// The items without duplicates, in the order of their first occurrence.
pub(super) fn distinct<T: PartialEq>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for item in items {
        if !distinct.contains(&item) {
            distinct.push(item);
        }
    }
    distinct
}
