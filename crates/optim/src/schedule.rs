//! Learning-rate schedules: a factor of the learning rate for every step, on the host.

use crate::error::Error;
use std::f64::consts::PI;
use std::str::FromStr;

/// The names of schedules, those of Hugging Face's `lr_scheduler_type`.
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

/// How the learning rate goes over the steps of a run. All but [`Schedule::Constant`] begin with
/// a warm-up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Schedule {
    /// Down to zero in a straight line.
    Linear,
    /// Down to zero along a cosine.
    Cosine {
        /// How many waves; a half goes from top to bottom.
        cycles: f64,
    },
    /// Down to zero along a half cosine, several times.
    CosineWithRestarts {
        /// How many times.
        cycles: f64,
    },
    /// Down along a polynomial.
    Polynomial {
        /// Its power.
        power: f64,
        /// Where it ends, in units of the learning rate.
        end: f64,
    },
    /// Always the same, from the first step.
    Constant,
    /// Always the same.
    ConstantWithWarmup,
    /// Down with the root of the step.
    InverseSqrt {
        /// The number of steps that the root is in units of; that of the warm-up unless given.
        timescale: Option<f64>,
    },
    /// Down to a least rate along a cosine.
    CosineWithMinLr {
        /// How many waves.
        cycles: f64,
        /// The least, in units of the learning rate.
        min: f64,
    },
    /// Down to a least rate along a cosine, after a warm-up that does not begin at zero.
    CosineWarmupWithMinLr {
        /// How many waves.
        cycles: f64,
        /// The least, in units of the learning rate.
        min: f64,
        /// Where the warm-up begins; with its first step unless given.
        start: Option<f64>,
    },
    /// A warm-up, the whole rate for most of the run, and a decay at its end.
    WarmupStableDecay(StableDecay),
}

/// A warm-up, the whole rate for most of the run, and a decay at its end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StableDecay {
    /// Steps of the whole rate; what the others leave unless given.
    pub stable_steps: Option<f64>,
    /// Steps of the decay.
    pub decay_steps: f64,
    /// How the warm-up goes.
    pub warmup: Shape,
    /// How the decay goes.
    pub decay: Shape,
    /// The least, in units of the learning rate.
    pub min: f64,
    /// How many waves, if the decay is a cosine.
    pub cycles: f64,
}

/// How a warm-up or a decay goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// In a straight line.
    Linear,
    /// Along a cosine.
    Cosine,
    /// One less the root.
    OneLessRoot,
}

impl FromStr for Shape {
    type Err = Error;

    fn from_str(name: &str) -> Result<Shape, Error> {
        match name {
            "linear" => Ok(Shape::Linear),
            "cosine" => Ok(Shape::Cosine),
            "1-sqrt" => Ok(Shape::OneLessRoot),
            _ => Err(Error::UnknownShape { name: name.to_owned() }),
        }
    }
}

impl FromStr for Schedule {
    type Err = Error;

    /// The schedule of a name, with the defaults of its options.
    fn from_str(name: &str) -> Result<Schedule, Error> {
        crate::ScheduleOptions::default().schedule(name)
    }
}

impl Schedule {
    /// What the learning rate is multiplied by at a step, counted from 0, of a run of `total`
    /// steps that begins with `warmup` of them.
    pub fn factor(&self, step: u64, warmup: u64, total: u64) -> f64 {
        let run = Run { step: step as f64, warmup: warmup as f64, total: total as f64 };
        match *self {
            Schedule::Constant => 1.0,
            Schedule::CosineWarmupWithMinLr { cycles, min, start } => {
                run.cosine_after_raised_warmup(cycles, min, start)
            }
            Schedule::WarmupStableDecay(stable) => stable.factor(&run),
            _ if step < warmup => run.warmed_up(),
            Schedule::Linear => (run.left() / run.decay_steps()).max(0.0),
            Schedule::Cosine { cycles } => wave(cycles, run.progress()),
            Schedule::CosineWithRestarts { .. } if run.progress() >= 1.0 => 0.0,
            Schedule::CosineWithRestarts { cycles } => wave(0.5, (cycles * run.progress()) % 1.0),
            Schedule::Polynomial { end, .. } if step > total => end,
            Schedule::Polynomial { power, end } => {
                (1.0 - end) * (1.0 - run.progress()).powf(power) + end
            }
            Schedule::ConstantWithWarmup => 1.0,
            Schedule::InverseSqrt { timescale } => run.inverse_sqrt(timescale),
            Schedule::CosineWithMinLr { cycles, min } => above(min, wave(cycles, run.progress())),
        }
    }
}

impl StableDecay {
    fn factor(&self, run: &Run) -> f64 {
        let left = run.total - run.warmup - self.decay_steps;
        let decay_start = run.warmup + self.stable_steps.unwrap_or(left);
        if run.step < run.warmup {
            above(self.min, self.warmup.rise(run.warmed_up()))
        } else if run.step < decay_start {
            1.0
        } else if run.step < decay_start + self.decay_steps {
            let progress = (run.step - decay_start) / self.decay_steps.max(1.0);
            above(self.min, self.decay.fall(progress, self.cycles))
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
            Shape::OneLessRoot => 1.0 - (1.0 - progress).sqrt(),
        }
    }

    fn fall(self, progress: f64, cycles: f64) -> f64 {
        match self {
            Shape::Linear => 1.0 - progress,
            Shape::Cosine => wave(cycles, progress),
            Shape::OneLessRoot => 1.0 - progress.sqrt(),
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
    /// How far the warm-up has come.
    fn warmed_up(&self) -> f64 {
        self.step / self.warmup.max(1.0)
    }

    /// How far what follows the warm-up has come.
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
            // One step ahead, as the warm-up is.
            let ahead = Run { step: self.step + 1.0, ..*self };
            return above(min, wave(cycles, ahead.progress()));
        }
        match start {
            Some(start) => start + (1.0 - start) * self.step / (self.warmup - 1.0).max(1.0),
            None => (self.step + 1.0) / self.warmup,
        }
    }
}

/// From one to zero along half a cosine, for half a cycle.
fn wave(cycles: f64, progress: f64) -> f64 {
    0.5 * (1.0 + (PI * cycles * 2.0 * progress).cos())
}

/// A factor between zero and one as one between a least and one.
fn above(min: f64, factor: f64) -> f64 {
    (factor * (1.0 - min) + min).max(0.0)
}
