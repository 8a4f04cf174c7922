//! The profile of a few steps of a run.

use crate::error::Error;
use crate::trainer::Run;
use fullshard_pjrt::write_profile;

/// The profiled steps, after the first ones.
const PROFILED: std::ops::Range<u64> = 2..5;

impl Run<'_, '_, '_> {
    /// The steps to profile: not the first launches, if there are enough others.
    fn profiled(&self) -> std::ops::Range<u64> {
        let steps = self.training.schedule.steps;
        let iterations = self.runner.spec().iterations_per_loop as u64;
        let start = PROFILED.start.next_multiple_of(iterations);
        let end = PROFILED.end.max(start + iterations);
        if steps > end { start..end } else { 0..steps }
    }

    pub fn begin_profile(&mut self, done: u64) -> Result<(), Error> {
        if self.training.profile.is_some() && done == self.profiled().start {
            self.catch_up()?;
            self.watchdog.excuse();
            self.profile = Some(self.runner.client().plugin().start_profile()?);
        }
        Ok(())
    }

    pub fn end_profile(&mut self, launched: u64) -> Result<(), Error> {
        if launched < self.profiled().end {
            return Ok(());
        }
        if let (Some(profile), Some(folder)) = (self.profile.take(), &self.training.profile) {
            self.catch_up()?;
            self.watchdog.excuse();
            self.callback.on_profile(&write_profile(folder, &profile.finish()?)?)?;
        }
        Ok(())
    }
}
