//! What can go wrong between a spec and its programs running.

/// Why a run cannot begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Tensors that do not fit the spec.
    #[error("{what}: {found} does not fit, {expected} is expected")]
    Mismatch {
        /// The tensor.
        what: String,
        /// What was given.
        found: String,
        /// What must be given.
        expected: String,
    },
    /// A loss or gradient that is no number.
    #[error(
        "step {step} has a loss of {loss} and a gradient norm of {gradient_norm}: training stopped \
         before its update, and no model is written. Try a lower --learning_rate or some \
         --warmup_steps, a smaller --max_grad_norm, --bf16 rather than float16, and look at the \
         data"
    )]
    NotFinite {
        /// The first such step, counted from 1.
        step: u64,
        /// Its loss.
        loss: f32,
        /// The norm of its gradient.
        gradient_norm: f32,
    },
    /// A length or spacing that a run cannot have.
    #[error("--{what} is {value}, but must be {expected}")]
    Schedule {
        /// The flag.
        what: &'static str,
        /// What was given.
        value: String,
        /// What it can be.
        expected: &'static str,
    },
    /// Batches of a source that is not ours.
    #[error("the next batch cannot be made: {0}")]
    Source(Box<dyn std::error::Error + Send + Sync>),
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

/// An error about what is not what it should be.
pub(crate) fn mismatch(what: &str, found: &str, expected: &str) -> Error {
    let [what, found, expected] = [what, found, expected].map(str::to_owned);
    Error::Mismatch { what, found, expected }
}
