//! Searches for the settings that train fastest on a machine: the largest batch that fits, and
//! the best mesh, remat policy, chunks of logits, parameter layout, layer scanning and sharding
//! strategy.
//!
//! Every combination is estimated with the quick model, at every batch that should fit. The
//! fastest are confirmed, usually by compiling them: candidates that do not fit are retried with
//! a smaller batch, as are those that fill the memory and are slower than estimated, those with
//! memory left with a larger one. Skipped are those that the quick model finds slower by more than
//! its error; those that it finds as fast as one that was compiled and fits, if they differ from it
//! only in chunks of logits or in what is gathered ahead; and those that would compile for longer
//! than the time that is left: unrolled layers take many times as long as scanned ones. Of
//! candidates with the same estimate, the platform's default is tried first.

mod candidate;
mod effort;
mod frontier;
mod meshes;

pub use candidate::{Candidate, Space};
pub use effort::Effort;
pub use frontier::{Frontier, Point};

use crate::error::Error;
use crate::machine::Machine;
use crate::quick::quick;
use crate::report::Report;
use candidate::{sizes, step_down, step_up};
use effort::Spent;
use fullshard_step::StepSpec;

/// Slowdown relative to the best below which a candidate is still compiled: the error of the quick
/// model.
const TOLERANCE: f64 = 0.2;

/// Difference in estimated speed below which candidates that differ in little are not both compiled.
const ALIKE: f64 = 0.01;

/// The share of memory above which compilers may give up overlap to save memory.
const CROWDED: f64 = 0.9;

/// The share of memory to try next when the compiler ran out of memory and does not report how
/// much is missing.
const SHRINK: f64 = 0.75;

/// Progress of a search.
#[derive(Debug)]
pub enum Progress<'a> {
    /// All candidates have been estimated.
    Estimated {
        /// Combinations of settings with at least one batch that should fit.
        combinations: usize,
        /// Candidates: combinations with a batch.
        candidates: usize,
    },
    /// A candidate is being confirmed.
    Confirming {
        /// The candidate.
        candidate: &'a Candidate,
        /// Number of candidates tried before.
        done: usize,
        /// The most candidates to try.
        most: usize,
    },
    /// A candidate was confirmed.
    Confirmed {
        /// The candidate.
        candidate: &'a Candidate,
        /// Its plan.
        report: &'a Report,
    },
    /// A candidate does not fit.
    DoesNotFit {
        /// The candidate.
        candidate: &'a Candidate,
        /// The reason.
        reason: String,
    },
    /// A candidate would compile for longer than the time that is left.
    TooLong {
        /// The candidate.
        candidate: &'a Candidate,
    },
}

/// Callbacks of a search.
pub struct Callbacks<'a> {
    /// Returns the spec of a candidate. Candidates with errors are skipped.
    pub spec: &'a mut dyn FnMut(&Candidate) -> Result<StepSpec, Error>,
    /// Returns the confirmed plan of a candidate.
    pub confirm: &'a mut dyn FnMut(&Candidate) -> Result<Report, Error>,
    /// Receives progress.
    pub progress: &'a mut dyn FnMut(Progress<'_>),
}

/// Finds the Pareto frontier of memory and speed.
pub fn search(
    space: &Space,
    machine: &Machine,
    effort: Effort,
    callbacks: &mut Callbacks<'_>,
) -> Result<Frontier, Error> {
    let mut choices = space.choices(machine.devices);
    choices.extend(space.parallel_choices(&space.parallel));
    let mut found = estimated(space, machine, choices, callbacks);
    if found.is_empty() {
        let last_resort = space.parallel_choices(&space.last_resort);
        found = estimated(space, machine, last_resort, callbacks);
    }
    let mut waiting: Vec<Point> =
        found.iter().filter_map(|batches| batches.last().cloned()).collect();
    let points = found.concat();
    (callbacks.progress)(Progress::Estimated {
        combinations: waiting.len(),
        candidates: points.len(),
    });
    waiting.sort_by(|a, b| a.preference(b, machine));
    let confirmed = confirm(space, machine, effort, waiting, callbacks)?;
    Ok(Frontier::new(machine, points, confirmed))
}

/// The batches that should fit, of each combination with any.
fn estimated(
    space: &Space,
    machine: &Machine,
    choices: Vec<Candidate>,
    callbacks: &mut Callbacks<'_>,
) -> Vec<Vec<Point>> {
    let choices = space.with_logits_chunks(choices);
    // Where the rate to host memory is not known, offloading would seem free.
    let is_timed = |choice: &Candidate| {
        !choice.remat.offloads() || space.remats.len() == 1 || machine.chip.host_link.is_some()
    };
    let choices = choices.iter().filter(|choice| is_timed(choice));
    let found = choices.map(|choice| fitting(space, machine, choice, callbacks));
    found.filter(|batches| !batches.is_empty()).collect()
}

