//! Errors of a step before its program is traced.

use fullshard_core::Platform;
use fullshard_parallel::Remat;

/// Why a step is not possible.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A sequence that cannot be sharded over the context axis.
    #[error(
        "sequences of {tokens} tokens cannot be shared by the {context} devices of the mesh axis \
         `context`: each has two chunks, so choose a multiple of {}, such as --block_size {}",
        2 * context,
        if *below == 0 { *above } else { *below }
    )]
    Context {
        /// Tokens per sequence.
        tokens: usize,
        /// Devices along the axis.
        context: usize,
        /// The next shorter length that would do, or zero.
        below: usize,
        /// The next longer one.
        above: usize,
    },
    /// Tokens that cannot be sharded for sequence parallelism.
    #[error(
        "the {tokens} tokens of a device group are not a multiple of the {devices} devices of the \
         mesh axis `tensor`, over which sequence parallelism shards them: change --block_size or \
         --per_device_train_batch_size, or turn it off (--sequence_parallel false)"
    )]
    SequenceParallel {
        /// Tokens of a microbatch that the devices of the axis share.
        tokens: usize,
        /// Devices along the axis.
        devices: usize,
    },
    /// Sequence parallelism of a model without a residual stream.
    #[error(
        "{class} declares no residual stream whose tokens could be sharded: turn sequence \
         parallelism off (--sequence_parallel false)"
    )]
    NoResidualStream {
        /// The class of the model.
        class: &'static str,
    },
    /// The batch cannot be sharded over the devices.
    #[error(
        "a batch of {batch} sequences cannot be sharded over {devices} devices: make it a multiple \
         of {devices}, or use fewer devices"
    )]
    Batch {
        /// Sequences in a batch.
        batch: usize,
        /// Devices.
        devices: usize,
    },
    /// A number is too small to train.
    #[error("{what} is {found}, but must be at least {least}")]
    TooFew {
        /// The quantity.
        what: &'static str,
        /// Its value.
        found: usize,
        /// The least it must be.
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
        /// Positions of the model.
        positions: usize,
    },
    /// `--gather_ahead` where everything is gathered before the first microbatch.
    #[error(
        "with --no_sync all parameters are gathered before the first microbatch, so nothing can be \
         gathered ahead: leave out --gather_ahead or --no_sync"
    )]
    GatherAheadWithoutSync,
    /// An invalid limit of the gradient norm.
    #[error("the gradient norm cannot be clipped to {limit}: pass a positive number, or none")]
    GradientNorm {
        /// The requested limit.
        limit: f64,
    },
    /// Every parameter is frozen.
    #[error("every parameter is frozen, so there is nothing to train")]
    AllFrozen,
    /// A remat policy has a name that the layers of the model do not have.
    #[error(
        "--remat names `{name}`, but the layers of {class} have no such activation: they name {}",
        if names.is_empty() { "none" } else { names }
    )]
    NotNamed {
        /// The name.
        name: &'static str,
        /// The class of the model.
        class: &'static str,
        /// The names that its layers have.
        names: String,
    },
    /// A remat policy moves activations to host memory where that is not supported.
    #[error(
        "--remat {remat} moves activations to host memory, which {platform} does not support; cuda \
         and tpu do: save them on the device, or leave them out"
    )]
    NoHostMemory {
        /// The policy.
        remat: Remat,
        /// The platform.
        platform: Platform,
    },
    /// The inputs or outputs of a program do not match its struct.
    #[error(transparent)]
    Count(#[from] crate::ordered::CountMismatch),
    /// An error of the placement.
    #[error(transparent)]
    Placement(#[from] fullshard_parallel::Error),
    /// An error of the mesh or of a sharding over it.
    #[error(transparent)]
    Mesh(#[from] fullshard_core::MeshError),
    /// An error of tracing.
    #[error(transparent)]
    Trace(#[from] fullshard_graph::Error),
}
