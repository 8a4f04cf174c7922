//! The length of a run and when it logs and evaluates, by the rules of Hugging Face's Trainer.

use crate::error::Error;

/// The interval of logging or evaluation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Every {
    /// Never.
    Never,
    /// Every N steps; below 1, a fraction of all steps.
    Steps(f64),
    /// At the end of each epoch.
    Epoch,
}

/// The flags of a run's schedule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainScheduleOptions {
    /// `num_train_epochs`: the number of passes over all blocks.
    pub epochs: f64,
    /// `max_steps`: the number of steps, overrides epochs.
    pub max_steps: Option<u64>,
    /// `warmup_steps`: below 1, a fraction of all steps.
    pub warmup: f64,
    /// `logging_strategy` and `logging_steps`.
    pub logging: Every,
    /// `logging_first_step`: whether to always log the first step.
    pub log_first: bool,
    /// `eval_strategy` and `eval_steps`.
    pub evaluation: Every,
    /// `eval_delay`: steps or epochs before the first evaluation.
    pub evaluation_delay: f64,
    /// `save_strategy` and `save_steps`.
    pub saving: Every,
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
            saving: Every::Never,
        }
    }
}

/// A run's length in steps, and after which of them it logs and evaluates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainSchedule {
    /// Total number of steps.
    pub steps: u64,
    /// Steps per epoch.
    pub steps_per_epoch: u64,
    /// Number of epochs; the last may be partial.
    pub epochs: u64,
    /// Warm-up steps.
    pub warmup: u64,
    /// Steps between logs; `steps_per_epoch` for [`Every::Epoch`].
    pub logging_steps: u64,
    /// Steps between evaluations; `steps_per_epoch` for [`Every::Epoch`].
    pub evaluation_steps: u64,
    /// Steps between checkpoints; `steps_per_epoch` for [`Every::Epoch`].
    pub saving_steps: u64,
    options: TrainScheduleOptions,
    /// Where a run with other batches before was resumed.
    origin: Origin,
}

/// A step from which on batches have another size, and the epochs done by then.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Origin {
    /// The step.
    pub step: u64,
    /// The epochs, with a fraction of the current one.
    pub epochs: f64,
    /// Steps left in the current epoch.
    pub left: u64,
}

impl TrainSchedule {
    /// The schedule of a run with this number of steps per epoch.
    pub fn new(
        options: TrainScheduleOptions,
        steps_per_epoch: u64,
    ) -> Result<TrainSchedule, Error> {
        let origin = Origin { step: 0, epochs: 0.0, left: steps_per_epoch };
        TrainSchedule::resumed(options, steps_per_epoch, origin)
    }

    /// The schedule of a run that had other batches before the origin.
    pub fn resumed(
        options: TrainScheduleOptions,
        steps_per_epoch: u64,
        origin: Origin,
    ) -> Result<TrainSchedule, Error> {
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let invalid = |what, value: f64, expected| {
            Err(Error::Schedule { what, value: value.to_string(), expected })
        };
        if options.max_steps.is_none() && !positive(options.epochs) {
            return invalid("num_train_epochs", options.epochs, "a number above 0");
        }
        if !(options.warmup.is_finite() && options.warmup >= 0.0) {
            return invalid("warmup_steps", options.warmup, "a number of at least 0");
        }
        for (what, every) in [
            ("logging_steps", options.logging),
            ("eval_steps", options.evaluation),
            ("save_steps", options.saving),
        ] {
            if let Every::Steps(steps) = every
                && !positive(steps)
            {
                return invalid(what, steps, "a number above 0");
            }
            if let Every::Steps(steps) = every
                && steps > 1.0
                && steps.fract() != 0.0
            {
                return invalid(what, steps, "a whole number, or a fraction of all steps below 1");
            }
        }
        let steps = match options.max_steps {
            Some(steps) => steps,
            None => origin.steps(options.epochs, steps_per_epoch),
        };
        let epochs = match options.max_steps {
            Some(steps) => steps.div_ceil(steps_per_epoch.max(1)),
            None => options.epochs.ceil() as u64,
        };
        let interval = |every| match every {
            Every::Never => 0,
            Every::Epoch => steps_per_epoch,
            Every::Steps(fraction) if fraction < 1.0 => (fraction * steps as f64).ceil() as u64,
            Every::Steps(count) => count as u64,
        };
        let warmup = match options.warmup {
            fraction if fraction < 1.0 => (fraction * steps as f64).ceil() as u64,
            count => count as u64,
        };
        Ok(TrainSchedule {
            steps,
            steps_per_epoch,
            epochs,
            warmup,
            logging_steps: interval(options.logging),
            evaluation_steps: interval(options.evaluation),
            saving_steps: interval(options.saving),
            options,
            origin,
        })
    }