/// The batches of a combination that should fit, smallest first.
fn fitting(
    space: &Space,
    machine: &Machine,
    choice: &Candidate,
    callbacks: &mut Callbacks<'_>,
) -> Vec<Point> {
    let mut points = Vec::new();
    for batch in sizes(space.max_batch) {
        let candidate = Candidate { batch, ..choice.clone() };
        let estimated = (callbacks.spec)(&candidate).and_then(|spec| quick(&spec, machine));
        match estimated {
            Ok(report) if report.memory.fits() => points.push(Point::quick(candidate, report)),
            _ => break,
        }
    }
    points
}

/// Confirms waiting candidates, fastest (last) first.
fn confirm(
    space: &Space,
    machine: &Machine,
    effort: Effort,
    mut waiting: Vec<Point>,
    callbacks: &mut Callbacks<'_>,
) -> Result<Vec<Point>, Error> {
    let mut confirmed: Vec<Point> = Vec::new();
    let mut tried: Vec<Candidate> = Vec::new();
    let mut known: Vec<Point> = Vec::new();
    let mut spent = Spent::new(effort, machine.kind);
    while let Some(point) = waiting.pop()
        && !spent.is_over()
    {
        let best = confirmed.iter().filter(|point| point.fits()).map(Point::speed);
        let best = best.fold(0.0, f64::max);
        let candidate = point.candidate.clone();
        let is_known = tried.contains(&candidate) || known.iter().any(|it| is_alike(it, &point));
        if is_known || point.speed() * (1.0 + TOLERANCE) < best {
            continue;
        }
        if !spent.affords(&point) {
            (callbacks.progress)(Progress::TooLong { candidate: &candidate });
            continue;
        }
        let (done, most) = (spent.tried, effort.compiles);
        (callbacks.progress)(Progress::Confirming { candidate: &candidate, done, most });
        tried.push(candidate.clone());
        spent.tried += 1;
        let other = match (callbacks.confirm)(&candidate) {
            Ok(report) => {
                (callbacks.progress)(Progress::Confirmed {
                    candidate: &candidate,
                    report: &report,
                });
                spent.learn(&point, &report);
                let factor = report.memory.total as f64 / point.report.memory.total as f64;
                let found = Point::confirmed(candidate, report);
                let other = better_batch(space, machine, (&point, &found), factor, callbacks);
                known.extend(found.fits().then_some(point));
                confirmed.push(found);
                other
            }
            Err(error @ (Error::TooLarge { .. } | Error::OutOfMemory { .. })) => {
                let factor = needed(&error, &point, machine) / point.memory() as f64;
                let reason = error.to_string();
                (callbacks.progress)(Progress::DoesNotFit { candidate: &candidate, reason });
                smaller(machine, &candidate, factor, callbacks)
            }
            Err(error) => return Err(error),
        };
        // Tried next: a confirmed combination is more reliable than estimates of others.
        waiting.extend(other);
    }
    Ok(confirmed)
}

/// Whether two candidates differ only in what is gathered ahead and in chunks of logits, with about
/// the same estimate.
fn is_alike(a: &Point, b: &Point) -> bool {
    let Candidate { gather_ahead, logits_chunk_mib, .. } = b.candidate;
    let is_near = (a.speed() - b.speed()).abs() < ALIKE * a.speed();
    is_near && Candidate { gather_ahead, logits_chunk_mib, ..a.candidate.clone() } == b.candidate
}

/// The bytes needed by a step that does not fit: as the compiler reports, or else a guess that
/// makes the next try use only a share of the memory.
fn needed(error: &Error, point: &Point, machine: &Machine) -> f64 {
    let state = ["parameters", "optimizer"];
    let parts = point.report.memory.parts.iter().filter(|part| state.contains(&part.what));
    let state: u64 = parts.map(|part| part.bytes).sum();
    match error {
        Error::OutOfMemory { temporaries: Some(temporaries), .. } => (state + temporaries) as f64,
        _ => machine.memory as f64 / SHRINK,
    }
}

/// The batch to try after one whose memory estimate was off by a factor: smaller if it did not
/// fit, or fills the memory and is slower than estimated; larger if memory is left.
fn better_batch(
    space: &Space,
    machine: &Machine,
    (estimated, found): (&Point, &Point),
    factor: f64,
    callbacks: &mut Callbacks<'_>,
) -> Option<Point> {
    let candidate = &found.candidate;
    if !found.fits() {
        return smaller(machine, candidate, factor, callbacks);
    }
    let is_crowded = found.memory() as f64 > CROWDED * machine.memory as f64;
    if is_crowded && found.speed() < estimated.speed() {
        return smaller(machine, candidate, factor / CROWDED, callbacks);
    }
    let mut larger = None;
    let mut batch = step_up(candidate.batch);
    while batch <= space.max_batch {
        let next = estimate(machine, &Candidate { batch, ..candidate.clone() }, callbacks)?;
        let memory = &next.report.memory;
        if memory.total as f64 * factor > machine.memory as f64 || !memory.fits_host() {
            break;
        }
        larger = Some(next);
        batch = step_up(batch);
    }
    larger
}

/// The largest smaller batch that should fit, with memory estimates multiplied by a factor.
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
        if total <= machine.memory as f64 && point.report.memory.fits_host() {
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
