//! What can be wrong with a module tree, or with what somebody wants of it.

/// A model cannot be wrapped or frozen as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WrapError {
    /// No module has the class.
    #[error("no module is a `{class}`{hint}; the model has {}", known.join(", "))]
    UnknownClass {
        /// The class asked for.
        class: String,
        /// What was perhaps meant, as part of the sentence; empty if nothing comes near.
        hint: String,
        /// The classes that can be wrapped.
        known: Vec<&'static str>,
    },
    /// The class is a list, which computes nothing and so cannot gather anything.
    #[error("`{class}` only lists modules and computes nothing: wrap what it lists, {}", inside.join(", "))]
    ListClass {
        /// The class asked for.
        class: String,
        /// The classes of what such lists have in them.
        inside: Vec<&'static str>,
    },
    /// The class is the root's.
    #[error(
        "`{class}` is the whole model, which is the outermost unit in any case: name the class of \
         its layers; it has {}",
        known.join(", ")
    )]
    RootClass {
        /// The class asked for.
        class: String,
        /// The classes that can be wrapped.
        known: Vec<&'static str>,
    },
    /// Two parameters have one name.
    #[error("two parameters of the model are named `{name}`: each needs a name of its own")]
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
        /// What is wrong with that.
        reason: String,
    },
    /// A pattern matches no parameter.
    #[error("nothing matches `{pattern}`, so nothing would be frozen; the nearest are {}", near.join(", "))]
    NoMatch {
        /// The pattern.
        pattern: String,
        /// Patterns that do match and look like it.
        near: Vec<String>,
    },
}
