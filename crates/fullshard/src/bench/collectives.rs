//! The planned collectives of a forward and backward pass, grouped by identical units.

use crate::units::any_layer;
use fullshard_parallel::UnitCollective;
use serde::Serialize;

/// The collectives of one kind and dtype of a unit, or of identical layers that are units.
#[derive(Serialize)]
pub struct PlannedCollective {
    /// The path of the unit, with `*` for the layer index; empty for the root.
    pub unit: String,
    /// The kind, as named in compiled programs.
    pub kind: &'static str,
    /// The communicated dtype.
    pub dtype: &'static str,
    /// Number of collectives in a forward and backward pass.
    pub count: usize,
    /// Bytes of their full tensors.
    pub bytes_per_pass: usize,
    /// Bytes of the smallest.
    pub least_bytes: usize,
    /// Bytes of the largest.
    pub most_bytes: usize,
}

impl PlannedCollective {
    /// Groups collectives by unit, kind and dtype.
    pub fn grouped(collectives: &[UnitCollective]) -> Vec<PlannedCollective> {
        let mut reports: Vec<PlannedCollective> = Vec::new();
        for collective in collectives {
            let new = PlannedCollective::of(collective);
            match reports.iter_mut().find(|report| report.is_like(&new)) {
                Some(report) => report.add(&new),
                None => reports.push(new),
            }
        }
        reports
    }

    fn of(collective: &UnitCollective) -> PlannedCollective {
        PlannedCollective {
            unit: any_layer(&collective.unit),
            kind: collective.kind.name(),
            dtype: collective.dtype.name(),
            count: collective.count,
            bytes_per_pass: collective.count * collective.bytes,
            least_bytes: collective.bytes,
            most_bytes: collective.bytes,
        }
    }

    /// Whether another differs in its size and number alone.
    fn is_like(&self, other: &PlannedCollective) -> bool {
        (&self.unit, self.kind, self.dtype) == (&other.unit, other.kind, other.dtype)
    }

    fn add(&mut self, other: &PlannedCollective) {
        self.count += other.count;
        self.bytes_per_pass += other.bytes_per_pass;
        self.least_bytes = self.least_bytes.min(other.least_bytes);
        self.most_bytes = self.most_bytes.max(other.most_bytes);
    }
}
