//! What is known exactly of a run's state before anything is compiled: how many parameters there
//! are, in which units, and the bytes that they and what belongs to them take on each device.
//!
//! What a step needs beside its state is the compiler's choice; `fullshard-plan` has a model of it.

use crate::error::Error;
use crate::layout::StateTensor;
use crate::ordered::Ordered;
use crate::spec::StepSpec;
use fullshard_graph::DType;
use fullshard_parallel::{PlacedUnit, Stored};

/// The bytes of the state on each device, padding included. All of it is in `f32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateBytes {
    /// The parts of parameters.
    pub parameters: u64,
    /// The optimizer's state.
    pub optimizer: u64,
    /// The parts of the gradients that parameters are updated with. They are no state: a step makes
    /// them, and need not have them all at once.
    pub gradients: u64,
}

/// A unit of the plan.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct UnitRow {
    /// The path of its module, with a `*` for the layer in a loop; empty for the root.
    pub path: String,
    /// The class of its module.
    pub class: &'static str,
    /// How many units there are of this kind.
    pub count: usize,
    /// The elements of one unit, whole.
    pub elements: u64,
    /// The bytes of one unit's parts on a device, padding included.
    pub part_bytes: u64,
    /// The bytes of one unit when it is whole, as it is computed with.
    pub whole_bytes: u64,
    /// Whether it is let go after the forward pass and gathered again.
    pub reshard: bool,
}

impl StepSpec {
    /// The elements of all parameters; tied ones count once.
    pub fn parameter_count(&self) -> usize {
        self.placement.parameters.iter().map(Stored::elements).sum()
    }

    /// The elements of all parameters but those of embeddings, which are looked up and not
    /// computed with: what Hugging Face counts operations by.
    pub fn count_without_embeddings(&self) -> usize {
        let computed = |stored: &&Stored| stored.class != "Embedding";
        self.placement.parameters.iter().filter(computed).map(Stored::elements).sum()
    }

    /// The elements of the parameters that are trained.
    pub fn trained_count(&self) -> usize {
        let trained = self.placement.parameters.iter().filter(|stored| !stored.frozen);
        trained.map(Stored::elements).sum()
    }

    /// The units, parents first; the first is the root.
    pub fn unit_rows(&self) -> Vec<UnitRow> {
        let row = |unit: &PlacedUnit| {
            let owned = || unit.parameters.iter().map(|&i| &self.placement.parameters[i]);
            let elements = owned().map(Stored::elements).sum::<usize>() / unit.count;
            let part = owned().map(Stored::part_elements).sum::<usize>() / unit.count;
            UnitRow {
                path: unit.path.clone(),
                class: unit.class,
                count: unit.count,
                elements: elements as u64,
                part_bytes: (part * DType::F32.size()) as u64,
                whole_bytes: (elements * self.placement.wire.compute.size()) as u64,
                reshard: unit.reshard,
            }
        };
        self.placement.units.iter().map(row).collect()
    }

    /// What the state takes on each device, and the gradients that it is updated with.
    pub fn state_bytes(&self) -> Result<StateBytes, Error> {
        let bytes = self.state()?.try_map(|StateTensor { tensor, .. }| {
            let dims = tensor.sharding.local_dims(&tensor.ty)?;
            Ok::<u64, Error>((dims.iter().product::<usize>() * tensor.ty.dtype.size()) as u64)
        })?;
        Ok(StateBytes {
            parameters: bytes.parameters.iter().sum(),
            optimizer: bytes.optimizer.iter().sum(),
            gradients: self.placement.trained().iter().map(|&i| bytes.parameters[i]).sum(),
        })
    }
}
