//! The length of a run, when it logs and evaluates, and its learning rate schedule.

use crate::config::{RunConfig, SaveWhen, When};
use crate::error::{Error, Result};
use fullshard_optim::{Schedule, ScheduleOptions};
use fullshard_train::{Every, TrainScheduleOptions};
use serde_json::Value;

impl RunConfig {
    /// The length of the run, and when it logs and evaluates.
    pub(super) fn train_schedule(&self) -> Result<TrainScheduleOptions> {
        let saving = match self.checkpoint.strategy {
            SaveWhen::No | SaveWhen::Best => Every::Never,
            SaveWhen::Steps => Every::Steps(self.checkpoint.steps),
            SaveWhen::Epoch => Every::Epoch,
        };
        let every = |when, steps| match when {
            When::No => Every::Never,
            When::Steps => Every::Steps(steps),
            When::Epoch => Every::Epoch,
        };
        let (schedule, logging, evaluation) = (&self.schedule, &self.logging, &self.evaluation);
        Ok(TrainScheduleOptions {
            epochs: schedule.epochs,
            max_steps: u64::try_from(schedule.max_steps).ok().filter(|&steps| steps > 0),
            warmup: schedule.warmup_steps,
            logging: every(logging.strategy, logging.steps),
            log_first: logging.first_step,
            evaluation: every(evaluation.strategy, evaluation.steps.unwrap_or(logging.steps)),
            evaluation_delay: evaluation.delay,
            saving,
        })
    }

    /// The learning rate schedule.
    pub(super) fn lr_schedule(&self) -> Result<Schedule> {
        let mut options =
            ScheduleOptions { learning_rate: Some(self.learning_rate()), ..Default::default() };
        for (key, value) in &self.schedule.lr_scheduler_kwargs {
            set_option(&mut options, key, value)
                .map_err(|reason| Error::Usage(format!("--lr_scheduler_kwargs: {reason}")))?;
        }
        Ok(options.schedule(&self.schedule.lr_scheduler)?)
    }
}

fn set_option(options: &mut ScheduleOptions, key: &str, value: &Value) -> Result<(), String> {
    let invalid = |expected: &str| format!("`{key}` is {value}, but must be {expected}");
    let number = || value.as_f64().ok_or_else(|| invalid("a number"));
    let integer = || value.as_u64().ok_or_else(|| invalid("an integer"));
    let shape = || {
        let name = value.as_str().ok_or_else(|| invalid("a name"))?;
        name.parse().map_err(|error: fullshard_optim::Error| error.to_string())
    };
    match key {
        "num_cycles" => options.num_cycles = Some(number()?),
        "power" => options.power = Some(number()?),
        "lr_end" => options.lr_end = Some(number()?),
        "min_lr" => options.min_lr = Some(number()?),
        "min_lr_rate" => options.min_lr_rate = Some(number()?),
        "min_lr_ratio" => options.min_lr_ratio = Some(number()?),
        "warmup_lr_rate" => options.warmup_lr_rate = Some(number()?),
        "timescale" => options.timescale = Some(integer()?),
        "num_stable_steps" => options.num_stable_steps = Some(integer()?),
        "num_decay_steps" => options.num_decay_steps = Some(integer()?),
        "warmup_type" => options.warmup_type = Some(shape()?),
        "decay_type" => options.decay_type = Some(shape()?),
        _ => return Err(format!("unknown option `{key}`")),
    }
    Ok(())
}
