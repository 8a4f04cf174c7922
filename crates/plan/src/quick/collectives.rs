//! The collectives of a step, of parameters and of activations, and their time.

use super::activations::{self, Collective};
use crate::describe::{any_layer, axes_of};
use crate::machine::Machine;
use crate::report::{CollectiveTime, ModuleCollectives};
use fullshard_core::CollectiveKind;
use fullshard_parallel::UnitCollective;
use fullshard_step::StepSpec;

/// The collectives of a step.
#[derive(Default)]
pub(super) struct Communication {
    /// Those that can overlap with compute, equal ones merged, none of them hidden yet.
    pub overlapping: Vec<CollectiveTime>,
    /// Those that the next compute waits for.
    pub waiting: Vec<CollectiveTime>,
    /// All of them by module, most bytes first.
    pub by_module: Vec<ModuleCollectives>,
}

impl Communication {
    pub(super) fn new(spec: &StepSpec, machine: &Machine) -> Communication {
        let of_parameters =
            spec.placement.collectives().into_iter().flat_map(|it| passes(spec, it));
        let mut found = Communication::default();
        for collective in of_parameters.chain(activations::collectives(spec)) {
            found.add(spec, machine, collective);
        }
        found.by_module.sort_by_key(|row| std::cmp::Reverse(row.bytes));
        found
    }

    fn add(&mut self, spec: &StepSpec, machine: &Machine, collective: Collective) {
        let mesh = &spec.placement.mesh;
        let members = mesh.groups(&collective.axes).swap_remove(0);
        let span = machine.network.span(&members);
        let times = if collective.per_step { 1 } else { spec.batch.accumulation };
        let (count, bytes) = ((collective.count * times) as u64, collective.bytes as u64);
        let seconds = machine.network.seconds_over(collective.kind, bytes, &span) * count as f64;
        let seconds = seconds / collective.at_once as f64;
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
        self.add_to_module(&new, &collective);
        let rows = if collective.overlaps { &mut self.overlapping } else { &mut self.waiting };
        match rows.iter_mut().find(|row| row.is_like(&new)) {
            Some(row) => {
                row.count += count;
                row.seconds += seconds;
            }
            None => rows.push(new),
        }
    }

    fn add_to_module(&mut self, time: &CollectiveTime, collective: &Collective) {
        let new = ModuleCollectives {
            module: collective.module.clone(),
            backward: collective.backward,
            kind: time.kind.clone(),
            axis: time.axis.clone(),
            group: time.group,
            count: time.count,
            bytes: time.bytes.saturating_mul(time.count),
            combined: 1,
        };
        match self.by_module.iter_mut().find(|row| row.is_like(&new)) {
            Some(row) => {
                row.count += new.count;
                row.bytes = row.bytes.saturating_add(new.bytes);
            }
            None => self.by_module.push(new),
        }
    }

    /// Hides a share of what can overlap.
    pub(super) fn hide(&mut self, share: f64) {
        for row in &mut self.overlapping {
            row.hidden = row.seconds * share;
        }
    }

    /// All collectives.
    pub(super) fn into_rows(self) -> Vec<CollectiveTime> {
        self.overlapping.into_iter().chain(self.waiting).collect()
    }
}

/// A collective of parameters by its pass: units that reshard gather half as often in each.
fn passes(spec: &StepSpec, collective: UnitCollective) -> Vec<Collective> {
    let UnitCollective { unit, kind, axes, count, bytes, per_step, .. } = collective;
    let placement = &spec.placement;
    let gathers = kind == CollectiveKind::AllGather;
    let reshards = placement.units.iter().any(|it| it.path == unit && it.reshard);
    let again = reshards || placement.gathers_layers_ahead();
    let twice = gathers && again && !placement.gathers_per_step() && count > 1;
    let ring = placement.mesh.group_size(&axes) > 2;
    let of = |backward, count| Collective {
        module: any_layer(&unit),
        backward,
        kind,
        axes: axes.clone(),
        count,
        bytes,
        per_step: per_step || !spec.batch.sync_each_microbatch,
        overlaps: true,
        // Halves of a gradient go around a ring in both directions.
        at_once: if kind == CollectiveKind::CollectivePermute && ring { 2 } else { 1 },
    };
    match twice {
        true => vec![of(false, count.div_ceil(2)), of(true, count / 2)],
        false => vec![of(!gathers, count)],
    }
}
