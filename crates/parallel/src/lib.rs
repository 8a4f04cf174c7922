//! Placement: which unit owns which parameter, how it is cut over devices, and what brings it
//! together when the model is traced.
//!
//! - [`FsdpConfig`] is the `fsdp_config.json` that people have, [`Strategy`] the word they give.
//! - [`units`] wraps a model's modules into units.
//! - [`Placement`] is units and stored parameters on a mesh, before anything is traced.
//! - [`Sharded`] traces a model by it: entering a unit gathers its parameters, leaving it lets
//!   them go, and the gradient of a gather is a reduce-scatter.
#![forbid(unsafe_code)]

pub mod config;
mod error;
mod exchange;
mod gather;
mod layout;
mod placement;
mod remat;
mod stack;
mod tracer;
pub mod wrap;

pub use config::{FsdpConfig, FsdpConfigError, Settings, Strategy, WrapPolicy, nearest};
pub use error::Error;
pub use exchange::{Exchange, ExchangeKind};
pub use fullshard_core::Layout;
pub use gather::Wire;
pub use layout::Stored;
pub use placement::{AXIS, PlacedUnit, Placement, PlacementOptions};
pub use remat::{Remat, UnknownRemat};
pub use tracer::Sharded;
pub use wrap::{Unit, WrapError, WrapPlan, frozen, units};
