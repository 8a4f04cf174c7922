//! The flags that say how long a run is and how its learning rate goes.

use super::args::{RunArgs, When};
use crate::error::{Error, Result};
use crate::step::StepFlags;
use fullshard_optim::{Schedule, ScheduleOptions};
use fullshard_train::{Every, TrainScheduleOptions};
use serde_json::Value;

/// Trainer's defaults.
const LOGGING_STEPS: f64 = 500.0;
const EPOCHS: f64 = 3.0;

impl RunArgs {
    /// How long the run is and what happens when.
    pub fn course(&self) -> Result<TrainScheduleOptions> {
        if self.save_strategy != "no" {
            return Err(Error::Usage(format!(
                "--save_strategy is `{}`, but there are no checkpoints during a run yet: use `no`; \
                 the model is saved at the end in any case",
                self.save_strategy
            )));
        }
        if let Some(ratio) = self.warmup_ratio
            && !(0.0..1.0).contains(&ratio)
        {
            let expected = "must be a number from 0 to below 1";
            return Err(Error::Usage(format!("--warmup_ratio is {ratio}, but {expected}")));
        }
        let logging_steps = self.logging_steps.unwrap_or(LOGGING_STEPS);
        let every = |when: Option<When>, otherwise, steps| match when.unwrap_or(otherwise) {
            When::No => Every::Never,
            When::Steps => Every::Steps(steps),
            When::Epoch => Every::Epoch,
        };
        let eval_steps = self.eval_steps.unwrap_or(logging_steps);
        Ok(TrainScheduleOptions {
            epochs: self.num_train_epochs.unwrap_or(EPOCHS),
            max_steps: self
                .max_steps
                .and_then(|steps| u64::try_from(steps).ok())
                .filter(|&n| n > 0),
            warmup: self.warmup_ratio.or(self.warmup_steps).unwrap_or(0.0),
            logging: every(self.logging_strategy, When::Steps, logging_steps),
            log_first: self.logging_first_step,
            evaluation: every(self.eval_strategy, When::No, eval_steps),
            evaluation_delay: self.eval_delay,
        })
    }

    /// How the learning rate goes.
    pub fn schedule(&self, step: &StepFlags) -> Result<Schedule> {
        let mut options =
            ScheduleOptions { learning_rate: Some(step.rate()), ..ScheduleOptions::default() };
        if let Some(text) = &self.lr_scheduler_kwargs {
            read_options(&mut options, text)
                .map_err(|reason| Error::Usage(format!("--lr_scheduler_kwargs: {reason}")))?;
        }
        Ok(options.schedule(self.lr_scheduler_type.as_deref().unwrap_or("linear"))?)
    }
}

fn read_options(options: &mut ScheduleOptions, text: &str) -> Result<(), String> {
    let given: serde_json::Map<String, Value> =
        serde_json::from_str(text).map_err(|error| format!("no JSON object: {error}"))?;
    for (key, value) in &given {
        let wrong = |expected: &str| format!("`{key}` is {value}, but must be {expected}");
        let number = || value.as_f64().ok_or_else(|| wrong("a number"));
        let whole = || value.as_u64().ok_or_else(|| wrong("a whole number"));
        let shape = || {
            let name = value.as_str().ok_or_else(|| wrong("a name"))?;
            name.parse().map_err(|error: fullshard_optim::Error| error.to_string())
        };
        match key.as_str() {
            "num_cycles" => options.num_cycles = Some(number()?),
            "power" => options.power = Some(number()?),
            "lr_end" => options.lr_end = Some(number()?),
            "min_lr" => options.min_lr = Some(number()?),
            "min_lr_rate" => options.min_lr_rate = Some(number()?),
            "min_lr_ratio" => options.min_lr_ratio = Some(number()?),
            "warmup_lr_rate" => options.warmup_lr_rate = Some(number()?),
            "timescale" => options.timescale = Some(whole()?),
            "num_stable_steps" => options.num_stable_steps = Some(whole()?),
            "num_decay_steps" => options.num_decay_steps = Some(whole()?),
            "warmup_type" => options.warmup_type = Some(shape()?),
            "decay_type" => options.decay_type = Some(shape()?),
            _ => return Err(format!("there is no option `{key}`")),
        }
    }
    Ok(())
}
