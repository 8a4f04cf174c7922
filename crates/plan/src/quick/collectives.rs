//! The collectives of a step, from the placement, and their time.

use crate::machine::Machine;
use crate::report::CollectiveTime;
use fullshard_step::StepSpec;

/// The collectives of a step, equal ones merged, none of them hidden yet.
pub(super) fn collective_times(spec: &StepSpec, machine: &Machine) -> Vec<CollectiveTime> {
    let mut rows: Vec<CollectiveTime> = Vec::new();
    let each = if spec.batch.sync_each_microbatch { spec.batch.accumulation } else { 1 };
    let mesh = &spec.placement.mesh;
    for collective in spec.placement.collectives() {
        let kind = collective.kind;
        let each = if collective.per_step { 1 } else { each };
        let count = (collective.count * each) as u64;
        let (bytes, devices) = (collective.bytes as u64, machine.devices);
        let group = mesh.group_size(&collective.axes);
        let seconds = machine.network.seconds(kind, bytes, group, devices) * count as f64;
        let kind = kind.to_string();
        let axis = mesh.whole_names(&collective.axes).join(", ");
        let like = |row: &&mut CollectiveTime| {
            row.kind == kind && row.bytes == bytes && row.axis == axis && row.group == group
        };
        match rows.iter_mut().find(like) {
            Some(row) => {
                row.count += count;
                row.seconds += seconds;
            }
            None => {
                rows.push(CollectiveTime { kind, axis, group, count, bytes, seconds, hidden: 0.0 })
            }
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
