//! Learning-rate schedules: a factor of the learning rate per step, computed on the host.

use crate::error::Error;
use std::f64::consts::PI;
use std::str::FromStr;

/// The names of schedules, as in Hugging Face's `lr_scheduler_type`.
pub const SCHEDULES: &[&str] = &[
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
    "cosine_with_min_lr",
    "cosine_warmup_with_min_lr",
    "warmup_stable_decay",
];

/// A learning-rate schedule. All but [`Schedule::Constant`] begin with a warmup.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Schedule {
    /// Linear decay to zero.
    Linear,
    /// Cosine decay to zero.
    Cosine {
        /// The number of cycles; half a cycle decays from one to zero.
        cycles: f64,
    },
    /// Cosine decay to zero with restarts.
    CosineWithRestarts {
        /// The number of decays.
        cycles: f64,
    },
    /// Polynomial decay.
    Polynomial {
        /// Its power.
        power: f64,
        /// The final value, in units of the learning rate.
        end: f64,
    },
    /// Constant, without warmup.
    Constant,
    /// Constant, after a warmup.
    ConstantWithWarmup,
    /// Inverse square root decay.
    InverseSqrt {
        /// The time scale in steps; the warmup steps by default.
        timescale: Option<f64>,
    },
    /// Cosine decay to a minimum.
    CosineWithMinLr {
        /// The number of cycles.
        cycles: f64,
        /// The minimum, in units of the learning rate.
        min: f64,
    },
    /// Cosine decay to a minimum, after a warmup that does not begin at zero.
    CosineWarmupWithMinLr {
        /// The number of cycles.
        cycles: f64,
        /// The minimum, in units of the learning rate.
        min: f64,
        /// The initial value of the warmup; that of its first step by default.
        start: Option<f64>,
    },
    /// A warmup, a constant rate for most of the run, and a decay at its end.
    WarmupStableDecay(StableDecay),
}

/// A warmup, a constant rate for most of the run, and a decay at its end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StableDecay {
    /// Steps at the constant rate; the remaining steps by default.
    pub stable_steps: Option<f64>,
    /// Steps of the decay.
    pub decay_steps: f64,
    /// The shape of the warmup.
    pub warmup: Shape,
    /// The shape of the decay.
    pub decay: Shape,
    /// The minimum, in units of the learning rate.
    pub min: f64,
    /// The number of cycles, if the decay is a cosine.
    pub cycles: f64,
}

/// The shape of a warmup or a decay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Linear.
    Linear,
    /// Cosine.
    Cosine,
    /// One minus the square root.
    OneMinusSqrt,
}

impl FromStr for Shape {
    type Err = Error;

    fn from_str(name: &str) -> Result<Shape, Error> {
        match name {
            "linear" => Ok(Shape::Linear),
            "cosine" => Ok(Shape::Cosine),
            "1-sqrt" => Ok(Shape::OneMinusSqrt),
            _ => Err(Error::UnknownShape { name: name.to_owned() }),
        }
    }
}

impl FromStr for Schedule {
    type Err = Error;

    /// The schedule with a name and default options.
    fn from_str(name: &str) -> Result<Schedule, Error> {
        crate::ScheduleOptions::default().schedule(name)
    }
}

impl Schedule {
    /// The factor of the learning rate at a step, counted from 0, of a run of `total` steps with
    /// `warmup` warmup steps.
    pub fn factor(&self, step: u64, warmup: u64, total: u64) -> f64 {
        let run = Run { step: step as f64, warmup: warmup as f64, total: total as f64 };
        match *self {
            Schedule::Constant => 1.0,
            Schedule::CosineWarmupWithMinLr { cycles, min, start } => {
                run.cosine_after_raised_warmup(cycles, min, start)
            }
            Schedule::WarmupStableDecay(stable) => stable.factor(&run),
            _ if step < warmup => run.warmup_progress(),
            Schedule::Linear => (run.left() / run.decay_steps()).max(0.0),
            Schedule::Cosine { cycles } => cosine(cycles, run.progress()),
            Schedule::CosineWithRestarts { .. } if run.progress() >= 1.0 => 0.0,
            Schedule::CosineWithRestarts { cycles } => cosine(0.5, (cycles * run.progress()) % 1.0),
            Schedule::Polynomial { end, .. } if step > total => end,
            Schedule::Polynomial { power, end } => {
                (1.0 - end) * (1.0 - run.progress()).powf(power) + end
            }
            Schedule::ConstantWithWarmup => 1.0,
            Schedule::InverseSqrt { timescale } => run.inverse_sqrt(timescale),
            Schedule::CosineWithMinLr { cycles, min } => {
                rescale(min, cosine(cycles, run.progress()))
            }
        }
    }
}

impl StableDecay {
    fn factor(&self, run: &Run) -> f64 {
        let left = run.total - run.warmup - self.decay_steps;
        let decay_start = run.warmup + self.stable_steps.unwrap_or(left);
        if run.step < run.warmup {
            rescale(self.min, self.warmup.rise(run.warmup_progress()))
        } else if run.step < decay_start {
            1.0
        } else if run.step < decay_start + self.decay_steps {
            let progress = (run.step - decay_start) / self.decay_steps.max(1.0);
            rescale(self.min, self.decay.fall(progress, self.cycles))
        } else {
            self.min
        }
    }
}

impl Shape {
    fn rise(self, progress: f64) -> f64 {
        match self {
            Shape::Linear => progress,
            Shape::Cosine => 0.5 * (1.0 - (PI * progress).cos()),
            Shape::OneMinusSqrt => 1.0 - (1.0 - progress).sqrt(),
        }
    }

    fn fall(self, progress: f64, cycles: f64) -> f64 {
        match self {
            Shape::Linear => 1.0 - progress,
            Shape::Cosine => cosine(cycles, progress),
            Shape::OneMinusSqrt => 1.0 - progress.sqrt(),
        }
    }
}

/// A step of a run.
struct Run {
    step: f64,
    warmup: f64,
    total: f64,
}

impl Run {
    /// The progress of the warmup.
    fn warmup_progress(&self) -> f64 {
        self.step / self.warmup.max(1.0)
    }

    /// The progress after the warmup.
    fn progress(&self) -> f64 {
        (self.step - self.warmup) / self.decay_steps()
    }

    fn decay_steps(&self) -> f64 {
        (self.total - self.warmup).max(1.0)
    }

    fn left(&self) -> f64 {
        self.total - self.step
    }

    fn inverse_sqrt(&self, timescale: Option<f64>) -> f64 {
        let default = if self.warmup == 0.0 { 10_000.0 } else { self.warmup };
        let timescale = timescale.unwrap_or(default);
        1.0 / ((self.step + timescale - self.warmup) / timescale).sqrt()
    }

    fn cosine_after_raised_warmup(&self, cycles: f64, min: f64, start: Option<f64>) -> f64 {
        if self.step >= self.warmup {
            // One step ahead, like the warmup.
            let ahead = Run { step: self.step + 1.0, ..*self };
            return rescale(min, cosine(cycles, ahead.progress()));
        }
        match start {
            Some(start) => start + (1.0 - start) * self.step / (self.warmup - 1.0).max(1.0),
            None => (self.step + 1.0) / self.warmup,
        }
    }
}

/// Cosine decay from one to zero in half a cycle.
fn cosine(cycles: f64, progress: f64) -> f64 {
    0.5 * (1.0 + (PI * cycles * 2.0 * progress).cos())
}

/// Rescales a factor from `[0, 1]` to `[min, 1]`.
fn rescale(min: f64, factor: f64) -> f64 {
    (factor * (1.0 - min) + min).max(0.0)
}
