//! What the time of a run is spent on, as it goes by.

use crate::error::Error;
use crate::trainer::Run;
use std::time::Duration;

/// What time was spent on. No moment counts twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spent {
    /// The steps of a launch, from the end of the launch before, by their numbers.
    Steps {
        /// The first.
        first: u64,
        /// The last.
        last: u64,
    },
    /// A pause to save a checkpoint after a step. It is part of the logged step time.
    Saving {
        /// The step.
        step: u64,
    },
    /// An evaluation.
    Evaluation,
    /// Compiling a program when it was first needed.
    Compile,
}

impl Run<'_, '_, '_> {
    /// The steps of a launch are done, so much time after the launch before.
    pub fn spent_on_steps(&mut self, first: u64, last: u64, time: Duration) -> Result<(), Error> {
        let time = time.saturating_sub(std::mem::take(&mut self.paused));
        self.callback.on_spent(Spent::Steps { first, last }, time)
    }

    /// Training paused to save a checkpoint.
    pub fn spent_on_saving(&mut self, step: u64, time: Duration) -> Result<(), Error> {
        self.paused += time;
        self.callback.on_spent(Spent::Saving { step }, time)
    }

    /// Time was spent on something that is no part of the step time.
    pub fn spent_apart(&mut self, on: Spent, time: Duration) -> Result<(), Error> {
        self.meter.exclude(time);
        self.callback.on_spent(on, time)
    }
}
