//! Tracing errors. They are raised at the call and name the op, the types and the module.

/// The result of tracing.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error in a program, found during tracing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{op}: {reason}{}", in_module(path))]
pub struct Error {
    /// The op that was traced.
    pub op: String,
    /// What is wrong, with the offending types.
    pub reason: String,
    /// The path of the module that was being traced; empty at the root.
    pub path: String,
}

fn in_module(path: &str) -> String {
    if path.is_empty() { String::new() } else { format!(" (in {path})") }
}

impl Error {
    /// An error in `op`, in the module being traced.
    pub fn new(op: &str, reason: impl Into<String>) -> Error {
        Error { op: op.to_owned(), reason: reason.into(), path: crate::trace::module_path() }
    }
}
