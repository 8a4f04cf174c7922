//! The times of failures: when they were seen, and what they cost.

use super::Failed;
use crate::common::Folder;
use fullshard::goodput::{Event, Record, read};
use std::fmt;
use std::time::{Duration, SystemTime};

/// The figures of some failures, in seconds and steps.
#[derive(Default)]
pub struct Times {
    seen: Vec<f64>,
    back: Vec<f64>,
    load: Vec<f64>,
    lost: Vec<f64>,
}

impl Times {
    /// The mean time until a failure was seen.
    pub fn detection(&self) -> f64 {
        self.seen.iter().sum::<f64>() / self.seen.len() as f64
    }

    /// Adds a failure of a run that had done a step, and has just done it again.
    pub fn add(&mut self, failed: &Failed, step: u64, folder: &Folder) {
        self.back.push(since(failed.at, SystemTime::now()));
        let records = read(folder.path("out")).unwrap();
        self.seen.extend(failed.seen.or_else(|| noticed(&records, failed.at)));
        let resumed = records.iter().rev().find_map(|record| match &record.event {
            Event::Resumed { step, seconds, .. } => Some((*step, *seconds)),
            _ => None,
        });
        let (from, seconds) = resumed.unwrap_or_default();
        self.load.push(seconds);
        self.lost.push(step.saturating_sub(from) as f64);
    }
}

/// How long after a failure the launcher noticed it.
fn noticed(records: &[Record], failed: SystemTime) -> Option<f64> {
    let failure = |record: &&Record| matches!(record.event, Event::Failure { .. });
    let last = records.iter().rfind(failure)?;
    Some(since(failed, SystemTime::UNIX_EPOCH + Duration::from_secs_f64(last.time)))
}

/// The seconds between two times, 0 if they are the other way round.
pub fn since(from: SystemTime, to: SystemTime) -> f64 {
    to.duration_since(from).map_or(0.0, |time| time.as_secs_f64())
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [seen, back, load] = [&self.seen, &self.back, &self.load].map(|it| spread(it, " s"));
        let lost = spread(&self.lost, "");
        write!(f, "seen after {seen}; back after {back}; load {load}; steps lost {lost}")
    }
}

/// The median and the largest of some numbers, or all if they are few.
fn spread(numbers: &[f64], unit: &str) -> String {
    if let [first, second] = numbers {
        return format!("{first:.2}{unit}, {second:.2}{unit}");
    }
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.last() {
        Some(most) => format!("{:.2}{unit} (most {most:.2}{unit})", sorted[sorted.len() / 2]),
        None => "never".to_owned(),
    }
}
