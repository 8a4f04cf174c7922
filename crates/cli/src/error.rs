//! Errors of the command line.

use std::path::PathBuf;

/// The result of a command.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong in a command, beyond the library's own errors.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Pjrt(#[from] fullshard_pjrt::Error),
    #[error(transparent)]
    Plugin(#[from] fullshard_pjrt::plugins::PluginError),
    #[error(transparent)]
    Model(#[from] fullshard_models::ConfigError),
    #[error(transparent)]
    Fsdp(#[from] fullshard_parallel::FsdpConfigError),
    #[error(transparent)]
    Placement(#[from] fullshard_parallel::Error),
    #[error(transparent)]
    Optimizer(#[from] fullshard_optim::Error),
    #[error(transparent)]
    Train(#[from] fullshard_train::Error),
    #[error(transparent)]
    Step(#[from] fullshard_step::Error),
    #[error(transparent)]
    Plan(#[from] fullshard_plan::Error),
    #[error(transparent)]
    Breakdown(#[from] fullshard_plan::BreakdownError),
    #[error(transparent)]
    Data(#[from] fullshard_data::Error),
    #[error(transparent)]
    Files(#[from] fullshard_checkpoint::Error),
    #[error("{path}: {reason}")]
    File { path: PathBuf, reason: String },
    #[error("{0}")]
    Usage(String),
}

impl Error {
    /// An error about a file.
    pub fn file(path: impl Into<PathBuf>, reason: impl std::fmt::Display) -> Error {
        Error::File { path: path.into(), reason: reason.to_string() }
    }
}
