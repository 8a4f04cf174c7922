//! How long a run is and what happens when, by the rules of Hugging Face's Trainer.

use crate::error::Error;

/// When something is done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Every {
    /// Not at all.
    Never,
    /// After so many steps; below 1 it is a share of all steps.
    Steps(f64),
    /// At the end of each epoch.
    Epoch,
}

/// What the flags say of a run's length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainScheduleOptions {
    /// `num_train_epochs`: how often all blocks are seen.
    pub epochs: f64,
    /// `max_steps`: so many steps instead, if given.
    pub max_steps: Option<u64>,
    /// `warmup_steps`: below 1 it is a share of all steps.
    pub warmup: f64,
    /// `logging_strategy` and `logging_steps`.
    pub logging: Every,
    /// `logging_first_step`: whether the first step is logged in any case.
    pub log_first: bool,
    /// `eval_strategy` and `eval_steps`.
    pub evaluation: Every,
    /// `eval_delay`: the steps, or epochs, before the first evaluation.
    pub evaluation_delay: f64,
}

impl Default for TrainScheduleOptions {
    fn default() -> TrainScheduleOptions {
        TrainScheduleOptions {
            epochs: 3.0,
            max_steps: None,
            warmup: 0.0,
            logging: Every::Steps(500.0),
            log_first: false,
            evaluation: Every::Never,
            evaluation_delay: 0.0,
        }
    }
}

/// A run's length in steps, and what happens after which of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainSchedule {
    /// Steps in all.
    pub steps: u64,
    /// Steps of an epoch.
    pub steps_per_epoch: u64,
    /// Epochs, the last perhaps in part.
    pub epochs: u64,
    /// Steps of warm-up.
    pub warmup: u64,
    /// Steps between logs; those of an epoch if that is when.
    pub logging_steps: u64,
    /// Steps between evaluations; those of an epoch if that is when.
    pub evaluation_steps: u64,
    options: TrainScheduleOptions,
}

impl TrainSchedule {
    /// The schedule of a run with so many steps in an epoch.
    pub fn new(
        options: TrainScheduleOptions,
        steps_per_epoch: u64,
    ) -> Result<TrainSchedule, Error> {
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let refuse = |what, value: f64, expected| {
            Err(Error::Schedule { what, value: value.to_string(), expected })
        };
        if options.max_steps.is_none() && !positive(options.epochs) {
            return refuse("num_train_epochs", options.epochs, "a number above 0");
        }
        if !(options.warmup.is_finite() && options.warmup >= 0.0) {
            return refuse("warmup_steps", options.warmup, "a number of at least 0");
        }
        for (what, every) in
            [("logging_steps", options.logging), ("eval_steps", options.evaluation)]
        {
            if let Every::Steps(steps) = every
                && !positive(steps)
            {
                return refuse(what, steps, "a number above 0");
            }
            if let Every::Steps(steps) = every
                && steps > 1.0
                && steps.fract() != 0.0
            {
                return refuse(what, steps, "a whole number, or a share of all steps below 1");
            }
        }
        let steps = match options.max_steps {
            Some(steps) => steps,
            None => (options.epochs * steps_per_epoch as f64).ceil() as u64,
        };
        let epochs = match options.max_steps {
            Some(steps) => steps.div_ceil(steps_per_epoch.max(1)),
            None => options.epochs.ceil() as u64,
        };
        let spaced = |every| match every {
            Every::Never => 0,
            Every::Epoch => steps_per_epoch,
            Every::Steps(share) if share < 1.0 => (share * steps as f64).ceil() as u64,
            Every::Steps(count) => count as u64,
        };
        let warmup = match options.warmup {
            share if share < 1.0 => (share * steps as f64).ceil() as u64,
            count => count as u64,
        };
        Ok(TrainSchedule {
            steps,
            steps_per_epoch,
            epochs,
            warmup,
            logging_steps: spaced(options.logging),
            evaluation_steps: spaced(options.evaluation),
            options,
        })
    }

