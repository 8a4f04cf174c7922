//! The goodput of a run, in numbers and words.

use crate::format;
use serde::Serialize;
use std::fmt;

/// What time is spent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Steps that were not lost.
    Useful,
    /// Steps that were lost by a failure, and had to be trained again.
    Redone,
    /// From the last progress until the supervisor knew of a failure.
    Detection,
    /// From the last progress of a generation to the next start, without a supervisor.
    Down,
    /// From a failure to the next start, and from there to the first step, without loading.
    Restart,
    /// From the first start to the first step, without loading.
    StartUp,
    /// Initializing or loading weights.
    Load,
    /// Pauses to save checkpoints, and writing the model at the end.
    Saving,
    /// Evaluations.
    Evaluation,
    /// Anything else.
    Other,
}

impl Part {
    /// All of them, in the order of reports.
    pub const ALL: [Part; 10] = [
        Part::Useful,
        Part::Redone,
        Part::Detection,
        Part::Down,
        Part::Restart,
        Part::StartUp,
        Part::Load,
        Part::Saving,
        Part::Evaluation,
        Part::Other,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Part::Useful => "useful steps",
            Part::Redone => "redone steps",
            Part::Detection => "detection",
            Part::Down => "down time",
            Part::Restart => "restart",
            Part::StartUp => "start-up",
            Part::Load => "load",
            Part::Saving => "saving",
            Part::Evaluation => "evaluation",
            Part::Other => "other",
        }
    }

    /// The time of each part.
    pub(super) fn times(spans: &[Span]) -> Vec<PartTime> {
        let wall: f64 = spans.iter().map(Span::seconds).sum();
        let of = |part| {
            let spans = spans.iter().filter(|span| span.part == part);
            let seconds = spans.map(Span::seconds).sum::<f64>() + 0.0;
            PartTime { part, seconds, share: if wall > 0.0 { seconds / wall } else { 0.0 } }
        };
        Part::ALL.map(of).to_vec()
    }
}

/// A stretch of time that was spent on one part, in seconds since the first start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// Its start.
    pub from: f64,
    /// Its end.
    pub to: f64,
    /// What it was spent on.
    pub part: Part,
}

impl Span {
    fn seconds(&self) -> f64 {
        self.to - self.from
    }
}

/// The time of a part.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PartTime {
    /// The part.
    pub part: Part,
    /// Its time.
    pub seconds: f64,
    /// Its share of the wall time.
    pub share: f64,
}

/// A start of a run, and what came of it.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Generation {
    /// When it was started, in seconds since 1970.
    pub started: f64,
    /// The same, in seconds since the first start.
    pub from_s: f64,
    /// Its last progress, in seconds since the first start.
    pub to_s: f64,
    /// The number of processes.
    pub processes: usize,
    /// The number of devices.
    pub devices: usize,
    /// The step of the checkpoint that it resumed from, if it did.
    pub resumed_from: Option<u64>,
    /// The first and the last step that it trained, if it did.
    pub steps: Option<(u64, u64)>,
    /// How it ended, if it has.
    pub end: Option<String>,
    /// Whether it failed.
    pub failed: bool,
}

impl Generation {
    pub(super) fn fails(&mut self, reason: &str) {
        (self.end, self.failed) = (Some(reason.to_owned()), true);
    }
}

/// The interval between saves.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SaveInterval {
    /// The time between two saves.
    pub seconds: f64,
    /// The same in steps.
    pub steps: u64,
}

/// What the time of a run was spent on.
#[derive(Debug, Clone, PartialEq)]
pub struct Goodput {
    /// The name of the run.
    pub run: String,
    /// When it was first started, in seconds since 1970.
    pub started: f64,
    /// The time from the first start to the last record.
    pub wall_s: f64,
    /// What it was spent on, which adds up to the wall time.
    pub parts: Vec<PartTime>,
    /// The last step that is not lost, if any.
    pub steps: Option<u64>,
    /// The number of steps that were lost.
    pub steps_lost: u64,
    /// When the run failed, in seconds since the first start.
    pub failures: Vec<f64>,
    /// The number of checkpoints that training paused for.
    pub saves: usize,
    /// The mean pause to save a checkpoint.
    pub pause_s: Option<f64>,
    /// The mean time to write a checkpoint.
    pub write_s: Option<f64>,
    /// The mean time of a step.
    pub step_time_s: Option<f64>,
    /// The generations.
    pub generations: Vec<Generation>,
    /// The number of other runs before in the same journal.
    pub earlier_runs: usize,
    /// The parts of the wall time, in order.
    pub spans: Vec<Span>,
}

