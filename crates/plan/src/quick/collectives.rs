//! The collectives of a step, from the placement, and their time.

use crate::describe::axes_of;
use crate::machine::Machine;
use crate::report::CollectiveTime;
use fullshard_step::StepSpec;

/// The collectives of a step, equal ones merged, none of them hidden yet.
pub(super) fn collective_times(spec: &StepSpec, machine: &Machine) -> Vec<CollectiveTime> {
    let mut rows: Vec<CollectiveTime> = Vec::new();
    let each = if spec.batch.sync_each_microbatch { spec.batch.accumulation } else { 1 };
    let mesh = &spec.placement.mesh;
    for collective in spec.placement.collectives() {
        let each = if collective.per_step { 1 } else { each };
        let count = (collective.count * each) as u64;
        let members = mesh.groups(&collective.axes).swap_remove(0);
        let span = machine.network.span(&members);
        let bytes = collective.bytes as u64;
        let seconds = machine.network.seconds_over(collective.kind, bytes, &span) * count as f64;
        let new = CollectiveTime {
            kind: collective.kind.to_string(),
            axis: axes_of(mesh, &members),
            group: members.len(),
            islands: span.islands,
            dims: span.dims(),
            count,
            bytes,
            seconds,
            hidden: 0.0,
        };
        match rows.iter_mut().find(|row| row.is_like(&new)) {
            Some(row) => {
                row.count += count;
                row.seconds += seconds;
            }
            None => rows.push(new),
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
