//! A reader of optimized HLO.
//!
//! A PJRT plugin returns its optimized program as a protobuf. We decode it ourselves, and only the
//! fields we need, because readers generated for one XLA version reject modules of another. It
//! provides what can be reported before any device is used: the per-device signature, donated
//! buffers, the collectives and their counts, and the compiler's cost estimates.
//!
//! The input is untrusted: any bytes yield a [`Module`] or an [`HloError`].

mod collectives;
mod devices;
mod element;
mod error;
mod instruction;
mod loops;
mod members;
mod mesh;
mod module;
mod named_sharding;
mod proto;
mod runs;
mod shape;
mod sharding;
mod signature;
#[cfg(test)]
mod tests;
mod text;

pub use collectives::{Collective, CollectiveSummary, collective, collectives};
pub use devices::{Devices, ReplicaGroups};
pub use element::ElementType;
pub use error::HloError;
pub use fullshard_core::CollectiveKind;
pub use instruction::{Algorithm, DotDims, Instruction, Metadata, SourceLocation};
pub use loops::{condition_and_body, trip_count};
pub use members::Members;
pub use module::{Computation, ComputationId, InstructionId, Module};
pub use runs::{Runs, runs_per_launch};
pub use shape::{ArrayShape, Layout, Shape};
pub use sharding::{OpSharding, Subgroup, SubgroupKind, TileSharding};
pub use signature::Signature;
