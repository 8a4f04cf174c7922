//! Errors of a run.

use std::path::PathBuf;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate or of the crates below.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An invalid run config.
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    /// Devices, compilation and execution.
    #[error(transparent)]
    Pjrt(#[from] fullshard_pjrt::Error),
    /// Finding and installing plugins.
    #[error(transparent)]
    Plugin(#[from] fullshard_pjrt::plugins::PluginError),
    /// An invalid model config.
    #[error(transparent)]
    Model(#[from] fullshard_models::ConfigError),
    /// A model that cannot be registered.
    #[error(transparent)]
    Registry(#[from] fullshard_models::NameTaken),
    /// Tracing.
    #[error(transparent)]
    Trace(#[from] fullshard_graph::Error),
    /// An invalid FSDP config.
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
    /// The other processes of the job.
    #[error(transparent)]
    Cluster(#[from] fullshard_cluster::Error),
    /// Planning.
    #[error(transparent)]
    Plan(#[from] fullshard_plan::Error),
    /// A simulation.
    #[error(transparent)]
    Simulate(#[from] fullshard_simulate::Error),
    /// A breakdown of a step's time.
    #[error(transparent)]
    Breakdown(#[from] fullshard_plan::BreakdownError),
    /// Text and tokenization.
    #[error(transparent)]
    Data(#[from] fullshard_data::Error),
    /// Weights and results on disk.
    #[error(transparent)]
    Files(#[from] fullshard_checkpoint::Error),
    /// Results that are in another folder, since the output folder could not be written.
    #[error("{reason}. The model and the results are in {} instead", folder.display())]
    Rescued {
        /// The folder.
        folder: PathBuf,
        /// Why the output folder could not be written.
        reason: Box<Error>,
    },
    /// Training that ended with a step that is not finite.
    #[error("{reason}. The weights before that step are saved in {}", folder.display())]
    NotFinite {
        /// The output folder.
        folder: PathBuf,
        /// The step.
        reason: fullshard_train::NotFinite,
    },
    /// A step that took longer than its deadline.
    #[error("{reason}. {stacks}")]
    Stuck {
        /// What the run waits for.
        reason: fullshard_train::Stuck,
        /// Where the stacks of all threads are.
        stacks: String,
    },
    /// A best checkpoint that could not be loaded at the end.
    #[error(
        "the best model cannot be loaded: {reason}. The weights of the last step are saved in {}",
        folder.display()
    )]
    NoBest {
        /// The output folder.
        folder: PathBuf,
        /// Why it cannot be loaded.
        reason: String,
    },
    /// A file.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// An invalid run, with a fix.
    #[error("{0}")]
    Usage(String),
}

impl Error {
    /// An error about a file.
    pub fn file(path: impl Into<PathBuf>, reason: impl std::fmt::Display) -> Error {
        Error::File { path: path.into(), reason: reason.to_string() }
    }

    /// Whether the same run would fail again, so that no restart helps: what is wrong is its config,
    /// its data or its numbers, not its environment.
    pub fn is_final(&self) -> bool {
        !matches!(
            self,
            Error::Pjrt(_)
                | Error::Train(_)
                | Error::Cluster(_)
                | Error::Files(_)
                | Error::Rescued { .. }
                | Error::Stuck { .. }
                | Error::File { .. }
        )
    }
}
