//! The training step: a model, a placement and an optimizer put together as compiled programs.
//!
//! A [`Recipe`] has everything that a run's programs follow from. It traces those that make the
//! state, already cut over the devices; one that is a whole training step, collectives and update
//! included; and one that evaluates. A [`Runner`] compiles and runs them, an [`Evaluator`] only what
//! it takes to evaluate. A [`Training`] is the loop around it: batches, learning rates, logs and
//! evaluations.
#![forbid(unsafe_code)]

mod bench;
mod chips;
mod compiler;
mod course;
mod error;
mod evaluation;
mod evaluator;
mod flops;
mod init;
mod meter;
mod recipe;
pub mod report;
mod runner;
mod sizes;
mod state;
mod step;
mod suits;
mod trainer;
mod weights;

pub use bench::{Bench, Measured, Spread};
pub use chips::Chip;
pub use compiler::{Compiled, Compiler, program_hash};
pub use course::{Course, CourseOptions, Every};
pub use error::Error;
pub use evaluation::{Evaluated, Evaluation};
pub use evaluator::{Evaluator, PendingLoss};
pub use flops::{Flops, utilization};
pub use init::{InitLaunch, InitProgram};
pub use meter::DeviceMemory;
pub use recipe::{Batch, Recipe};
pub use runner::{Metrics, Pending, Runner};
pub use sizes::{StateBytes, UnitRow};
pub use state::initial_state;
pub use suits::{compiler_flags, dialect, forms, loops_layers};
pub use trainer::{Observer, Trained, Training};
