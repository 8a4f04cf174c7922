//! Errors of compiling and running a spec's programs.

/// Why a run cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Tensors that do not match the spec.
    #[error("{what}: expected {expected}, found {found}")]
    Mismatch {
        /// The tensor.
        what: String,
        /// What was passed.
        found: String,
        /// What is expected.
        expected: String,
    },
    /// A loss or gradient that is not finite.
    #[error("{0}")]
    NotFinite(NotFinite),
    /// Devices whose values differ.
    #[error(transparent)]
    Corrupt(Box<crate::guard::Corrupt>),
    /// A loss spike that ends the run.
    #[error(transparent)]
    Spike(crate::guard::Spike),
    /// A checkpoint of another run.
    #[error("cannot resume from {}: {reason}", path.display())]
    OtherCheckpoint {
        /// The checkpoint.
        path: std::path::PathBuf,
        /// What does not match, and the way out.
        reason: String,
    },
    /// An invalid length or interval of a run.
    #[error("--{what} is {value}, but must be {expected}")]
    Schedule {
        /// The flag.
        what: &'static str,
        /// The value passed.
        value: String,
        /// The allowed values.
        expected: &'static str,
    },
    /// A callback.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
    /// Batches of a custom source.
    #[error("cannot load the next batch: {0}")]
    Source(Box<dyn std::error::Error + Send + Sync>),
    /// Another process of the job.
    #[error("process {process}: {message}")]
    OtherProcess {
        /// The process.
        process: usize,
        /// What it failed with.
        message: String,
    },
    /// The way to other processes.
    #[error(transparent)]
    Peers(crate::job::PeersError),
    /// The data.
    #[error(transparent)]
    Data(#[from] fullshard_data::Error),
    /// Weights and results on disk.
    #[error(transparent)]
    Files(#[from] fullshard_checkpoint::Error),
    /// The step's programs.
    #[error(transparent)]
    Step(#[from] fullshard_step::Error),
    /// Compiling and running.
    #[error(transparent)]
    Device(#[from] fullshard_pjrt::Error),
}

impl From<fullshard_step::CountMismatch> for Error {
    fn from(mismatch: fullshard_step::CountMismatch) -> Error {
        Error::Step(mismatch.into())
    }
}

/// A step whose loss or gradient is not finite.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error(
    "step {step} has a loss of {loss} and a gradient norm of {gradient_norm}: training stopped \
     before its update. Try a lower --learning_rate or some --warmup_steps, a smaller \
     --max_grad_norm, --bf16 rather than float16, and check the data"
)]
pub struct NotFinite {
    /// The first such step, counted from 1.
    pub step: u64,
    /// Its loss.
    pub loss: f32,
    /// The norm of its gradient.
    pub gradient_norm: f32,
}

/// A mismatch error.
pub(crate) fn mismatch(what: &str, found: &str, expected: &str) -> Error {
    let [what, found, expected] = [what, found, expected].map(str::to_owned);
    Error::Mismatch { what, found, expected }
}
