//! The collectives of a step that follow from its placement: printed before anything is compiled,
//! and compared with those of the compiled program.

use crate::layout::ShardedParam;
use crate::placement::{PlacedUnit, Placement};
use crate::staged::Staging;
use fullshard_core::{CollectiveKind, Layout};
use fullshard_graph::DType;

/// A collective of a unit.
#[derive(Debug, Clone, PartialEq)]
pub struct UnitCollective {
    /// The path of the unit.
    pub unit: String,
    /// The kind.
    pub kind: CollectiveKind,
    /// The positions of the mesh axes that it runs over.
    pub axes: Vec<usize>,
    /// The type that is communicated.
    pub dtype: DType,
    /// Number of times per forward and backward pass; once per step for what is gathered so.
    pub count: usize,
    /// The bytes of the full tensor, padding included, each time.
    pub bytes: usize,
    /// Whether it runs once per step, however many microbatches are accumulated.
    pub per_step: bool,
}

impl Placement {
    /// The collectives of parameters and gradients in one forward and backward pass.
    ///
    /// Parameters that the backward pass does not need, such as biases, are not all-gathered again
    /// unless they are packed with others; the count includes all that may be. A scan that gathers
    /// ahead gathers in both passes whatever is saved, and once more in each: the first layer
    /// before the loop, and an unused one in its last iteration.
    pub fn collectives(&self) -> Vec<UnitCollective> {
        if self.devices() == 1 {
            return Vec::new();
        }
        self.units.iter().flat_map(|unit| self.unit_collectives(unit)).collect()
    }

    fn unit_collectives(&self, unit: &PlacedUnit) -> Vec<UnitCollective> {
        let (before, inside): (Vec<usize>, Vec<usize>) =
            unit.parameters.iter().partition(|&&i| self.is_gathered_before(i));
        let of = |parameters: Vec<usize>, gathers, reductions, layers_at_once| {
            let times = Times { gathers, reductions, layers_at_once };
            self.collectives_of(unit, &parameters, times)
        };
        let (gathers, reductions) = match self.gathers_per_step() {
            true => (1, 1),
            false => (self.gather_count(unit), unit.count),
        };
        [of(before, 1, 1, true), of(inside, gathers, reductions, false)].concat()
    }

    /// The collectives of some parameters of a unit.
    fn collectives_of(
        &self,
        unit: &PlacedUnit,
        parameters: &[usize],
        times: Times,
    ) -> Vec<UnitCollective> {
        let owned = parameters.iter().map(|&i| &self.parameters[i]);
        let (frozen, trained): (Vec<&ShardedParam>, Vec<&ShardedParam>) =
            owned.partition(|param| param.frozen);
        let layers = |param: &ShardedParam| match times.layers_at_once {
            true => param.stack.unwrap_or(1),
            false => self.layers_at_once(unit, param),
        };
        let bytes = |parameters: &[&ShardedParam], bucket: &[usize], gathered| {
            let elements = bucket.iter().map(|&i| parameters[i]);
            let elements = elements.map(|param| layers(param) * param.padded_elements());
            elements.sum::<usize>() * self.comm_dtype(gathered).size()
        };
        let staged = |staging, kind, axes: &[usize], bytes, parts| {
            self.stages(&unit.path, times, staging, (kind, axes), bytes, parts)
        };
        let stages = |kind, axes: &[usize], bytes| staged(self.comm.staging, kind, axes, bytes, 1);
        let mut collectives = Vec::new();
        for parameters in [&trained, &frozen] {
            for bucket in self.comm.gathers(parameters) {
                let param = parameters[bucket[0]];
                let bytes = bytes(parameters, &bucket, true);
                let parts = self.comm.gathered_parts(param).map_or(1, |(_, count)| count);
                let (staging, kind) = (self.comm.gather_staging, CollectiveKind::AllGather);
                collectives.extend(staged(staging, kind, &param.axes, bytes, parts));
            }
        }
        let all_layers: Vec<usize> = trained.iter().map(|param| layers(param)).collect();
        for bucket in self.comm.scatters(&trained, &all_layers) {
            let param = trained[bucket[0]];
            let bytes = bytes(&trained, &bucket, false);
            let parts = param.reduced_parts().map_or(1, |(_, count)| count);
            let (staging, parts) = match bucket.len() {
                1 => (self.comm.reduction(param), parts),
                _ => (self.comm.staging, 1),
            };
            let kind = CollectiveKind::ReduceScatter;
            collectives.extend(staged(staging, kind, &param.axes, bytes, parts));
            let axes = self.comm.replica_axes(param);
            let bytes = bytes / param.num_shards;
            collectives.extend(stages(CollectiveKind::AllReduce, &axes, bytes));
        }
        let is_replicated = |&i: &usize| trained[i].layout == Layout::Replicated;
        for i in (0..trained.len()).filter(is_replicated) {
            let axes = self.comm.replica_axes(trained[i]);
            let bytes = bytes(&trained, &[i], false);
            collectives.extend(stages(CollectiveKind::AllReduce, &axes, bytes));
        }
        collectives
    }

    /// Number of all-gathers of a parameter of a unit.
    fn gather_count(&self, unit: &PlacedUnit) -> usize {
        let scanned = self.stacks.count(&unit.path).is_some();
        match (scanned && self.gathers_layers_ahead(), unit.reshard) {
            (true, _) => 2 * (unit.count + 1),
            (false, true) => 2 * unit.count,
            (false, false) => unit.count,
        }
    }

    fn comm_dtype(&self, gathered: bool) -> DType {
        if gathered { self.comm.compute } else { self.comm.reduce }
    }

    /// A collective of a unit as it runs over axes.
    fn stages(
        &self,
        unit: &str,
        times: Times,
        staging: Staging,
        (kind, axes): (CollectiveKind, &[usize]),
        bytes: usize,
        parts: usize,
    ) -> Vec<UnitCollective> {
        let gathered = kind == CollectiveKind::AllGather;
        let dtype = self.comm_dtype(gathered);
        let (count, bytes) = match gathered {
            true => (times.gathers * parts, bytes / parts),
            false => (times.reductions, bytes),
        };
        let stages = staging.stages(kind, &self.mesh, axes, bytes / dtype.size(), parts);
        let stages = stages.into_iter().map(|stage| UnitCollective {
            unit: unit.to_owned(),
            kind: stage.kind,
            axes: stage.axes,
            dtype,
            count,
            bytes: stage.elements * dtype.size(),
            per_step: gathered && self.gathers_per_step(),
        });
        stages.collect()
    }

    /// The layers of a sharded parameter in one collective of its unit: one if the unit is inside
    /// the scan over them, all if it is around the scan or gathered before it.
    fn layers_at_once(&self, unit: &PlacedUnit, param: &ShardedParam) -> usize {
        let inside = unit.path.contains('*') && !self.gathers_per_step();
        if inside { 1 } else { param.stack.unwrap_or(1) }
    }
}

/// The number of collectives of each parameter of a unit.
#[derive(Clone, Copy)]
struct Times {
    gathers: usize,
    reductions: usize,
    /// Whether each time is for all layers.
    layers_at_once: bool,
}
