//! What can be wrong with a config: always the key, what was found and what may stand there.

use std::path::PathBuf;

/// A mistake in `--fsdp` or `--fsdp_config`.
#[derive(Debug, thiserror::Error)]
pub enum FsdpConfigError {
    /// The file cannot be read.
    #[error(
        "cannot read the FSDP config {}: {source}. Give the path of a JSON file, or the JSON \
         itself, beginning with `{{`",
        path.display()
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file has a mistake in it.
    #[error("{}: {source}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// The mistake.
        source: Box<FsdpConfigError>,
    },
    /// The text is not JSON.
    #[error("the FSDP config is not JSON: {0}")]
    NotJson(#[from] serde_json::Error),
    /// The text is JSON but no object.
    #[error("the FSDP config is {found} but must be a JSON object, such as {{\"xla\": true}}")]
    NotAnObject {
        /// What it is.
        found: String,
    },
    /// A key that there is not.
    #[error("there is no key `{key}`{hint}; valid keys are {}", valid.join(", "))]
    UnknownKey {
        /// The key, as it was written.
        key: String,
        /// What was perhaps meant, as the end of a sentence; empty if nothing comes near.
        hint: String,
        /// The keys there are.
        valid: Vec<&'static str>,
    },
    /// A key stands with the prefix and without.
    #[error("`{key}` and `fsdp_{key}` are one key: leave one of them out")]
    BothPrefixes {
        /// The key without the prefix.
        key: String,
    },
    /// A value that the key cannot have.
    #[error("`{key}` is {found} but must be {expected}")]
    BadValue {
        /// The key, as it was written.
        key: String,
        /// The value, as JSON.
        found: String,
        /// What may stand there.
        expected: &'static str,
    },
    /// A key that exists elsewhere and cannot mean anything here.
    #[error("`{key}` is {found}, which is not supported: {reason}")]
    Refused {
        /// The key, as it was written.
        key: String,
        /// The value, as JSON.
        found: String,
        /// Why not, and the way out.
        reason: &'static str,
    },
    /// Two things that contradict each other.
    #[error("{first} and {second} contradict each other: {way_out}")]
    Contradiction {
        /// One, with its value.
        first: String,
        /// The other, with its value.
        second: String,
        /// What to do about it.
        way_out: &'static str,
    },
}
