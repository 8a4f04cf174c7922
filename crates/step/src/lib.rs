//! Step programs: a model, a placement and an optimizer combined into programs to compile.
//!
//! A [`StepSpec`] defines a run's programs. It traces those that initialize the state, already
//! sharded over the devices; the training step, collectives and update included, or a loop of
//! several; and the evaluation step. Sizes and FLOPs follow from it before anything is compiled.
//!
//! Inputs and outputs of programs are structs in a fixed order ([`Ordered`]): a [`TrainState`] and
//! [`StepInputs`] of types, of traced tensors or of arrays on devices.
#![forbid(unsafe_code)]

mod agree;
mod arguments;
mod checksums;
mod error;
mod flops;
mod init;
mod layer;
mod layout;
mod loops;
mod ordered;
mod platform;
mod program;
mod saved;
mod sizes;
mod spec;
mod summary;

pub use arguments::{
    EvalArguments, InitInputs, StepArguments, StepInputs, StepResults, TrainState,
};
pub use checksums::CHECKSUMS;
pub use error::Error;
pub use flops::{Flops, Recomputed, utilization};
pub use fullshard_core::Chip;
pub use init::{InitLaunch, InitProgram};
pub use layout::{StateTensor, TensorSpec};
pub use loops::LoopResults;
pub use ordered::{CountMismatch, Ordered};
pub use platform::{
    Overlap, check_offload, compiler_flags, dialect, lowering, overlap, scans_layers,
};
pub use program::{METRICS, program_hash};
pub use saved::{SavedPart, SavedTensors};
pub use sizes::{StateBytes, UnitRow};
pub use spec::{BatchShape, StepSpec};
pub use summary::{ModelSummary, StepSettings};