impl Goodput {
    /// The time of a part.
    pub fn seconds(&self, part: Part) -> f64 {
        self.parts.iter().find(|time| time.part == part).map_or(0.0, |time| time.seconds)
    }

    /// The share of useful steps in the wall time.
    pub fn share(&self) -> f64 {
        if self.wall_s > 0.0 { self.seconds(Part::Useful) / self.wall_s } else { 0.0 }
    }

    /// The number of starts after the first.
    pub fn restarts(&self) -> usize {
        self.generations.len().saturating_sub(1)
    }

    /// The mean time that the run was up between failures; none without a failure.
    pub fn between_failures_s(&self) -> Option<f64> {
        let up: f64 = self.generations.iter().map(|it| it.to_s - it.from_s).sum();
        (!self.failures.is_empty()).then(|| up / self.failures.len() as f64)
    }

    /// The time between saves that loses least, by the formula of Young and Daly,
    /// √(2 · pause · mean time between failures); none without a failure, a save or a step.
    ///
    /// It is no less than a save takes to be written, since the next one waits for it, and no more
    /// than the time between failures.
    pub fn save_interval(&self) -> Option<SaveInterval> {
        let (between, pause) = (self.between_failures_s()?, self.pause_s?);
        let step_time = self.step_time_s.filter(|time| *time > 0.0)?;
        let least = self.write_s.unwrap_or(0.0) + pause;
        let seconds = (2.0 * pause * between).sqrt().min(between).max(least);
        let steps = (seconds / step_time).round().max(1.0);
        Some(SaveInterval { seconds, steps: steps as u64 })
    }
}

impl fmt::Display for Goodput {
    /// `goodput 93.1 % of 2 h 03 min: restart 3.2 %, redone steps 2.1 %; 2 failures, ...`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (percent, wall) = (100.0 * self.share(), format::duration(self.wall_s));
        write!(f, "goodput {percent:.1} % of {wall}")?;
        let lost = self.parts.iter().filter(|it| it.part != Part::Useful && it.share >= 5e-4);
        let mut lost: Vec<&PartTime> = lost.collect();
        lost.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        let lost = lost.iter().map(|it| format!("{} {:.1} %", it.part.name(), 100.0 * it.share));
        let lost = lost.collect::<Vec<String>>().join(", ");
        if !lost.is_empty() {
            write!(f, ": {lost}")?;
        }
        if !self.failures.is_empty() {
            let failures = format::count(self.failures.len(), "failure");
            let steps = format::count(self.steps_lost as usize, "step");
            write!(f, "; {failures}, {steps} lost")?;
        }
        Ok(())
    }
}

/// As JSON, with what follows from the fields.
impl Serialize for Goodput {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Report<'a> {
            goodput: f64,
            run: &'a str,
            started: f64,
            wall_s: f64,
            parts: &'a [PartTime],
            steps: Option<u64>,
            steps_lost: u64,
            failures: usize,
            failed_at_s: &'a [f64],
            restarts: usize,
            mean_time_between_failures_s: Option<f64>,
            saves: usize,
            pause_s: Option<f64>,
            write_s: Option<f64>,
            step_time_s: Option<f64>,
            save_interval: Option<SaveInterval>,
            generations: &'a [Generation],
            earlier_runs: usize,
        }
        let report = Report {
            goodput: self.share(),
            run: &self.run,
            started: self.started,
            wall_s: self.wall_s,
            parts: &self.parts,
            steps: self.steps,
            steps_lost: self.steps_lost,
            failures: self.failures.len(),
            failed_at_s: &self.failures,
            restarts: self.restarts(),
            mean_time_between_failures_s: self.between_failures_s(),
            saves: self.saves,
            pause_s: self.pause_s,
            write_s: self.write_s,
            step_time_s: self.step_time_s,
            save_interval: self.save_interval(),
            generations: &self.generations,
            earlier_runs: self.earlier_runs,
        };
        report.serialize(serializer)
    }
}
