//! What replays of a job come to.

use super::Job;
use serde::Serialize;

/// The time of a job by what it was spent on, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Parts {
    /// Steps that count, at their usual speed: the useful part.
    pub steps: f64,
    /// Steps that were lost and had to be done once more, those cut short included.
    pub redone: f64,
    /// Waiting for slow hosts.
    pub stragglers: f64,
    /// What steps take longer on fewer hosts.
    pub fewer_hosts: f64,
    /// Steps that wait for checkpoints and copies.
    pub saving: f64,
    /// From failures until they are known.
    pub detection: f64,
    /// Starting and restarting.
    pub restart: f64,
    /// Loading checkpoints and copies.
    pub load: f64,
    /// Waiting for hosts to be repaired.
    pub repair: f64,
}

impl Parts {
    /// The parts with their names, in order.
    pub fn named(&self) -> [(&'static str, f64); 9] {
        [
            ("steps", self.steps),
            ("redone steps", self.redone),
            ("stragglers", self.stragglers),
            ("fewer hosts", self.fewer_hosts),
            ("saving", self.saving),
            ("detection", self.detection),
            ("restart", self.restart),
            ("load", self.load),
            ("waiting for repair", self.repair),
        ]
    }

    /// Their sum.
    pub fn total(&self) -> f64 {
        self.named().iter().map(|(_, seconds)| seconds).sum()
    }

    /// The mean over replays.
    fn mean(replays: &[Replay]) -> Parts {
        let mean = |part: fn(&Parts) -> f64| mean(replays, |replay| part(&replay.parts));
        Parts {
            steps: mean(|it| it.steps),
            redone: mean(|it| it.redone),
            stragglers: mean(|it| it.stragglers),
            fewer_hosts: mean(|it| it.fewer_hosts),
            saving: mean(|it| it.saving),
            detection: mean(|it| it.detection),
            restart: mean(|it| it.restart),
            load: mean(|it| it.load),
            repair: mean(|it| it.repair),
        }
    }
}

/// One replay of a job.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Replay {
    /// The time by what it was spent on.
    pub parts: Parts,
    /// Number of steps that count.
    pub steps: u64,
    /// Number of failures.
    pub failures: u64,
    /// Whether it was given up, since failures came faster than anything could be stored.
    pub stalled: bool,
}

impl Replay {
    /// The useful share of the time.
    pub fn goodput(&self) -> f64 {
        self.parts.steps / self.parts.total().max(f64::MIN_POSITIVE)
    }
}

/// A figure over replays.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// Its mean.
    pub mean: f64,
    /// Its standard deviation.
    pub deviation: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
}

impl Spread {
    fn of(replays: &[Replay], value: impl Fn(&Replay) -> f64) -> Spread {
        let mean = mean(replays, &value);
        let squares: f64 = replays.iter().map(|it| (value(it) - mean).powi(2)).sum();
        // Of a sample: one replay says nothing of the spread.
        let deviation = (squares / (replays.len().max(2) - 1) as f64).sqrt();
        let least = replays.iter().map(&value).fold(f64::INFINITY, f64::min);
        let most = replays.iter().map(&value).fold(f64::NEG_INFINITY, f64::max);
        Spread { mean, deviation, least, most }
    }
}

fn mean(replays: &[Replay], value: impl Fn(&Replay) -> f64) -> f64 {
    replays.iter().map(value).sum::<f64>() / replays.len() as f64
}

/// The replays of a job.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Simulated {
    /// The job.
    pub job: Job,
    /// The seed of the first replay; each has the next.
    pub seed: u64,
    /// Number of replays.
    pub replays: usize,
    /// Number of those that were given up, since failures came faster than anything could be
    /// stored.
    pub stalled: usize,
    /// The useful share of the time.
    pub goodput: Spread,
    /// The same by the closed form, where there is one.
    pub expected: Option<f64>,
    /// Days from the launch to the end.
    pub days: Spread,
    /// Number of failures.
    pub failures: Spread,
    /// Mean number of steps that count.
    pub steps: f64,
    /// Mean time by what it was spent on.
    pub parts: Parts,
}

impl Simulated {
    pub(super) fn new(job: &Job, seed: u64, replays: Vec<Replay>) -> Simulated {
        Simulated {
            job: job.clone(),
            seed,
            replays: replays.len(),
            stalled: replays.iter().filter(|replay| replay.stalled).count(),
            goodput: Spread::of(&replays, Replay::goodput),
            expected: job.expected(),
            days: Spread::of(&replays, |replay| replay.parts.total() / 86_400.0),
            failures: Spread::of(&replays, |replay| replay.failures as f64),
            steps: mean(&replays, |replay| replay.steps as f64),
            parts: Parts::mean(&replays),
        }
    }

    /// Why there is no progress, if some replays were given up.
    pub fn warning(&self) -> Option<String> {
        (self.stalled > 0).then(|| {
            format!(
                "{} of {} replays were given up: {} failures in a row without a step that was \
                 stored. A failure every {:.0} s is too often for {:.0} s of detection, restart and \
                 load, and the steps to the next save",
                self.stalled,
                self.replays,
                super::replay::PATIENCE,
                self.job.mtbf(),
                self.job.detection + self.job.restart + self.job.load,
            )
        })
    }
}
