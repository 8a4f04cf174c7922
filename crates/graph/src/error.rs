//! What can go wrong while tracing: always at the call, with the op, the types and the module.

/// The result of tracing.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A mistake in a program, found while it was traced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{op}: {reason}{}", in_module(path))]
pub struct Error {
    /// The op that was traced.
    pub op: String,
    /// What is wrong, with the types at fault.
    pub reason: String,
    /// The path of the module that was being traced; empty at the root.
    pub path: String,
}

fn in_module(path: &str) -> String {
    if path.is_empty() { String::new() } else { format!(" (in {path})") }
}

impl Error {
    /// A mistake in `op`, made in the module that is being traced.
    pub fn new(op: &str, reason: impl Into<String>) -> Error {
        Error { op: op.to_owned(), reason: reason.into(), path: crate::trace::module_path() }
    }
}
