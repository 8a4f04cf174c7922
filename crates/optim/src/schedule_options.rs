//! Trainer's options of learning-rate schedules.

use crate::error::Error;
use crate::schedule::{SCHEDULES, Schedule, Shape, StableDecay};

/// The options of schedules, named as in Hugging Face's `lr_scheduler_kwargs`. Options that are not
/// set have the default of the schedule; options that a schedule does not take are an error.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ScheduleOptions {
    /// The learning rate of the run, which `lr_end` and `min_lr` are relative to; 5e-5 by default.
    pub learning_rate: Option<f64>,
    /// Cycles of a cosine, or restarts.
    pub num_cycles: Option<f64>,
    /// The power of a polynomial decay.
    pub power: Option<f64>,
    /// The final learning rate of a polynomial decay.
    pub lr_end: Option<f64>,
    /// The minimum learning rate.
    pub min_lr: Option<f64>,
    /// The minimum learning rate relative to the run's.
    pub min_lr_rate: Option<f64>,
    /// The same in `warmup_stable_decay`.
    pub min_lr_ratio: Option<f64>,
    /// The initial learning rate of the warmup, relative to the run's.
    pub warmup_lr_rate: Option<f64>,
    /// The time scale of `inverse_sqrt`, in steps.
    pub timescale: Option<u64>,
    /// Steps at the constant rate.
    pub num_stable_steps: Option<u64>,
    /// Steps of the decay.
    pub num_decay_steps: Option<u64>,
    /// The shape of the warmup.
    pub warmup_type: Option<Shape>,
    /// The shape of the decay.
    pub decay_type: Option<Shape>,
}

impl ScheduleOptions {
    /// The schedule with a name and these options.
    pub fn schedule(&self, name: &str) -> Result<Schedule, Error> {
        if ["reduce_lr_on_plateau", "greedy"].contains(&name) {
            return Err(Error::AdaptiveSchedule { name: name.to_owned(), known: SCHEDULES });
        }
        let Some(name) = SCHEDULES.iter().find(|known| **known == name) else {
            return Err(Error::UnknownSchedule { name: name.to_owned(), known: SCHEDULES });
        };
        self.check_used(name)?;
        let cycles = self.num_cycles;
        Ok(match *name {
            "linear" => Schedule::Linear,
            "cosine" => Schedule::Cosine { cycles: cycles.unwrap_or(0.5) },
            "cosine_with_restarts" => {
                Schedule::CosineWithRestarts { cycles: cycles.unwrap_or(1.0) }
            }
            "polynomial" => self.polynomial()?,
            "constant_with_warmup" => Schedule::ConstantWithWarmup,
            "inverse_sqrt" => {
                Schedule::InverseSqrt { timescale: self.timescale.map(|steps| steps as f64) }
            }
            "cosine_with_min_lr" => {
                Schedule::CosineWithMinLr { cycles: cycles.unwrap_or(0.5), min: self.min(name)? }
            }
            "cosine_warmup_with_min_lr" => Schedule::CosineWarmupWithMinLr {
                cycles: cycles.unwrap_or(0.5),
                min: self.min(name)?,
                start: self.warmup_lr_rate,
            },
            "warmup_stable_decay" => self.stable_decay(name)?,
            _ => Schedule::Constant,
        })
    }

    fn polynomial(&self) -> Result<Schedule, Error> {
        let lr_end = self.lr_end.unwrap_or(1e-7);
        if lr_end >= self.rate() {
            let expected = "below the learning rate";
            return Err(Error::OutOfRange { option: "lr_end", value: lr_end, expected });
        }
        let power = self.power.unwrap_or(1.0);
        Ok(Schedule::Polynomial { power, end: lr_end / self.rate() })
    }

    fn stable_decay(&self, name: &'static str) -> Result<Schedule, Error> {
        let missing = Error::MissingScheduleOption { schedule: name, option: "num_decay_steps" };
        Ok(Schedule::WarmupStableDecay(StableDecay {
            stable_steps: self.num_stable_steps.map(|steps| steps as f64),
            decay_steps: self.num_decay_steps.ok_or(missing)? as f64,
            warmup: self.warmup_type.unwrap_or(Shape::Linear),
            decay: self.decay_type.unwrap_or(Shape::Cosine),
            min: self.min_lr_ratio.unwrap_or(0.0),
            cycles: self.num_cycles.unwrap_or(0.5),
        }))
    }

    fn rate(&self) -> f64 {
        self.learning_rate.unwrap_or(5e-5)
    }

    /// The minimum learning rate relative to the run's.
    fn min(&self, schedule: &'static str) -> Result<f64, Error> {
        let option = "min_lr or min_lr_rate";
        match (self.min_lr, self.min_lr_rate) {
            (Some(_), Some(_)) => Err(Error::ConflictingMinLr),
            (Some(rate), None) => Ok(rate / self.rate()),
            (None, Some(rate)) => Ok(rate),
            (None, None) => Err(Error::MissingScheduleOption { schedule, option }),
        }
    }

    fn check_used(&self, schedule: &'static str) -> Result<(), Error> {
        let given = [
            ("num_cycles", self.num_cycles.is_some()),
            ("power", self.power.is_some()),
            ("lr_end", self.lr_end.is_some()),
            ("min_lr", self.min_lr.is_some()),
            ("min_lr_rate", self.min_lr_rate.is_some()),
            ("min_lr_ratio", self.min_lr_ratio.is_some()),
            ("warmup_lr_rate", self.warmup_lr_rate.is_some()),
            ("timescale", self.timescale.is_some()),
            ("num_stable_steps", self.num_stable_steps.is_some()),
            ("num_decay_steps", self.num_decay_steps.is_some()),
            ("warmup_type", self.warmup_type.is_some()),
            ("decay_type", self.decay_type.is_some()),
        ];
        let supported = supported_options(schedule);
        let unused = given.iter().find(|(option, given)| *given && !supported.contains(option));
        match unused {
            Some((option, _)) => Err(Error::UnusedScheduleOption { schedule, option }),
            None => Ok(()),
        }
    }
}

/// The options that a schedule takes.
fn supported_options(schedule: &str) -> &'static [&'static str] {
    match schedule {
        "cosine" | "cosine_with_restarts" => &["num_cycles"],
        "polynomial" => &["power", "lr_end"],
        "inverse_sqrt" => &["timescale"],
        "cosine_with_min_lr" => &["num_cycles", "min_lr", "min_lr_rate"],
        "cosine_warmup_with_min_lr" => &["num_cycles", "min_lr", "min_lr_rate", "warmup_lr_rate"],
        "warmup_stable_decay" => &[
            "num_stable_steps",
            "num_decay_steps",
            "warmup_type",
            "decay_type",
            "min_lr_ratio",
            "num_cycles",
        ],
        _ => &[],
    }
}