    /// The number of epochs at a step.
    pub fn epoch(&self, step: u64) -> f64 {
        let Origin { step: start, epochs, left } = self.origin;
        let end = epochs.floor() + 1.0;
        match step.checked_sub(start) {
            None => epochs * step as f64 / start as f64,
            Some(since) if since <= left => {
                epochs + (end - epochs) * since as f64 / left.max(1) as f64
            }
            Some(since) => end + (since - left) as f64 / self.steps_per_epoch.max(1) as f64,
        }
    }

    /// Whether to log after a step, counted from 1.
    pub fn logs_after(&self, step: u64) -> bool {
        let due = self.is_due(self.options.logging, self.logging_steps, step);
        due || (step == 1 && self.options.log_first)
    }

    /// Whether to evaluate after a step, counted from 1.
    pub fn evaluates_after(&self, step: u64) -> bool {
        let passed = match self.options.evaluation {
            Every::Epoch => self.epoch(step),
            _ => step as f64,
        };
        passed >= self.options.evaluation_delay
            && self.is_due(self.options.evaluation, self.evaluation_steps, step)
    }

    /// Whether to save a checkpoint after a step, counted from 1: also after the last one.
    pub fn saves_after(&self, step: u64) -> bool {
        let last = step == self.steps && self.options.saving != Every::Never;
        last || self.is_due(self.options.saving, self.saving_steps, step)
    }

    fn is_due(&self, every: Every, interval: u64, step: u64) -> bool {
        match every {
            Every::Never => false,
            Every::Steps(_) => step.is_multiple_of(interval.max(1)),
            Every::Epoch => step == self.steps || self.ends_epoch(step),
        }
    }

    fn ends_epoch(&self, step: u64) -> bool {
        let after = step.checked_sub(self.origin.step + self.origin.left);
        after.is_some_and(|after| after.is_multiple_of(self.steps_per_epoch.max(1)))
    }
}

impl Origin {
    /// The steps until a number of epochs is done.
    fn steps(&self, epochs: f64, per_epoch: u64) -> u64 {
        let (end, per_epoch) = (self.epochs.floor() + 1.0, per_epoch as f64);
        let more = match epochs >= end {
            true => self.left + ((epochs - end) * per_epoch).ceil() as u64,
            false => ((epochs - self.epochs).max(0.0) * per_epoch).ceil() as u64,
        };
        self.step + more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(options: TrainScheduleOptions, steps_per_epoch: u64) -> TrainSchedule {
        TrainSchedule::new(options, steps_per_epoch).unwrap()
    }

    #[test]
    fn lengths_match_trainer() {
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
    fn fractions_are_of_all_steps() {
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
    fn epochs_go_on_after_an_origin() {
        let options = TrainScheduleOptions {
            epochs: 3.0,
            saving: Every::Epoch,
            ..TrainScheduleOptions::default()
        };
        // 10 examples: 7 steps of 2 were done (4 of 10 in the second epoch), now 3 per step.
        let origin = Origin { step: 7, epochs: 1.4, left: 2 };
        let schedule = TrainSchedule::resumed(options, 4, origin).unwrap();
        assert_eq!(schedule.steps, 7 + 2 + 4);
        assert_eq!(schedule.epoch(7), 1.4);
        assert_eq!(schedule.epoch(9), 2.0);
        assert_eq!(schedule.epoch(13), 3.0);
        let saved: Vec<u64> = (8..=13).filter(|&step| schedule.saves_after(step)).collect();
        assert_eq!(saved, [9, 13]);
    }

    #[test]
    fn rejects_invalid_numbers() {
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
