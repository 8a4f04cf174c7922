//! Callbacks of a training run.

use crate::checkpoint::SaveResult;
use crate::error::Error;
use crate::evaluation::Evaluated;
use crate::guard::Spike;
use crate::launch::Metrics;
use crate::report::Values;
use crate::spent::Spent;
use crate::start_up::StartUp;
use std::path::Path;
use std::time::Duration;

/// Called during a run, like Hugging Face's `TrainerCallback`. Methods do nothing by default; an
/// error ends the run.
pub trait Callback {
    /// Called after a step, counted from 1.
    fn on_step(&mut self, step: u64, metrics: Metrics) -> Result<(), Error> {
        let _ = (step, metrics);
        Ok(())
    }

    /// Called after the first step, with the time since the launch of the run.
    fn on_start_up(&mut self, start_up: &StartUp) -> Result<(), Error> {
        let _ = start_up;
        Ok(())
    }

    /// Called when the state was copied to the memory of hosts, or could not be.
    fn on_copied(&mut self, copied: &SaveResult) -> Result<(), Error> {
        let _ = copied;
        Ok(())
    }

    /// Called when time was spent on something, before its other callbacks.
    fn on_spent(&mut self, on: Spent, time: Duration) -> Result<(), Error> {
        let _ = (on, time);
        Ok(())
    }

    /// Called after a loss spike. A step that was skipped has no [`Self::on_step`], and after a
    /// rollback those after the checkpoint come again.
    fn on_spike(&mut self, spike: &Spike) -> Result<(), Error> {
        let _ = spike;
        Ok(())
    }

    /// Called when values are logged after a step.
    fn on_log(&mut self, step: u64, values: &Values) -> Result<(), Error> {
        let _ = (step, values);
        Ok(())
    }

    /// Called when the model has been evaluated after a step.
    fn on_evaluate(&mut self, step: u64, evaluated: &Evaluated) -> Result<(), Error> {
        let _ = (step, evaluated);
        Ok(())
    }

    /// Called when a checkpoint is about to be saved after a step, with its folder, to write other
    /// files into it.
    fn on_save(&mut self, step: u64, folder: &Path) -> Result<(), Error> {
        let _ = (step, folder);
        Ok(())
    }

    /// Called when a checkpoint is complete, or could not be saved; training goes on either way.
    fn on_saved(&mut self, saved: &SaveResult) -> Result<(), Error> {
        let _ = saved;
        Ok(())
    }

    /// Called when a profile has been written.
    fn on_profile(&mut self, path: &Path) -> Result<(), Error> {
        let _ = path;
        Ok(())
    }
}

/// Does nothing.
impl Callback for () {}
