//! A job of many hosts: steps and saves, failures and repairs, stragglers.
//!
//! A host fails at random, whatever it does. The others notice after a while, the job restarts on
//! a spare host, on fewer hosts, or when one is repaired, loads what was last stored, and redoes
//! the steps since. A checkpoint counts once it is written, which goes on behind the steps; copies
//! of the state in the memory of other hosts count at once, unless the host that has a copy is lost
//! with the host whose state it is.

mod picture;
mod presets;
mod replay;
mod results;

pub use picture::picture;
pub use presets::Preset;
pub use results::{Parts, Replay, Simulated, Spread};

use crate::error::Error;
use fullshard_plan::Interruptions;
use serde::Serialize;

/// A job. Times are in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Job {
    /// Number of hosts that it runs on.
    pub hosts: usize,
    /// Number of hosts below which it waits for a repair; with fewer than `hosts` its steps take
    /// longer in proportion.
    pub min_hosts: usize,
    /// Hosts that stand by at the start. What is repaired is added to them.
    pub spares: usize,
    /// Time of a step on all hosts.
    pub step: f64,
    /// When the job ends.
    pub length: Length,
    /// Mean time between the failures of one host; infinite for none.
    pub host_mtbf: f64,
    /// Seconds after the launch at which a host fails besides, as in a drill.
    pub fail_at: Vec<f64>,
    /// Mean time to repair a host.
    pub repair: f64,
    /// From a failure until the job knows of it.
    pub detection: f64,
    /// From then, or from the launch, until processes have their programs: start-up without state.
    pub restart: f64,
    /// Loading a checkpoint.
    pub load: f64,
    /// Checkpoints, if there are any.
    pub saves: Option<Saves>,
    /// Copies of the state in the memory of other hosts, if there are any.
    pub copies: Option<Copies>,
    /// Hosts that are slow for a step.
    pub stragglers: Stragglers,
}

/// When a job ends.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Length {
    /// After this number of steps.
    Steps(u64),
    /// After this number of seconds.
    Seconds(f64),
}

/// Checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Saves {
    /// Number of steps between two.
    pub every: u64,
    /// Seconds that steps wait for one.
    pub pause: f64,
    /// Seconds of writing after that, behind the steps. A save waits for the one before.
    pub write: f64,
}

/// Copies of the state in memory: that of a host lies on the next host too.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Copies {
    /// Number of steps between two.
    pub every: u64,
    /// Seconds that steps wait for one.
    pub pause: f64,
    /// Seconds to recover from them, in place of loading a checkpoint.
    pub load: f64,
}

/// Slow hosts. A step waits for the slowest.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Stragglers {
    /// Probability that a host is slow in a step.
    pub probability: f64,
    /// Time of a step with a slow host, as a multiple of its usual time.
    pub factor: f64,
}

/// No host is slow.
impl Default for Stragglers {
    fn default() -> Stragglers {
        Stragglers { probability: 0.0, factor: 1.0 }
    }
}

impl Job {
    /// Replays the job with the seeds from `seed` on.
    pub fn simulate(&self, replays: u64, seed: u64) -> Result<Simulated, Error> {
        self.check()?;
        at_least("replays", replays as f64, 1.0)?;
        let replays = (0..replays).map(|replay| replay::replay(self, seed.wrapping_add(replay)));
        Ok(Simulated::new(self, seed, replays.collect()))
    }

    /// Seconds between failures anywhere in the job.
    pub fn mtbf(&self) -> f64 {
        self.host_mtbf / self.hosts as f64
    }

    /// Probability that a step has a straggler.
    fn slow_steps(&self) -> f64 {
        1.0 - (1.0 - self.stragglers.probability).powf(self.hosts as f64)
    }

    /// The goodput by the closed form: as if a spare host were always there, and no host that has
    /// a copy were lost with the one whose copy it is. Unknown for a job that stores nothing, and
    /// for failures at stated times.
    pub fn expected(&self) -> Option<f64> {
        if !self.fail_at.is_empty() {
            return None;
        }
        let slow = 1.0 + self.slow_steps() * (self.stragglers.factor - 1.0);
        let seconds = |steps: u64| steps as f64 * self.step * slow;
        let saves = self.saves.map(|it| Interruptions {
            mtbf: self.mtbf(),
            detection: self.detection,
            restart: self.restart,
            load: self.load,
            save_interval: seconds(it.every),
            save_pause: it.pause,
            save_write: it.write,
        });
        let stored = match self.copies {
            Some(it) => Some(Interruptions {
                mtbf: self.mtbf(),
                detection: self.detection,
                restart: self.restart,
                load: it.load,
                save_interval: seconds(it.every),
                save_pause: it.pause
                    + self.saves.map_or(0.0, |saves| saves.pause * share(it.every, saves.every)),
                save_write: 0.0,
            }),
            None => saves,
        };
        stored.map(|it| it.goodput() / slow)
    }

    fn check(&self) -> Result<(), Error> {
        at_least("hosts", self.hosts as f64, 1.0)?;
        at_least("min_hosts", self.min_hosts as f64, 1.0)?;
        if self.min_hosts > self.hosts {
            let reason = format!("it must not be above --hosts, {}", self.hosts);
            return Err(wrong("min_hosts", self.min_hosts, reason));
        }
        above_zero("step_s", self.step)?;
        match self.length {
            Length::Steps(steps) => at_least("steps", steps as f64, 1.0)?,
            Length::Seconds(seconds) => above_zero("days", seconds / 86_400.0)?,
        }
        if self.host_mtbf.is_nan() || self.host_mtbf <= 0.0 {
            return Err(wrong("host_mtbf_days", self.host_mtbf / 86_400.0, ABOVE_ZERO));
        }
        for (flag, seconds) in [
            ("repair_s", self.repair),
            ("detection_s", self.detection),
            ("restart_s", self.restart),
            ("load_s", self.load),
        ] {
            at_least(flag, seconds, 0.0)?;
        }
        for &seconds in &self.fail_at {
            at_least("fail_at_s", seconds, 0.0)?;
        }
        if let Some(saves) = self.saves {
            at_least("save_every", saves.every as f64, 1.0)?;
            at_least("save_pause_s", saves.pause, 0.0)?;
            at_least("save_write_s", saves.write, 0.0)?;
        }
        if let Some(copies) = self.copies {
            at_least("copy_every", copies.every as f64, 1.0)?;
            at_least("copy_pause_s", copies.pause, 0.0)?;
            at_least("copy_load_s", copies.load, 0.0)?;
        }
        at_least("straggler_factor", self.stragglers.factor, 1.0)?;
        match self.stragglers.probability {
            probability if (0.0..=1.0).contains(&probability) => Ok(()),
            other => Err(wrong("straggler_probability", other, "it must be from 0 to 1")),
        }
    }
}

const ABOVE_ZERO: &str = "it must be above 0";

fn share(part: u64, of: u64) -> f64 {
    part as f64 / of as f64
}

fn above_zero(flag: &'static str, value: f64) -> Result<(), Error> {
    if value.is_finite() && value > 0.0 { Ok(()) } else { Err(wrong(flag, value, ABOVE_ZERO)) }
}

fn at_least(flag: &'static str, value: f64, least: f64) -> Result<(), Error> {
    match value.is_finite() && value >= least {
        true => Ok(()),
        false => Err(wrong(flag, value, format!("it must be at least {least}"))),
    }
}

fn wrong(flag: &'static str, value: impl ToString, reason: impl Into<String>) -> Error {
    Error::Value { flag, value: value.to_string(), reason: reason.into() }
}
