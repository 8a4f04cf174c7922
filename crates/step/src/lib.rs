//! Step programs: a model, a placement and an optimizer put together as programs to compile.
//!
//! A [`StepSpec`] has everything that a run's programs follow from. It traces those that make the
//! state, already sharded over the devices; one that is a whole training step, collectives and
//! update included; and one that evaluates. Sizes and FLOPs follow from it before anything is
//! compiled.
#![forbid(unsafe_code)]

mod error;
mod flops;
mod init;
mod platform;
mod program;
mod sizes;
mod spec;

pub use error::Error;
pub use flops::{Flops, utilization};
pub use fullshard_core::Chip;
pub use init::{InitLaunch, InitProgram};
pub use platform::{compiler_flags, dialect, forms, loops_layers};
pub use program::{METRICS, program_hash};
pub use sizes::{StateBytes, UnitRow};
pub use spec::{Batch, StateTensor, StepSpec};
