//! Placement on a mesh: which unit owns which parameter, how rules shard it over the mesh axes, and
//! how it is all-gathered when the model is traced.
//!
//! - [`FsdpConfig`] is an `fsdp_config.json`, [`Strategy`] the value of `--fsdp`.
//! - [`units`] wraps a model's modules into units.
//! - [`Placement`] is units and sharded parameters on a mesh, before anything is traced.
//! - [`Sharded`] traces a model with it: entering a unit all-gathers its parameters, leaving it
//!   reshards them, and the gradient of an all-gather is a reduce-scatter.
#![forbid(unsafe_code)]

mod ahead;
mod collectives;
pub mod config;
mod error;
mod gather;
mod layout;
mod placement;
mod remat;
mod ring;
pub mod rules;
mod slices;
mod stack;
mod staged;
mod table;
mod tracer;
pub mod wrap;

pub use ahead::GatherAhead;
pub use collectives::UnitCollective;
pub use config::{FsdpConfig, FsdpConfigError, Settings, Strategy, WrapPolicy, nearest};
pub use error::Error;
pub use fullshard_core::{Layout, MeshSpec};
pub use gather::CommPolicy;
pub use layout::{GridDim, ShardedParam, TensorSlice};
pub use placement::{PlacedUnit, Placement, PlacementOptions};
pub use remat::{Remat, RematError, SavedName};
pub use rules::{Gather, Rule, Rules};
pub use slices::TensorAxes;
pub use staged::{Stage, Staging};
pub use tracer::Sharded;
pub use wrap::{Unit, WrapError, WrapPlan, frozen, units};
