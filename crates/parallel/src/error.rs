//! Errors of a placement.

use crate::config::FsdpConfigError;
use crate::wrap::WrapError;

/// Why a model cannot be placed as requested.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration is inconsistent.
    #[error(transparent)]
    Config(#[from] FsdpConfigError),
    /// Units or frozen parameters that the model does not have.
    #[error(transparent)]
    Wrap(#[from] WrapError),
    /// A parameter is frozen in some of the scanned layers and trained in others.
    #[error(
        "`{name}` is frozen in some layers and trained in others, which scanned layers do not \
         support: freeze it in all of them (`*` for the layer), or unroll the layers \
         (--scan_layers false)"
    )]
    PartiallyFrozen {
        /// The parameter, with a `*` for the layer.
        name: String,
    },
    /// There is nothing to all-gather one layer ahead.
    #[error("--gather_ahead cannot be used: {reason}")]
    NoGatherAhead {
        /// Why.
        reason: &'static str,
    },
    /// An error of the mesh or of a sharding over it.
    #[error(transparent)]
    Mesh(#[from] fullshard_graph::MeshError),
    /// A program could not be traced.
    #[error(transparent)]
    Trace(#[from] fullshard_graph::Error),
}
