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
    /// The type that is communicated.
    pub dtype: DType,
    /// Number of times per forward and backward pass.
    pub count: usize,
    /// The bytes of the full tensor, padding included, each time.
    pub bytes: usize,
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
                let kind = CollectiveKind::AllGather;
                let bucket = bucket.iter().map(|&i| parameters[i]);
                collectives.push(self.collective(unit, kind, bucket));
            }
        }
        let layers: Vec<usize> = trained.iter().map(|param| layers_at_once(unit, param)).collect();
        for bucket in self.comm.scatters(&trained, &layers) {
            let kind = CollectiveKind::ReduceScatter;
            collectives.push(self.collective(unit, kind, bucket.iter().map(|&i| trained[i])));
        }
        let replicated = trained.iter().copied().filter(|param| param.layout == Layout::Replicated);
        let all_reduces =
            replicated.map(|param| self.collective(unit, CollectiveKind::AllReduce, [param]));
        collectives.extend(all_reduces);
        collectives
    }

    /// The collective of some parameters of a unit, or of their gradients, together.
    fn collective<'a>(
        &self,
        unit: &PlacedUnit,
        kind: CollectiveKind,
        parameters: impl IntoIterator<Item = &'a ShardedParam>,
    ) -> UnitCollective {
        let (dtype, count) = match kind {
            CollectiveKind::AllGather => (self.comm.compute, self.gather_count(unit)),
            _ => (self.comm.reduce, unit.count),
        };
        let elements = parameters.into_iter().map(|param| {
            let layers = layers_at_once(unit, param);
            layers * param.padded_elements()
        });
        let bytes = elements.sum::<usize>() * dtype.size();
        UnitCollective { unit: unit.path.clone(), kind, dtype, count, bytes }
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
}

/// The layers of a sharded parameter in one collective of its unit: one if the unit is inside the
/// scan over them, all if it is around the scan.
fn layers_at_once(unit: &PlacedUnit, param: &ShardedParam) -> usize {
    if unit.path.contains('*') { 1 } else { param.stack.unwrap_or(1) }
}
