//! Simulations, event by event, beside the closed forms of `fullshard-plan`.
//!
//! One [engine] runs three models: a [job] whose hosts fail and are repaired, [collectives] on tori
//! as messages over links that they share, and the [start](start_up) of a job. Formulas assume that nothing happens twice at once and that
//! everybody is in step; a simulation does not.
#![forbid(unsafe_code)]

pub mod collectives;
pub mod engine;
mod error;
pub mod job;
pub mod start_up;

pub use error::Error;
