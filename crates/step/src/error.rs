//! What can be wrong with a step before its program is traced.

/// Why there is no such step.
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
    /// What a program takes or gives does not fit its struct.
    #[error(transparent)]
    Count(#[from] crate::ordered::CountMismatch),
    /// The placement.
    #[error(transparent)]
    Placement(#[from] fullshard_parallel::Error),
    /// The mesh or a sharding over it.
    #[error(transparent)]
    Mesh(#[from] fullshard_core::MeshError),
    /// Tracing.
    #[error(transparent)]
    Trace(#[from] fullshard_graph::Error),
}
