//! What can go wrong between a recipe and its programs running.

/// Why a run cannot begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The batch cannot be cut over the devices.
    #[error(
        "a batch of {batch} sequences cannot be cut over {devices} devices: make it a multiple of \
         {devices}, or use fewer devices"
    )]
    Batch {
        /// Sequences in a batch.
        batch: usize,
        /// Devices.
        devices: usize,
    },
    /// There is nothing to train on.
    #[error("{what} is {found}, but must be at least {least}")]
    TooFew {
        /// What there is too little of.
        what: &'static str,
        /// How much there is.
        found: usize,
        /// How much there must be.
        least: usize,
    },
    /// Sequences are longer than the model allows.
    #[error(
        "sequences of {sequence} tokens are longer than the {positions} positions of the model: \
         shorten them, or raise the positions in its config"
    )]
    Sequence {
        /// Tokens in a sequence.
        sequence: usize,
        /// What the model allows.
        positions: usize,
    },
    /// Gathers ahead of a loop that gathers nothing.
    #[error(
        "without reduction after each accumulated batch everything is gathered before the first, so \
         nothing can be gathered ahead: leave out --gather_ahead or --no_sync"
    )]
    GatheredAlready,
    /// A limit that no gradient can have.
    #[error("a gradient norm cannot be clipped to {limit}: give a number above zero, or none")]
    GradientNorm {
        /// What was asked for.
        limit: f64,
    },
    /// Every parameter is frozen.
    #[error("every parameter is frozen, so there is nothing to train")]
    AllFrozen,
    /// Tensors that do not fit the recipe.
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
    Course {
        /// The flag.
        what: &'static str,
        /// What was given.
        value: String,
        /// What it can be.
        expected: &'static str,
    },
    /// The data.
    #[error(transparent)]
    Data(#[from] fullshard_data::Error),
    /// Weights and results on disk.
    #[error(transparent)]
    Files(#[from] fullshard_checkpoint::Error),
    /// The placement.
    #[error(transparent)]
    Placement(#[from] fullshard_parallel::Error),
    /// Tracing.
    #[error(transparent)]
    Trace(#[from] fullshard_graph::Error),
    /// Compiling and running.
    #[error(transparent)]
    Device(#[from] fullshard_pjrt::Error),
}

/// An error about what is not what it should be.
pub(crate) fn mismatch(what: &str, found: &str, expected: &str) -> Error {
    let [what, found, expected] = [what, found, expected].map(str::to_owned);
    Error::Mismatch { what, found, expected }
}
