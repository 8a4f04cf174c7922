//! The state as it is saved: one tensor per parameter or slot and layer, without padding, whatever
//! the sharding and whether layers are scanned or not.

use crate::layout::{StateTensor, slot_name};
use crate::spec::StepSpec;
use fullshard_optim::SlotKind;
use std::ops::Range;

/// The tensors that a tensor of the state is saved as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedTensors {
    /// Their names: one per layer if layers are stacked.
    pub names: Vec<String>,
    /// The dimensions of each.
    pub dims: Vec<usize>,
    /// Which of the optimizer's slots they are, unless they are parameters.
    pub slot: Option<&'static str>,
    /// Whether the first dimension of the state is the layer.
    stacked: bool,
}

/// The part of a saved tensor that a tile of the state holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedPart {
    /// The index of the saved tensor.
    pub tensor: usize,
    /// Its elements, in row-major order.
    pub elements: Range<usize>,
    /// The position of the first of them in the tile.
    pub start: usize,
}

impl StepSpec {
    /// The tensors that a tensor of the state is saved as.
    pub fn saved(&self, state: &StateTensor) -> SavedTensors {
        let param = &self.placement.parameters[state.parameter];
        let slot = state.slot.as_ref();
        let dims = match slot.map(|slot| &slot.kind) {
            Some(SlotKind::Replicated(dims)) if param.stack.is_some() => dims[1..].to_vec(),
            Some(SlotKind::Replicated(dims)) => dims.clone(),
            Some(SlotKind::Like) | None => param.dims.clone(),
        };
        let slot = slot.map(|slot| slot.name);
        let named = |name| match slot {
            Some(slot) => slot_name(name, slot),
            None => name,
        };
        let names = param.layer_names().into_iter().map(named).collect();
        SavedTensors { names, dims, slot, stacked: param.stack.is_some() }
    }
}

impl SavedTensors {
    /// The elements of each tensor.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// The parts that a tile of the padded state holds. Only the first dimension of a layer is
    /// sharded, and padding is at the end, so a tile has one range of each layer.
    pub fn parts(&self, tile: &[Range<usize>]) -> Vec<SavedPart> {
        let (layers, dims) = match tile {
            [layers, dims @ ..] if self.stacked => (layers.clone(), dims),
            dims => (0..1, dims),
        };
        let width: usize = dims.iter().skip(1).map(ExactSizeIterator::len).product();
        let rows = dims.first().map_or(0..1, Clone::clone);
        let length = rows.len() * width;
        let limit = self.elements();
        let elements = (rows.start * width).min(limit)..(rows.end * width).min(limit);
        let part =
            |(i, tensor)| SavedPart { tensor, elements: elements.clone(), start: i * length };
        layers.enumerate().map(part).filter(|part| !part.elements.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(dims: &[usize], layers: Option<usize>) -> SavedTensors {
        let names = (0..layers.unwrap_or(1)).map(|layer| format!("h.{layer}.w")).collect();
        SavedTensors { names, dims: dims.to_vec(), slot: None, stacked: layers.is_some() }
    }

    fn part(tensor: usize, elements: Range<usize>, start: usize) -> SavedPart {
        SavedPart { tensor, elements, start }
    }

    #[test]
    fn rows_are_ranges_of_elements() {
        // [5, 3] over two devices, padded to six rows.
        let saved = saved(&[5, 3], None);
        assert_eq!(saved.parts(&[0..3, 0..3]), [part(0, 0..9, 0)]);
        assert_eq!(saved.parts(&[3..6, 0..3]), [part(0, 9..15, 0)]);
    }

    #[test]
    fn layers_of_a_stack_are_tensors_of_their_own() {
        let saved = saved(&[5], Some(2));
        assert_eq!(saved.parts(&[0..2, 4..8]), [part(0, 4..5, 0), part(1, 4..5, 4)]);
        assert_eq!(saved.parts(&[0..2, 8..12]), []);
    }

    #[test]
    fn scalars_have_one_element() {
        assert_eq!(saved(&[], None).parts(&[]), [part(0, 0..1, 0)]);
        assert_eq!(saved(&[], Some(2)).parts(&vec![0..2; 1]), [part(0, 0..1, 0), part(1, 0..1, 1)]);
    }
}
