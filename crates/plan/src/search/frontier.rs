//! Search results: the settings for which no others are both smaller and faster.

use super::candidate::Candidate;
use crate::machine::Machine;
use crate::report::Report;
use serde::Serialize;
use std::cmp::Ordering;

/// A candidate with its plan.
#[derive(Debug, Clone, Serialize)]
pub struct Point {
    /// The settings.
    pub candidate: Candidate,
    /// The plan.
    pub report: Report,
    /// Whether the plan is confirmed rather than from the quick model.
    pub confirmed: bool,
}

impl Point {
    pub(super) fn quick(candidate: Candidate, report: Report) -> Point {
        Point { candidate, report, confirmed: false }
    }

    pub(super) fn confirmed(candidate: Candidate, report: Report) -> Point {
        Point { candidate, report, confirmed: true }
    }

    /// Tokens per second.
    pub fn speed(&self) -> f64 {
        self.report.rates.tokens_per_second
    }

    /// Bytes per device.
    pub fn memory(&self) -> u64 {
        self.report.memory.total
    }

    /// Whether it fits.
    pub fn fits(&self) -> bool {
        self.report.memory.fits()
    }

    /// Orders points by preference, the best last: by speed; where that is the same, the default of
    /// the machine before what differs from it, then by memory, then by what is gathered ahead.
    pub(super) fn preference(&self, other: &Point, machine: &Machine) -> Ordering {
        let is_default = |it: &Candidate| it.gather_ahead == it.default_ahead(machine);
        let (a, b) = (&self.candidate, &other.candidate);
        let by_speed = self.speed().total_cmp(&other.speed());
        by_speed
            .then(is_default(a).cmp(&is_default(b)))
            .then(other.memory().cmp(&self.memory()))
            .then(b.gather_ahead.cmp(&a.gather_ahead))
    }
}

/// The Pareto frontier of memory and speed.
#[derive(Debug, Clone, Serialize)]
pub struct Frontier {
    /// Bytes available per device.
    pub limit: u64,
    /// The points on the frontier that fit, smallest first.
    pub points: Vec<Point>,
    /// The confirmed points in the order they were tried, whether they fit or not.
    pub confirmed: Vec<Point>,
    /// The fastest point that fits: of the confirmed ones, or of all if none was confirmed.
    pub best: Option<Point>,
}

impl Frontier {
    pub(super) fn new(machine: &Machine, estimated: Vec<Point>, confirmed: Vec<Point>) -> Frontier {
        let known = |point: &Point| confirmed.iter().any(|it| it.candidate == point.candidate);
        let mut all: Vec<Point> = estimated.into_iter().filter(|point| !known(point)).collect();
        all.extend(confirmed.iter().cloned());
        all.retain(Point::fits);
        let trusted: Vec<&Point> =
            all.iter().filter(|point| point.confirmed || confirmed.is_empty()).collect();
        let best = trusted.into_iter().max_by(|a, b| a.preference(b, machine)).cloned();
        Frontier { limit: machine.memory, points: pareto(all, machine), confirmed, best }
    }
}

/// The points for which no other is both smaller and faster; of the same speed, the preferred one.
fn pareto(mut points: Vec<Point>, machine: &Machine) -> Vec<Point> {
    points.sort_by(|a, b| b.preference(a, machine));
    points.dedup_by(|next, kept| next.speed() == kept.speed());
    points.sort_by(|a, b| a.memory().cmp(&b.memory()).then(b.speed().total_cmp(&a.speed())));
    let mut fastest = 0.0;
    points.retain(|point| {
        let on_frontier = point.speed() > fastest;
        fastest = point.speed().max(fastest);
        on_frontier
    });
    points
}
