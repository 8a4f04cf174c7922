//! Searching for the settings that train fastest on a machine: the largest batch that fits, and
//! the best of what layers remember, how parameters are cut, loops and strategies.
//!
//! Every combination is estimated with the quick model, at every batch that should fit. The
//! fastest are confirmed, as a rule by compiling them: what does not fit after all is tried
//! again with a smaller batch, what leaves room with a larger one, and what the quick model says
//! is slower by more than its error is not tried at all.

mod candidate;
mod frontier;

pub use candidate::{Candidate, Space};
pub use frontier::{Frontier, Point};

use crate::error::Error;
use crate::machine::Machine;
use crate::quick::quick;
use crate::report::Report;
use candidate::{sizes, step_down, step_up};
use fullshard_step::StepSpec;

/// How much slower than the best something may seem and still be worth a compile: what the quick
/// model may be wrong by.
const TOLERANCE: f64 = 0.2;

/// The share of its memory that is tried next, when a compiler found no room and does not say how
/// much is missing.
const SHRINK: f64 = 0.75;

/// How a search is getting on.
#[derive(Debug)]
pub enum Progress<'a> {
    /// So many combinations have been estimated, at so many batches in all.
    Estimated {
        /// Combinations of which at least one batch should fit.
        combinations: usize,
        /// Combinations and batches.
        candidates: usize,
    },
    /// One is being confirmed.
    Confirming {
        /// Which.
        candidate: &'a Candidate,
        /// How many were before.
        done: usize,
        /// How many there may be.
        most: usize,
    },
    /// It was.
    Confirmed {
        /// Which.
        candidate: &'a Candidate,
        /// What came of it.
        report: &'a Report,
    },
    /// It does not fit.
    Refused {
        /// Which.
        candidate: &'a Candidate,
        /// Why not.
        reason: String,
    },
}

/// What a search is told by those who know flags and compilers.
pub struct Callbacks<'a> {
    /// The spec of a candidate. One that there cannot be is left out.
    pub spec: &'a mut dyn FnMut(&Candidate) -> Result<StepSpec, Error>,
    /// A plan that is to be believed.
    pub confirm: &'a mut dyn FnMut(&Candidate) -> Result<Report, Error>,
    /// Is told how it goes.
    pub progress: &'a mut dyn FnMut(Progress<'_>),
}

/// Finds the frontier of memory against speed. At most `most` candidates are confirmed; with none,
/// the quick model is believed.
pub fn search(
    space: &Space,
    machine: &Machine,
    most: usize,
    callbacks: &mut Callbacks<'_>,
) -> Result<Frontier, Error> {
    let mut points = Vec::new();
    let mut waiting = Vec::new();
    for choice in space.choices(machine.devices) {
        let found = fitting(space, machine, &choice, callbacks);
        waiting.extend(found.last().cloned());
        points.extend(found);
    }
    (callbacks.progress)(Progress::Estimated {
        combinations: waiting.len(),
        candidates: points.len(),
    });
    waiting.sort_by(|a, b| a.speed().total_cmp(&b.speed()));
    let confirmed = confirm(space, machine, most, waiting, callbacks)?;
    Ok(Frontier::new(machine.memory, points, confirmed))
}

/// The batches of a combination that should fit, the smallest first.
fn fitting(
    space: &Space,
    machine: &Machine,
    choice: &Candidate,
    callbacks: &mut Callbacks<'_>,
) -> Vec<Point> {
    let mut points = Vec::new();
    for batch in sizes(space.most_sequences) {
        let candidate = Candidate { batch, ..choice.clone() };
        let estimated = (callbacks.spec)(&candidate).and_then(|spec| quick(&spec, machine));
        match estimated {
            Ok(report) if report.memory.fits() => points.push(Point::quick(candidate, report)),
            _ => break,
        }
    }
    points
}

