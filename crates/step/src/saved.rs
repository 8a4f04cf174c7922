//! The state as it is saved: one tensor per parameter or slot and layer, without padding, whatever
//! the sharding and whether layers are scanned or not.

use crate::layout::{StateTensor, slot_name};
use crate::spec::StepSpec;
use fullshard_core::Part;
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
    pub stacked: bool,
    /// A dim of several parts that is sliced, with their number: two dimensions of the state.
    pub split: Option<(usize, usize)>,
}

/// What a tile of the state holds of a saved tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedPart {
    /// The index of the saved tensor.
    pub tensor: usize,
    /// The part of the saved tensor.
    pub part: Part,
    /// The same elements as a part of the tile.
    pub held: Part,
}

/// The index of a saved tensor, ranges of its dims, and those of a tile.
type Boxes = (usize, Vec<Range<usize>>, Vec<Range<usize>>);

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
        let is_sliced = state.slot.as_ref().is_none_or(|slot| slot.kind == SlotKind::Like);
        let slice = param.slice.as_ref().filter(|slice| is_sliced && slice.parts > 1);
        let split = slice.map(|slice| (slice.dim, slice.parts));
        SavedTensors { names, dims, slot, stacked: param.stack.is_some(), split }
    }
}

impl SavedTensors {
    /// The elements of each tensor.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// The values of all layers, concatenated, from those of the padded state of these dimensions.
    pub fn unpad<T: Copy>(&self, dims: &[usize], padded: &[T]) -> Vec<T> {
        let tile: Vec<Range<usize>> = dims.iter().map(|&dim| 0..dim).collect();
        let parts = self.parts(&tile);
        let runs = |part: &SavedPart| part.held.runs(dims).collect::<Vec<_>>();
        let mut values: Vec<T> = Vec::with_capacity(self.names.len() * self.elements());
        for run in parts.iter().flat_map(runs) {
            values.extend_from_slice(&padded[run.from..][..run.count]);
        }
        if self.split.is_none() {
            return values;
        }
        // The parts of a dim that is split are side by side in the state, and not in the tensor.
        let (ordered, mut from) = (&mut values.clone(), 0);
        for SavedPart { tensor, part, .. } in &parts {
            for run in part.runs(&self.dims) {
                let to = tensor * self.elements() + run.from;
                ordered[to..to + run.count].copy_from_slice(&values[from..from + run.count]);
                from += run.count;
            }
        }
        std::mem::take(ordered)
    }

    /// The parts that a tile of the padded state holds, one of each layer, or as many as a dim is
    /// split into. Padding is at the end of any dim. A tile of another rank is one of flattened
    /// tensors.
    pub fn parts(&self, tile: &[Range<usize>]) -> Vec<SavedPart> {
        let Some((dim, count)) = self.split else { return self.whole_parts(tile) };
        let each = self.dims[dim] / count;
        let split = dim + usize::from(self.stacked);
        let mut parts = Vec::new();
        for part in tile[split].clone() {
            // The part alone is a tensor whose dim is shorter, in a tile without the split.
            let mut dims = self.dims.clone();
            dims[dim] = each;
            let alone = SavedTensors { dims, split: None, ..self.clone() };
            let ranges = [&tile[..split], &tile[split + 1..]].concat();
            parts.extend(alone.boxes(&ranges).into_iter().map(|(tensor, mut of, mut held)| {
                of[dim] = of[dim].start + part * each..of[dim].end + part * each;
                held.insert(split, part - tile[split].start..part - tile[split].start + 1);
                self.saved_part(tensor, &of, &held, tile)
            }));
        }
        parts.sort_by_key(|part| part.tensor);
        parts
    }

    fn saved_part(
        &self,
        tensor: usize,
        of: &[Range<usize>],
        held: &[Range<usize>],
        tile: &[Range<usize>],
    ) -> SavedPart {
        let tile_dims: Vec<usize> = tile.iter().map(ExactSizeIterator::len).collect();
        let flat = [self.elements()];
        let dims = if of.len() == self.dims.len() { &self.dims[..] } else { &flat };
        SavedPart { tensor, part: Part::tile(of, dims), held: Part::tile(held, &tile_dims) }
    }

