//! The collectives of a step that follow from its placement: printed before anything is compiled,
//! and compared with those of the compiled program.

use crate::layout::ShardedParam;
use crate::placement::{PlacedUnit, Placement};
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
        let owned = unit.parameters.iter().map(|&i| &self.parameters[i]);
        let (frozen, trained): (Vec<&ShardedParam>, Vec<&ShardedParam>) =
            owned.partition(|param| param.frozen);
        let mut collectives = Vec::new();
        for parameters in [&trained, &frozen] {
            for bucket in self.comm.gathers(parameters) {
                let axes = &parameters[bucket[0]].axes;
                let bytes = self.bytes(unit, bucket.iter().map(|&i| parameters[i]), true);
                collectives.extend(self.stages(unit, CollectiveKind::AllGather, axes, bytes, 1));
            }
        }
        let layers: Vec<usize> =
            trained.iter().map(|param| self.layers_at_once(unit, param)).collect();
        for bucket in self.comm.scatters(&trained, &layers) {
            let param = trained[bucket[0]];
            let bytes = self.bytes(unit, bucket.iter().map(|&i| trained[i]), false);
            let kind = CollectiveKind::ReduceScatter;
            let parts = param.reduced_parts().filter(|_| bucket.len() == 1);
            let parts = parts.map_or(1, |(_, count)| count);
            collectives.extend(self.stages(unit, kind, &param.axes, bytes, parts));
            let (kind, axes) = (CollectiveKind::AllReduce, self.comm.replica_axes(param));
            collectives.extend(self.stages(unit, kind, &axes, bytes / param.num_shards, 1));
        }
        let replicated = trained.iter().filter(|param| param.layout == Layout::Replicated);
        for &param in replicated {
            let bytes = self.bytes(unit, [param], false);
            let axes = self.comm.replica_axes(param);
            collectives.extend(self.stages(unit, CollectiveKind::AllReduce, &axes, bytes, 1));
        }
        collectives
    }

    /// The bytes of some parameters of a unit, or of their gradients, together.
    fn bytes<'a>(
        &self,
        unit: &PlacedUnit,
        parameters: impl IntoIterator<Item = &'a ShardedParam>,
        gathered: bool,
    ) -> usize {
        let elements = parameters
            .into_iter()
            .map(|param| self.layers_at_once(unit, param) * param.padded_elements());
        elements.sum::<usize>() * self.comm_dtype(gathered).size()
    }

    fn comm_dtype(&self, gathered: bool) -> DType {
        if gathered { self.comm.compute } else { self.comm.reduce }
    }

    /// A collective of a unit as it runs over axes.
    fn stages(
        &self,
        unit: &PlacedUnit,
        kind: CollectiveKind,
        axes: &[usize],
        bytes: usize,
        parts: usize,
    ) -> Vec<UnitCollective> {
        let gathered = kind == CollectiveKind::AllGather;
        let dtype = self.comm_dtype(gathered);
        let count = match gathered {
            _ if self.gathers_per_step() => 1,
            true => self.gather_count(unit),
            false => unit.count,
        };
        let staging = if gathered { self.comm.gather_staging } else { self.comm.staging };
        let stages = staging.stages(kind, &self.mesh, axes, bytes / dtype.size(), parts);
        let stages = stages.into_iter().map(|stage| UnitCollective {
            unit: unit.path.clone(),
            kind: stage.kind,
            axes: stage.axes,
            dtype,
            count,
            bytes: stage.elements * dtype.size(),
            per_step: gathered && self.gathers_per_step(),
        });
        stages.collect()
    }

    /// Number of all-gathers of a parameter of a unit.
    fn gather_count(&self, unit: &PlacedUnit) -> usize {
        let scanned = self.stacks.count(&unit.path).is_some();
        match (scanned && self.gathers_ahead(), unit.reshard) {
            (true, _) => 2 * (unit.count + 1),
            (false, true) => 2 * unit.count,
            (false, false) => unit.count,
        }
    }

    /// The layers of a sharded parameter in one collective of its unit: one if the unit is inside
    /// the scan over them, all if it is around the scan or gathered before it.
    fn layers_at_once(&self, unit: &PlacedUnit, param: &ShardedParam) -> usize {
        let inside = unit.path.contains('*') && !self.gathers_per_step();
        if inside { 1 } else { param.stack.unwrap_or(1) }
    }
}
