//! The collectives of a forward and backward pass as planned, those of equal units together.

use crate::units::any_layer;
use fullshard_parallel::{Exchange, ExchangeKind};
use serde::Serialize;

/// The exchanges of one kind and type of a unit, or of equal layers that are units.
#[derive(Serialize)]
pub struct PlannedCollective {
    /// The path of the unit, with a `*` for the layer; empty for the root.
    pub unit: String,
    /// As compiled collectives are called.
    pub kind: &'static str,
    /// The type on the wire.
    pub dtype: &'static str,
    /// How many run in one forward and backward pass.
    pub count: usize,
    /// Bytes of the whole tensors of all of them.
    pub bytes_per_pass: usize,
    /// Bytes of the smallest.
    pub least_bytes: usize,
    /// Bytes of the largest.
    pub most_bytes: usize,
}

impl PlannedCollective {
    /// Some exchanges, each kind of each unit by itself.
    pub fn grouped(exchanges: &[Exchange]) -> Vec<PlannedCollective> {
        let mut reports: Vec<PlannedCollective> = Vec::new();
        for exchange in exchanges {
            let new = PlannedCollective::of(exchange);
            match reports.iter_mut().find(|report| report.is_like(&new)) {
                Some(report) => report.add(&new),
                None => reports.push(new),
            }
        }
        reports
    }

    fn of(exchange: &Exchange) -> PlannedCollective {
        PlannedCollective {
            unit: any_layer(&exchange.unit),
            kind: match exchange.kind {
                ExchangeKind::Gather => "all-gather",
                ExchangeKind::ReduceScatter => "reduce-scatter",
                ExchangeKind::AllReduce => "all-reduce",
            },
            dtype: exchange.dtype.name(),
            count: exchange.count,
            bytes_per_pass: exchange.count * exchange.bytes,
            least_bytes: exchange.bytes,
            most_bytes: exchange.bytes,
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
