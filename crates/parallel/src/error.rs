//! What can be wrong with a placement.

use crate::config::FsdpConfigError;
use crate::wrap::WrapError;

/// Why a model cannot be placed as asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration does not hold together.
    #[error(transparent)]
    Config(#[from] FsdpConfigError),
    /// Units or frozen parameters that the model does not have.
    #[error(transparent)]
    Wrap(#[from] WrapError),
    /// A parameter is frozen in some layers of a loop and trained in others.
    #[error(
        "`{name}` is frozen in some layers and trained in others, which one loop over the layers \
         cannot be: freeze it in all of them (`*` for the layer), or write the layers out \
         (--scan_layers false)"
    )]
    PartlyFrozen {
        /// The parameter, with a `*` for the layer.
        name: String,
    },
    /// There is nothing that could be gathered a layer ahead.
    #[error("--gather_ahead has nothing to gather ahead: {reason}")]
    NothingAhead {
        /// Why.
        reason: &'static str,
    },
    /// The mesh or a sharding over it.
    #[error(transparent)]
    Mesh(#[from] fullshard_graph::MeshError),
    /// A program could not be traced.
    #[error(transparent)]
    Trace(#[from] fullshard_graph::Error),
}
