//! Step programs: a model, a placement and an optimizer put together as programs to compile.
//!
//! A [`StepSpec`] has everything that a run's programs follow from. It traces those that make the
//! state, already sharded over the devices; one that is a whole training step, collectives and
//! update included; and one that evaluates. Sizes and FLOPs follow from it before anything is
//! compiled.
//!
//! What programs take and give are structs that know their order ([`Ordered`]): a [`TrainState`]
//! and [`StepInputs`] of types, of traced tensors or of arrays on devices.
#![forbid(unsafe_code)]

mod arguments;
mod error;
mod flops;
mod init;
mod layout;
mod ordered;
mod platform;
mod program;
mod sizes;
mod spec;
mod summary;

pub use arguments::{
    EvalArguments, InitInputs, StepArguments, StepInputs, StepResults, TrainState,
};
pub use error::Error;
pub use flops::{Flops, utilization};
pub use fullshard_core::Chip;
pub use init::{InitLaunch, InitProgram};
pub use layout::{StateTensor, TensorSpec};
pub use ordered::{CountMismatch, Ordered};
pub use platform::{compiler_flags, dialect, loops_layers, lowering};
pub use program::{METRICS, program_hash};
pub use sizes::{StateBytes, UnitRow};
pub use spec::{BatchShape, StepSpec};
pub use summary::{ModelSummary, StepSettings};