    fn whole_parts(&self, tile: &[Range<usize>]) -> Vec<SavedPart> {
        let part = |(tensor, of, held): Boxes| self.saved_part(tensor, &of, &held, tile);
        self.boxes(tile).into_iter().map(part).collect()
    }

    /// For each layer in a tile its index, the ranges of its dims, and those of the tile.
    fn boxes(&self, tile: &[Range<usize>]) -> Vec<Boxes> {
        let (layers, ranges) = match tile {
            [layers, ranges @ ..] if self.stacked => (layers.clone(), ranges),
            ranges => (0..1, ranges),
        };
        let flat = [self.elements()];
        let dims = if ranges.len() == self.dims.len() { &self.dims[..] } else { &flat };
        let unpadded = |(range, &dim): (&Range<usize>, &usize)| range.start..range.end.min(dim);
        let kept: Vec<Range<usize>> = ranges.iter().zip(dims).map(unpadded).collect();
        if kept.iter().any(Range::is_empty) {
            return Vec::new();
        }
        let within: Vec<Range<usize>> = kept.iter().map(|range| 0..range.len()).collect();
        let part = |tensor: usize| {
            let layer = self.stacked.then(|| tensor - layers.start..tensor - layers.start + 1);
            (tensor, kept.clone(), layer.into_iter().chain(within.clone()).collect())
        };
        (layers.start..layers.end.min(self.names.len())).map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(dims: &[usize], layers: Option<usize>) -> SavedTensors {
        let names = (0..layers.unwrap_or(1)).map(|layer| format!("h.{layer}.w")).collect();
        SavedTensors { names, dims: dims.to_vec(), slot: None, stacked: layers.is_some(), split: None }
    }

    fn part(tensor: usize, part: &str, held: &str) -> SavedPart {
        let [part, held] = [part, held].map(|part| Part::parse(part).unwrap());
        SavedPart { tensor, part, held }
    }

    #[test]
    fn rows_are_ranges_of_elements() {
        // [5, 3] over two devices, padded to six rows.
        let saved = saved(&[5, 3], None);
        assert_eq!(saved.parts(&[0..3, 0..3]), [part(0, "[0:9]", "[0:9]")]);
        assert_eq!(saved.parts(&[3..6, 0..3]), [part(0, "[9:15]", "[0:6]")]);
    }

    #[test]
    fn columns_are_boxes() {
        // [5, 3] over two devices, padded to four columns.
        let saved = saved(&[5, 3], None);
        assert_eq!(saved.parts(&[0..5, 0..2]), [part(0, "[0:5,0:2]", "[0:10]")]);
        assert_eq!(saved.parts(&[0..5, 2..4]), [part(0, "[0:5,2:3]", "[0:5,0:1]")]);
    }

    #[test]
    fn layers_of_a_stack_are_tensors_of_their_own() {
        let vectors = saved(&[5], Some(2));
        let parts = [part(0, "[4:5]", "[0:1]"), part(1, "[4:5]", "[4:5]")];
        assert_eq!(vectors.parts(&[0..2, 4..8]), parts);
        assert_eq!(vectors.parts(&[0..2, 8..12]), []);
        let flat = saved(&[3, 3], Some(2));
        let parts = [part(0, "[8:9]", "[0:1]"), part(1, "[8:9]", "[4:5]")];
        assert_eq!(flat.parts(&[0..2, 8..12]), parts);
        // Three layers over two devices.
        let layers = saved(&[2], Some(3));
        assert_eq!(layers.parts(&[2..4, 0..2]), [part(2, "[0:2]", "[0:2]")]);
    }

    #[test]
    fn padding_of_any_dim_is_cut() {
        let values: Vec<usize> = (0..2 * 4 * 3).collect();
        let found = saved(&[3, 2], Some(2)).unpad(&[2, 4, 3], &values);
        assert_eq!(found, [0, 1, 3, 4, 6, 7, 12, 13, 15, 16, 18, 19]);
        let flat = saved(&[3, 2], Some(2)).unpad(&[2, 8], &values);
        assert_eq!(flat, [0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13]);
    }

    #[test]
    fn parts_of_a_split_dim_are_boxes() {
        // [2, 6] of two parts, each sliced over three devices: the second has columns 1 and 4.
        let saved = SavedTensors { split: Some((1, 2)), ..saved(&[2, 6], None) };
        let parts = saved.parts(&[0..2, 0..2, 1..2]);
        let [first, second] = [("[0:2,1:2]", "[0:2,0:1,0:1]"), ("[0:2,4:5]", "[0:2,1:2,0:1]")];
        assert_eq!(parts, [part(0, first.0, first.1), part(0, second.0, second.1)]);
        let values: Vec<usize> = (0..12).collect();
        assert_eq!(saved.unpad(&[2, 2, 3], &values), values);
        // Three columns in slices of two have one of padding.
        let padded: Vec<usize> = (0..16).collect();
        let expected = [0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14];
        assert_eq!(saved.unpad(&[2, 2, 4], &padded), expected);
    }

    #[test]
    fn scalars_have_one_element() {
        assert_eq!(saved(&[], None).parts(&[]), [part(0, "[0:1]", "[0:1]")]);
        let parts = [part(0, "[0:1]", "[0:1]"), part(1, "[0:1]", "[1:2]")];
        assert_eq!(saved(&[], Some(2)).parts(&vec![0..2; 1]), parts);
        assert_eq!(saved(&[], None).parts(&vec![128..256; 1]), []);
    }

    /// The tiles of any grid hold every element once, at the place of its coordinates.
    #[test]
    fn tiles_hold_all_elements_once() {
        const DIMS: [usize; 3] = [3, 4, 5];
        let saved = saved(&DIMS, Some(2));
        let grids = (0..81).map(|i| [i % 3 + 1, i / 3 % 3 + 1, i / 9 % 3 + 1, i / 27 + 1]);
        for grid in grids {
            let mut counts = vec![0; 2 * saved.elements()];
            let dims = [2_usize, 3, 4, 5].iter().zip(grid);
            let tile_dims: Vec<usize> = dims.map(|(dim, parts)| dim.div_ceil(parts)).collect();
            for index in 0..grid.iter().product() {
                let coordinates = coordinates(index, &grid);
                let tile =
                    coordinates.iter().zip(&tile_dims).map(|(i, dim)| i * dim..(i + 1) * dim);
                let tile: Vec<Range<usize>> = tile.collect();
                for SavedPart { tensor, part, held } in saved.parts(&tile) {
                    let elements = |part: Part, dims: &[usize]| {
                        part.runs(dims).flat_map(|run| run.from..run.from + run.count)
                    };
                    let pairs = elements(part, &DIMS).zip(elements(held, &tile_dims));
                    for (element, place) in pairs {
                        let mut expected = self::coordinates(place, &tile_dims);
                        expected.iter_mut().zip(&tile).for_each(|(i, range)| *i += range.start);
                        let found = [vec![tensor], self::coordinates(element, &DIMS)].concat();
                        assert_eq!(found, expected, "{grid:?}");
                        counts[tensor * saved.elements() + element] += 1;
                    }
                }
            }
            assert!(counts.iter().all(|&count| count == 1), "{grid:?}: {counts:?}");
        }
    }

    fn coordinates(mut index: usize, dims: &[usize]) -> Vec<usize> {
        let mut coordinates = vec![0; dims.len()];
        for (coordinate, dim) in coordinates.iter_mut().zip(dims).rev() {
            *coordinate = index % dim;
            index /= dim;
        }
        coordinates
    }
}
