//! The collectives of a step, from the placement, and their time.

use crate::describe::axes_of;
use crate::machine::Machine;
use crate::report::CollectiveTime;
use fullshard_step::StepSpec;

/// The collectives of a step, equal ones merged, none of them hidden yet.
pub(super) fn collective_times(spec: &StepSpec, machine: &Machine) -> Vec<CollectiveTime> {
    let mut rows: Vec<CollectiveTime> = Vec::new();
    let members: Vec<usize> = (0..machine.devices).collect();
    let axis = axes_of(&spec.placement.mesh, &members);
    let span = machine.network.span(&members);
    let each = if spec.batch.sync_each_microbatch { spec.batch.accumulation } else { 1 };
    for collective in spec.placement.collectives() {
        let kind = collective.kind;
        let count = (collective.count * each) as u64;
        let bytes = collective.bytes as u64;
        let seconds = machine.network.seconds_over(kind, bytes, &span) * count as f64;
        let kind = kind.to_string();
        match rows.iter_mut().find(|row| row.kind == kind && row.bytes == bytes) {
            Some(row) => {
                row.count += count;
                row.seconds += seconds;
            }
            None => rows.push(CollectiveTime {
                kind,
                axis: axis.clone(),
                group: members.len(),
                islands: span.islands,
                dims: span.dims(),
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
pub(super) fn hide(rows: &mut [CollectiveTime], share: f64) {
    for row in rows {
        row.hidden = row.seconds * share;
    }
}
