//! What a search finds: the settings of which no others are both smaller and faster.

use super::candidate::Candidate;
use crate::report::Report;
use serde::Serialize;

/// Settings with what they come to.
#[derive(Debug, Clone, Serialize)]
pub struct Point {
    /// The settings.
    pub candidate: Candidate,
    /// The plan.
    pub report: Report,
    /// Whether it is a plan to be believed, and not the quick model's.
    pub confirmed: bool,
}

impl Point {
    pub(super) fn quick(candidate: Candidate, report: Report) -> Point {
        Point { candidate, report, confirmed: false }
    }

    pub(super) fn confirmed(candidate: Candidate, report: Report) -> Point {
        Point { candidate, report, confirmed: true }
    }

    /// Tokens a second.
    pub fn speed(&self) -> f64 {
        self.report.rates.tokens_per_second
    }

    /// Bytes on each device.
    pub fn memory(&self) -> u64 {
        self.report.memory.total
    }

    /// Whether it fits.
    pub fn fits(&self) -> bool {
        self.report.memory.fits()
    }
}

/// The frontier of memory against speed.
#[derive(Debug, Clone, Serialize)]
pub struct Frontier {
    /// The bytes that a device has.
    pub limit: u64,
    /// The points that fit and of which no other is both smaller and faster, the smallest first.
    pub points: Vec<Point>,
    /// What was confirmed, in the order in which it was, whether it fits or not.
    pub confirmed: Vec<Point>,
    /// The fastest of what is believed: of what was confirmed, or of everything if nothing was.
    pub best: Option<Point>,
}

impl Frontier {
    pub(super) fn new(limit: u64, estimated: Vec<Point>, confirmed: Vec<Point>) -> Frontier {
        let known = |point: &Point| confirmed.iter().any(|it| it.candidate == point.candidate);
        let mut all: Vec<Point> = estimated.into_iter().filter(|point| !known(point)).collect();
        all.extend(confirmed.iter().cloned());
        all.retain(Point::fits);
        let believed: Vec<&Point> =
            all.iter().filter(|point| point.confirmed || confirmed.is_empty()).collect();
        let best = believed.into_iter().max_by(|a, b| a.speed().total_cmp(&b.speed())).cloned();
        Frontier { limit, points: outermost(all), confirmed, best }
    }
}

/// The points of which no other is both smaller and faster.
fn outermost(mut points: Vec<Point>) -> Vec<Point> {
    points.sort_by(|a, b| a.memory().cmp(&b.memory()).then(b.speed().total_cmp(&a.speed())));
    let mut fastest = 0.0;
    points.retain(|point| {
        let outside = point.speed() > fastest;
        fastest = point.speed().max(fastest);
        outside
    });
    points
}
