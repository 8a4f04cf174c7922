//! What others may do while a run goes on.

use crate::error::Error;
use crate::evaluation::Evaluated;
use crate::report::Values;
use crate::runner::Metrics;
use std::path::Path;

/// Is called as a run goes on, like Hugging Face's `TrainerCallback`. Every method does nothing
/// unless it is implemented; an error ends the run.
pub trait Callback {
    /// A step is done. Steps are counted from 1.
    fn on_step(&mut self, step: u64, metrics: Metrics) -> Result<(), Error> {
        let _ = (step, metrics);
        Ok(())
    }

    /// Something is logged after a step.
    fn on_log(&mut self, step: u64, values: &Values) -> Result<(), Error> {
        let _ = (step, values);
        Ok(())
    }

    /// The model is evaluated after a step.
    fn on_evaluate(&mut self, step: u64, evaluated: &Evaluated) -> Result<(), Error> {
        let _ = (step, evaluated);
        Ok(())
    }

    /// A profile is written.
    fn on_profile(&mut self, path: &Path) -> Result<(), Error> {
        let _ = path;
        Ok(())
    }
}

/// Nothing is done.
impl Callback for () {}
