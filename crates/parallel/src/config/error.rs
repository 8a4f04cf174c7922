//! Errors of a config: always the key, the value found and the values allowed.

use std::path::PathBuf;

/// An error in `--fsdp` or `--fsdp_config`.
#[derive(Debug, thiserror::Error)]
pub enum FsdpConfigError {
    /// The file cannot be read.
    #[error(
        "cannot read the FSDP config {}: {source}. Pass the path of a JSON file, or the JSON \
         itself, beginning with `{{`",
        path.display()
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file contains an error.
    #[error("{}: {source}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// The error.
        source: Box<FsdpConfigError>,
    },
    /// The text is not JSON.
    #[error("the FSDP config is not JSON: {0}")]
    NotJson(#[from] serde_json::Error),
    /// The text is JSON but not an object.
    #[error("the FSDP config is {found} but must be a JSON object, such as {{\"xla\": true}}")]
    NotAnObject {
        /// What it is.
        found: String,
    },
    /// An unknown key.
    #[error("unknown key `{key}`{hint}; valid keys are {}", valid.join(", "))]
    UnknownKey {
        /// The key, as it was written.
        key: String,
        /// What was perhaps meant, as the end of a sentence; empty if nothing is close.
        hint: String,
        /// The valid keys.
        valid: Vec<&'static str>,
    },
    /// A key is given with the prefix and without.
    #[error("`{key}` and `fsdp_{key}` are the same key: leave one of them out")]
    BothPrefixes {
        /// The key without the prefix.
        key: String,
    },
    /// A value that the key does not allow.
    #[error("`{key}` is {found} but must be {expected}")]
    BadValue {
        /// The key, as it was written.
        key: String,
        /// The value, as JSON.
        found: String,
        /// The values allowed.
        expected: &'static str,
    },
    /// A key that exists elsewhere and is not supported here.
    #[error("`{key}` is {found}, which is not supported: {reason}")]
    Unsupported {
        /// The key, as it was written.
        key: String,
        /// The value, as JSON.
        found: String,
        /// Why not, and the fix.
        reason: &'static str,
    },
    /// Two settings that contradict each other.
    #[error("{first} and {second} contradict each other: {fix}")]
    Contradiction {
        /// One, with its value.
        first: String,
        /// The other, with its value.
        second: String,
        /// The fix.
        fix: &'static str,
    },
}
