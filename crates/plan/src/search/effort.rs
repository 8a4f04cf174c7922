//! What compiling costs a search, and how much of it is left.

use super::frontier::Point;
use crate::report::{Basis, Report};
use fullshard_core::Platform;
use std::time::Instant;

/// How much a search may compile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Effort {
    /// The most candidates; with 0 the quick model is trusted.
    pub compiles: usize,
    /// Seconds that compiling may take in total. Candidates that would take longer than what is
    /// left are skipped, except for the first.
    pub seconds: f64,
}

impl Effort {
    /// A number of candidates, whatever they take.
    pub fn compiles(compiles: usize) -> Effort {
        Effort { compiles, seconds: f64::INFINITY }
    }
}

/// The layers that an unrolled program compiles in the time of a scanned one: Llama 8B compiled for
/// H100s in 248 to 425 s with 32 unrolled layers, in 17 to 40 s with scanned ones.
const LAYERS: f64 = 3.0;

/// What a search has compiled.
pub(super) struct Spent {
    effort: Effort,
    start: Instant,
    /// Candidates tried.
    pub tried: usize,
    /// Seconds that a scanned program takes.
    scanned: f64,
}

impl Spent {
    pub(super) fn new(effort: Effort, platform: Platform) -> Spent {
        // Typical of steps of billions of parameters on two cores.
        let scanned = match platform {
            Platform::Tpu => 120.0,
            Platform::Cuda => 30.0,
            Platform::Cpu => 5.0,
        };
        Spent { effort, start: Instant::now(), tried: 0, scanned }
    }

    /// Whether a candidate should be compiled within what is left.
    pub(super) fn affords(&self, point: &Point) -> bool {
        let expected = self.scanned * relative(point);
        let left = self.effort.seconds - self.start.elapsed().as_secs_f64();
        self.tried == 0 || expected <= left
    }

    /// Whether anything may still be compiled.
    pub(super) fn is_over(&self) -> bool {
        self.tried >= self.effort.compiles
    }

    /// Learns what a compile took, whenever that was.
    pub(super) fn learn(&mut self, point: &Point, report: &Report) {
        if let Basis::Compiled { seconds, .. } = report.basis {
            self.scanned = seconds / relative(point);
        }
    }
}

/// The time to compile a candidate relative to the same with scanned layers.
fn relative(point: &Point) -> f64 {
    match point.candidate.scan_layers {
        true => 1.0,
        false => (point.report.model.layers as f64 / LAYERS).max(1.0),
    }
}
