//! Errors of run configs.

use fullshard_parallel::FsdpConfigError;
use std::path::PathBuf;

/// An error in a run config, given as flags or as a file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// An unknown flag.
    #[error("unknown argument `{name}`{hint}")]
    UnknownFlag {
        /// The given name.
        name: String,
        /// A suggestion.
        hint: String,
    },
    /// An invalid value of a flag.
    #[error("--{flag} is `{value}`, but {reason}")]
    Value {
        /// The flag.
        flag: String,
        /// The given value.
        value: String,
        /// The valid values.
        reason: String,
    },
    /// Two flags are mutually exclusive.
    #[error("--{first} cannot be used with --{second}: leave one of them out")]
    Exclusive {
        /// The first flag.
        first: &'static str,
        /// The second flag.
        second: &'static str,
    },
    /// A flag has no effect without another.
    #[error("--{flag} needs --{needed}")]
    Needs {
        /// The flag.
        flag: &'static str,
        /// The flag it needs.
        needed: &'static str,
    },
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A file is not a run config.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason, with the invalid key.
        reason: String,
    },
    /// A file of an unsupported version.
    #[error(
        "{}: run config version {found} is not supported, expected version {known}: regenerate it \
         with `fullshard config` and the flags of the run{hint}",
        path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: String,
        /// The supported version.
        known: u32,
        /// Another fix.
        hint: &'static str,
    },
    /// A config cannot be written.
    #[error("cannot write the run config: {0}")]
    Write(String),
    /// An invalid FSDP config.
    #[error(transparent)]
    Fsdp(#[from] FsdpConfigError),
}
