//! The training loop around a step's programs.
//!
//! A [`Runner`] compiles and runs the programs of a `StepSpec`, an [`Evaluator`] only what it takes
//! to evaluate. A [`Training`] is the loop around it: batches, learning rates, logs and
//! evaluations.
#![forbid(unsafe_code)]

mod bench;
mod compiler;
mod course;
mod error;
mod evaluation;
mod evaluator;
mod meter;
pub mod report;
mod runner;
mod state;
mod trainer;
mod weights;

pub use bench::{Bench, Measured, Spread};
pub use compiler::{Compiled, Compiler};
pub use course::{Course, CourseOptions, Every};
pub use error::Error;
pub use evaluation::{Evaluated, Evaluation};
pub use evaluator::{Evaluator, PendingLoss};
pub use meter::DeviceMemory;
pub use runner::{Metrics, Pending, Runner};
pub use state::initial_state;
pub use trainer::{Observer, Trained, Training};
pub use weights::model_tensors;