/// Confirms the fastest of what waits, the last of it.
fn confirm(
    space: &Space,
    machine: &Machine,
    most: usize,
    mut waiting: Vec<Point>,
    callbacks: &mut Callbacks<'_>,
) -> Result<Vec<Point>, Error> {
    let mut confirmed: Vec<Point> = Vec::new();
    let mut tried: Vec<Candidate> = Vec::new();
    while let Some(point) = waiting.pop()
        && tried.len() < most
    {
        let best = confirmed.iter().filter(|point| point.fits()).map(Point::speed);
        let best = best.fold(0.0, f64::max);
        let candidate = point.candidate.clone();
        if tried.contains(&candidate) || point.speed() * (1.0 + TOLERANCE) < best {
            continue;
        }
        let done = tried.len();
        (callbacks.progress)(Progress::Confirming { candidate: &candidate, done, most });
        tried.push(candidate.clone());
        let other = match (callbacks.confirm)(&candidate) {
            Ok(report) => {
                (callbacks.progress)(Progress::Confirmed {
                    candidate: &candidate,
                    report: &report,
                });
                let factor = report.memory.total as f64 / point.report.memory.total as f64;
                let found = Point::confirmed(candidate.clone(), report);
                let fits = found.fits();
                confirmed.push(found);
                better_batch(space, machine, &candidate, fits, factor, callbacks)
            }
            Err(error @ (Error::TooLarge { .. } | Error::NoRoom { .. })) => {
                let factor = needed(&error, &point, machine) / point.memory() as f64;
                let reason = error.to_string();
                (callbacks.progress)(Progress::Refused { candidate: &candidate, reason });
                smaller(machine, &candidate, factor, callbacks)
            }
            Err(error) => return Err(error),
        };
        // Next in turn: what is known of a combination is worth more than an estimate of another.
        waiting.extend(other.filter(|point| !tried.contains(&point.candidate)));
    }
    Ok(confirmed)
}

/// The bytes that something needs which a compiler found no room for: what it says, or enough
/// that only a share of it is tried next.
fn needed(error: &Error, point: &Point, machine: &Machine) -> f64 {
    let state = ["parameters", "optimizer"];
    let parts = point.report.memory.parts.iter().filter(|part| state.contains(&part.what));
    let state: u64 = parts.map(|part| part.bytes).sum();
    match error {
        Error::NoRoom { temporaries: Some(temporaries), .. } => (state + temporaries) as f64,
        _ => machine.memory as f64 / SHRINK,
    }
}

/// The batch to try after one of which the estimate of memory was wrong by a factor: smaller if
/// it did not fit, larger if there is room.
fn better_batch(
    space: &Space,
    machine: &Machine,
    candidate: &Candidate,
    fits: bool,
    factor: f64,
    callbacks: &mut Callbacks<'_>,
) -> Option<Point> {
    if !fits {
        return smaller(machine, candidate, factor, callbacks);
    }
    let mut larger = None;
    let mut batch = step_up(candidate.batch);
    while batch <= space.most_sequences {
        let next = estimate(machine, &Candidate { batch, ..candidate.clone() }, callbacks)?;
        if next.report.memory.total as f64 * factor > machine.memory as f64 {
            break;
        }
        larger = Some(next);
        batch = step_up(batch);
    }
    larger
}

/// The largest smaller batch that should fit, if estimates of memory are to be multiplied by a
/// factor.
fn smaller(
    machine: &Machine,
    candidate: &Candidate,
    factor: f64,
    callbacks: &mut Callbacks<'_>,
) -> Option<Point> {
    let mut batch = candidate.batch;
    loop {
        batch = step_down(batch)?;
        let point = estimate(machine, &Candidate { batch, ..candidate.clone() }, callbacks)?;
        let total = point.report.memory.total as f64 * factor;
        if total <= machine.memory as f64 {
            return Some(point);
        }
    }
}

fn estimate(
    machine: &Machine,
    candidate: &Candidate,
    callbacks: &mut Callbacks<'_>,
) -> Option<Point> {
    let spec = (callbacks.spec)(candidate).ok()?;
    Some(Point::quick(candidate.clone(), quick(&spec, machine).ok()?))
}
