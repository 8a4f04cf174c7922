//! A reader of optimized HLO, the program a compiler says it will run.
//!
//! A PJRT plugin hands its optimized program out as a protobuf. We read it ourselves, and only the
//! fields we need, because readers generated for one XLA version refuse modules of another. From
//! it come the facts worth showing before any device is used: the per-device signature, which
//! buffers are donated, which collectives run, how often, and what the compiler thinks they cost.
//!
//! Nothing here trusts its input: any bytes give a [`Module`] or an [`HloError`].

mod collectives;
mod devices;
mod element;
mod error;
mod instruction;
mod loops;
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

pub use collectives::{Collective, CollectiveKind, CollectiveSummary, collective, collectives};
pub use devices::{Devices, ReplicaGroups};
pub use element::ElementType;
pub use error::HloError;
pub use instruction::{Algorithm, DotDims, Instruction, Metadata, SourceLocation};
pub use loops::{condition_and_body, trip_count};
pub use module::{Computation, ComputationId, InstructionId, Module};
pub use runs::{Runs, runs_per_launch};
pub use shape::{ArrayShape, Layout, Shape};
pub use sharding::{OpSharding, Subgroup, SubgroupKind, TileSharding};
pub use signature::Signature;
