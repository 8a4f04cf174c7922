//! Paths of modules and full names of parameters, as text with dots.

/// The path of something in the module at a path.
pub(super) fn inside(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// The path of the module that something is in.
pub(super) fn parent(path: &str) -> &str {
    path.rsplit_once('.').map_or("", |(parent, _)| parent)
}

/// Whether the module at a path is, or has in it, what another path leads to.
pub(super) fn contains(module: &str, path: &str) -> bool {
    match path.strip_prefix(module) {
        Some(rest) => module.is_empty() || rest.is_empty() || rest.starts_with('.'),
        None => false,
    }
}

/// The path of the innermost module that has in it both a module and what another path leads to.
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

/// Each once, where it first stands.
pub(super) fn distinct<T: PartialEq>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for item in items {
        if !distinct.contains(&item) {
            distinct.push(item);
        }
    }
    distinct
}
