//! What can go wrong in a run.

use std::path::PathBuf;

/// The result of what this library does.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong, beyond what the crates below know of.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The run config.
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    /// Devices, compiling and running.
    #[error(transparent)]
    Pjrt(#[from] fullshard_pjrt::Error),
    /// Finding and installing plugins.
    #[error(transparent)]
    Plugin(#[from] fullshard_pjrt::plugins::PluginError),
    /// A model's config.
    #[error(transparent)]
    Model(#[from] fullshard_models::ConfigError),
    /// A model that cannot be registered.
    #[error(transparent)]
    Registry(#[from] fullshard_models::NameTaken),
    /// Tracing.
    #[error(transparent)]
    Trace(#[from] fullshard_graph::Error),
    /// How a model is sharded.
    #[error(transparent)]
    Fsdp(#[from] fullshard_parallel::FsdpConfigError),
    /// The placement.
    #[error(transparent)]
    Placement(#[from] fullshard_parallel::Error),
    /// The optimizer or the learning rate schedule.
    #[error(transparent)]
    Optimizer(#[from] fullshard_optim::Error),
    /// The step's programs.
    #[error(transparent)]
    Step(#[from] fullshard_step::Error),
    /// Training.
    #[error(transparent)]
    Train(#[from] fullshard_train::Error),
    /// Planning.
    #[error(transparent)]
    Plan(#[from] fullshard_plan::Error),
    /// A breakdown of a step's time.
    #[error(transparent)]
    Breakdown(#[from] fullshard_plan::BreakdownError),
    /// Text and tokens.
    #[error(transparent)]
    Data(#[from] fullshard_data::Error),
    /// Weights and results on disk.
    #[error(transparent)]
    Files(#[from] fullshard_checkpoint::Error),
    /// A file.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A run that cannot be, with the way out.
    #[error("{0}")]
    Usage(String),
}

impl Error {
    /// An error about a file.
    pub fn file(path: impl Into<PathBuf>, reason: impl std::fmt::Display) -> Error {
        Error::File { path: path.into(), reason: reason.to_string() }
    }
}
