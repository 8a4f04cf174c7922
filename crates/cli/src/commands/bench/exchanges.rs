//! What a pass will send between devices, those of equal units together.

use crate::plan::any_layer;
use fullshard_parallel::{Exchange, ExchangeKind};
use serde::Serialize;

/// The exchanges of one kind and type of a unit, or of equal layers that are units.
#[derive(Serialize)]
pub struct ExchangeReport {
    /// The path of the unit, with a `*` for the layer; empty for the root.
    pub unit: String,
    /// As compiled collectives are called.
    pub kind: &'static str,
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

impl ExchangeReport {
    /// Some exchanges, each kind of each unit by itself.
    pub fn grouped(exchanges: &[Exchange]) -> Vec<ExchangeReport> {
        let mut reports: Vec<ExchangeReport> = Vec::new();
        for exchange in exchanges {
            let new = ExchangeReport::of(exchange);
            match reports.iter_mut().find(|report| report.is_like(&new)) {
                Some(report) => report.add(&new),
                None => reports.push(new),
            }
        }
        reports
    }

    fn of(exchange: &Exchange) -> ExchangeReport {
        ExchangeReport {
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
    fn is_like(&self, other: &ExchangeReport) -> bool {
        (&self.unit, self.kind, self.dtype) == (&other.unit, other.kind, other.dtype)
    }

    fn add(&mut self, other: &ExchangeReport) {
        self.count += other.count;
        self.bytes_per_pass += other.bytes_per_pass;
        self.least_bytes = self.least_bytes.min(other.least_bytes);
        self.most_bytes = self.most_bytes.max(other.most_bytes);
    }
}
