//! The training step: a model, a placement and an optimizer put together as compiled programs.
//!
//! A [`Recipe`] has everything that a run's programs follow from. It traces three: one that makes
//! the state, already cut over the devices; one that is a whole training step, collectives and
//! update included; and one that evaluates. A [`Runner`] compiles and runs them.
#![forbid(unsafe_code)]

mod bench;
mod chips;
mod error;
mod estimate;
mod flops;
mod init;
mod recipe;
pub mod report;
mod runner;
mod step;

pub use bench::{Bench, Measured, Spread, loops_layers};
pub use chips::Chip;
pub use error::Error;
pub use estimate::{Estimate, UnitRow};
pub use flops::{Flops, utilization};
pub use recipe::{Batch, Recipe};
pub use runner::{Compiled, Compiler, Metrics, Pending, PendingLoss, Runner};
