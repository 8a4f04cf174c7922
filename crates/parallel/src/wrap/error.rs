//! Errors of a module tree, or of a request to wrap or freeze it.

/// A model cannot be wrapped or frozen as requested.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WrapError {
    /// No module has the class.
    #[error("no module is a `{class}`{hint}; the model has {}", known.join(", "))]
    UnknownClass {
        /// The requested class.
        class: String,
        /// What was perhaps meant, as part of the sentence; empty if nothing is close.
        hint: String,
        /// The classes that can be wrapped.
        known: Vec<&'static str>,
    },
    /// The class is a list, which has no forward pass to all-gather for.
    #[error(
        "`{class}` is a list of modules without a forward pass: wrap the modules in it, {}",
        inside.join(", ")
    )]
    ListClass {
        /// The requested class.
        class: String,
        /// The classes of the modules in such lists.
        inside: Vec<&'static str>,
    },
    /// The class is the root's.
    #[error(
        "`{class}` is the model itself, which is always the outermost unit: name the class of its \
         layers; it has {}",
        known.join(", ")
    )]
    RootClass {
        /// The requested class.
        class: String,
        /// The classes that can be wrapped.
        known: Vec<&'static str>,
    },
    /// Two parameters have one name.
    #[error("two parameters of the model are named `{name}`: each needs a unique name")]
    SameName {
        /// The name.
        name: String,
    },
    /// A parameter is tied to something it cannot be tied to.
    #[error("`{name}` is tied to `{other}`, {reason}")]
    BadTie {
        /// The parameter.
        name: String,
        /// What it is tied to.
        other: String,
        /// Why it cannot be.
        reason: String,
    },
    /// A pattern matches no parameter.
    #[error(
        "no parameter matches `{pattern}`, so nothing would be frozen; the nearest are {}",
        near.join(", ")
    )]
    NoMatch {
        /// The pattern.
        pattern: String,
        /// Similar patterns that do match.
        near: Vec<String>,
    },
}