    /// How many epochs so many steps are.
    pub fn epoch(&self, step: u64) -> f64 {
        step as f64 / self.steps_per_epoch.max(1) as f64
    }

    /// Whether something is logged after a step, counted from 1.
    pub fn logs_after(&self, step: u64) -> bool {
        let due = self.falls_on(self.options.logging, self.logging_steps, step);
        due || (step == 1 && self.options.log_first)
    }

    /// Whether there is an evaluation after a step, counted from 1.
    pub fn evaluates_after(&self, step: u64) -> bool {
        let passed = match self.options.evaluation {
            Every::Epoch => self.epoch(step),
            _ => step as f64,
        };
        passed >= self.options.evaluation_delay
            && self.falls_on(self.options.evaluation, self.evaluation_steps, step)
    }

    fn falls_on(&self, every: Every, spacing: u64, step: u64) -> bool {
        match every {
            Every::Never => false,
            Every::Steps(_) => step.is_multiple_of(spacing.max(1)),
            Every::Epoch => step == self.steps || step.is_multiple_of(spacing.max(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(options: TrainScheduleOptions, steps_per_epoch: u64) -> TrainSchedule {
        TrainSchedule::new(options, steps_per_epoch).unwrap()
    }

    #[test]
    fn lengths_are_trainers() {
        let lengths = |epochs, max_steps| {
            let options =
                TrainScheduleOptions { epochs, max_steps, ..TrainScheduleOptions::default() };
            let schedule = schedule(options, 10);
            (schedule.steps, schedule.epochs)
        };
        assert_eq!(lengths(3.0, None), (30, 3));
        assert_eq!(lengths(0.25, None), (3, 1));
        assert_eq!(lengths(1.05, None), (11, 2));
        assert_eq!(lengths(3.0, Some(21)), (21, 3));
        assert_eq!(lengths(3.0, Some(20)), (20, 2));
    }

    #[test]
    fn shares_are_of_all_steps() {
        let options = TrainScheduleOptions {
            max_steps: Some(33),
            warmup: 0.1,
            logging: Every::Steps(0.25),
            evaluation: Every::Steps(10.0),
            ..TrainScheduleOptions::default()
        };
        let schedule = schedule(options, 10);
        assert_eq!(
            (schedule.warmup, schedule.logging_steps, schedule.evaluation_steps),
            (4, 9, 10)
        );
        let logged: Vec<u64> = (1..=33).filter(|&step| schedule.logs_after(step)).collect();
        assert_eq!(logged, [9, 18, 27]);
        let evaluated: Vec<u64> = (1..=33).filter(|&step| schedule.evaluates_after(step)).collect();
        assert_eq!(evaluated, [10, 20, 30]);
    }

    #[test]
    fn epochs_end_with_their_last_step_and_the_run() {
        let options = TrainScheduleOptions {
            max_steps: Some(25),
            logging: Every::Epoch,
            log_first: true,
            evaluation: Every::Epoch,
            evaluation_delay: 2.0,
            ..TrainScheduleOptions::default()
        };
        let schedule = schedule(options, 10);
        let logged: Vec<u64> = (1..=25).filter(|&step| schedule.logs_after(step)).collect();
        assert_eq!(logged, [1, 10, 20, 25]);
        let evaluated: Vec<u64> = (1..=25).filter(|&step| schedule.evaluates_after(step)).collect();
        assert_eq!(evaluated, [20, 25]);
        assert_eq!(schedule.epoch(25), 2.5);
    }

    #[test]
    fn numbers_that_mean_nothing_are_refused() {
        let default = TrainScheduleOptions::default();
        for options in [
            TrainScheduleOptions { epochs: 0.0, ..default },
            TrainScheduleOptions { epochs: f64::NAN, ..default },
            TrainScheduleOptions { warmup: -1.0, ..default },
            TrainScheduleOptions { logging: Every::Steps(0.0), ..default },
            TrainScheduleOptions { evaluation: Every::Steps(1.5), ..default },
        ] {
            assert!(TrainSchedule::new(options, 10).is_err(), "{options:?}");
        }
    }
}
