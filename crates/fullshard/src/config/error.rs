//! What can be wrong with a run config.

use fullshard_parallel::FsdpConfigError;
use std::path::PathBuf;

/// What is wrong with a run config, as flags or as a file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A flag that there is not.
    #[error("there is no argument `{name}`{hint}")]
    UnknownFlag {
        /// What was given.
        name: String,
        /// What may have been meant.
        hint: String,
    },
    /// A flag has a value that it cannot have.
    #[error("--{flag} is `{value}`, but {reason}")]
    Value {
        /// The flag.
        flag: String,
        /// What was given.
        value: String,
        /// What it can be.
        reason: String,
    },
    /// Two flags exclude each other.
    #[error("--{first} cannot be used with --{second}: leave one of them out")]
    Exclusive {
        /// One of them.
        first: &'static str,
        /// The other.
        second: &'static str,
    },
    /// A flag does nothing without another.
    #[error("--{flag} needs --{needed}")]
    Needs {
        /// The flag.
        flag: &'static str,
        /// What it needs.
        needed: &'static str,
    },
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file is no run config.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, with the key at fault.
        reason: String,
    },
    /// A file of another version.
    #[error(
        "{}: it is a run config of version {found}, but this fullshard reads version {known}: write \
         it again with `fullshard config` and the flags of the run{hint}",
        path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: String,
        /// Ours.
        known: u32,
        /// What else to do.
        hint: &'static str,
    },
    /// A config cannot be written.
    #[error("the run config cannot be written: {0}")]
    Write(String),
    /// The FSDP config.
    #[error(transparent)]
    Fsdp(#[from] FsdpConfigError),
}
