//! What a step sends, from the placement, and how long that takes.

use crate::machine::Machine;
use crate::report::Exchanged;
use fullshard_parallel::{AXIS, ExchangeKind};
use fullshard_pjrt::hlo::CollectiveKind;
use fullshard_step::StepSpec;

/// The collectives of a step, equal ones together, none of them hidden yet.
pub(super) fn exchanged(spec: &StepSpec, machine: &Machine) -> Vec<Exchanged> {
    let mut rows: Vec<Exchanged> = Vec::new();
    let each = if spec.batch.sync_each_microbatch { spec.batch.accumulation } else { 1 };
    for exchange in spec.placement.exchanges() {
        let kind = match exchange.kind {
            ExchangeKind::Gather => CollectiveKind::AllGather,
            ExchangeKind::ReduceScatter => CollectiveKind::ReduceScatter,
            ExchangeKind::AllReduce => CollectiveKind::AllReduce,
        };
        let count = (exchange.count * each) as u64;
        let (bytes, devices) = (exchange.bytes as u64, machine.devices);
        let seconds = machine.network.seconds(kind, bytes, devices, devices) * count as f64;
        let kind = kind.to_string();
        match rows.iter_mut().find(|row| row.kind == kind && row.bytes == bytes) {
            Some(row) => {
                row.count += count;
                row.seconds += seconds;
            }
            None => rows.push(Exchanged {
                kind,
                axis: AXIS.to_owned(),
                group: devices,
                count,
                bytes,
                seconds,
                hidden: 0.0,
            }),
        }
    }
    rows
}

/// Hides a share of every collective.
pub(super) fn hide(rows: &mut [Exchanged], share: f64) {
    for row in rows {
        row.hidden = row.seconds * share;
    }
}
