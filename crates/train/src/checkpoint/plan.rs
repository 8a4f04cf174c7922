//! Which shards of the state go into which files.

use crate::error::Error;
use fullshard_checkpoint::sharded::{Piece, TensorRecord};
use fullshard_checkpoint::{SINGLE_FILE, shard_file_name};
use fullshard_core::Part;
use fullshard_graph::TensorType;
use fullshard_pjrt::Array;
use fullshard_step::{Ordered, SavedPart, SavedTensors, StepSpec, TrainState};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

/// The largest file, so that a device's shards are written by several threads.
const FILE_BYTES: usize = 1 << 30;

/// The files of a checkpoint of a state, and what this process writes of them.
#[derive(Debug)]
pub(crate) struct SavePlan {
    pub tensors: BTreeMap<String, TensorRecord>,
    /// The shards to copy from devices of this process.
    pub tiles: Vec<TileSource>,
    /// The files that this process writes.
    pub files: Vec<FilePlan>,
    /// The file of each parameter, if all are in full and in more than one file: an index with
    /// which `transformers` loads them.
    pub index: Option<BTreeMap<String, String>>,
}

/// A shard on a device: of the array at this position of the state.
#[derive(Debug)]
pub(crate) struct TileSource {
    pub array: usize,
    pub shard: usize,
    pub ty: TensorType,
}

/// The pieces of a file, and the part of a tile that each is.
#[derive(Debug, Default)]
pub(crate) struct FilePlan {
    pub name: String,
    pub pieces: Vec<Piece>,
    pub sources: Vec<(usize, Part)>,
    /// Whether this process writes it.
    here: bool,
}

/// A tile with something to save, and the devices that hold it.
struct Tile<'a> {
    array: usize,
    saved: &'a SavedTensors,
    parts: Vec<SavedPart>,
    ty: TensorType,
    holders: Vec<usize>,
}

/// A piece before it has a file.
struct Placed {
    piece: Piece,
    source: (usize, Part),
    bytes: usize,
}

impl SavePlan {
    /// The plan of a state, with or without the optimizer's part.
    pub fn new(
        spec: &StepSpec,
        state: &TrainState<Array>,
        only_model: bool,
    ) -> Result<SavePlan, Error> {
        let saved = spec.state()?.map(|tensor| spec.saved(tensor));
        let pairs = state.zip(&saved)?.flatten().into_iter().enumerate();
        SavePlan::of(pairs.filter(|(_, (_, saved))| saved.slot.is_none() || !only_model))
    }

    /// The plan of arrays by their positions in the state, with what each is saved as.
    pub fn of<'a>(
        arrays: impl Iterator<Item = (usize, (&'a Array, &'a SavedTensors))>,
    ) -> Result<SavePlan, Error> {
        let (tensors, index) = (BTreeMap::new(), None);
        let mut plan = SavePlan { tensors, tiles: Vec::new(), files: Vec::new(), index };
        let (mut tiles, mut here) = (Vec::new(), 0..0);
        for (index, (array, saved)) in arrays {
            plan.record(saved);
            here = array.positions();
            tiles.extend(distinct_tiles(index, array, saved)?);
        }
        let sizes = tiles.iter().map(|tile| (tile.bytes(), tile.holders.as_slice()));
        let writers = writers(&sizes.collect::<Vec<_>>());
        let (mut model, mut optimizer) = (BTreeMap::new(), BTreeMap::new());
        for (tile, writer) in tiles.into_iter().zip(writers) {
            let owned = if tile.saved.slot.is_some() { &mut optimizer } else { &mut model };
            let owned: &mut Vec<Placed> = owned.entry(writer).or_default();
            owned.extend(tile.placed(plan.tiles.len()));
            if here.contains(&writer) {
                let shard = writer - here.start;
                plan.tiles.push(TileSource { array: tile.array, shard, ty: tile.ty });
            }
        }
        plan.add_files("model", model, &here);
        plan.add_files("optimizer", optimizer, &here);
        plan.index = plan.index();
        plan.files.retain(|file| file.here);
        Ok(plan)
    }

    /// The bytes that a copy of all shards needs.
    pub fn bytes(&self) -> usize {
        self.tiles.iter().map(|tile| tile.ty.bytes()).sum()
    }

    /// The bytes of the parameters.
    pub fn model_bytes(&self) -> u64 {
        let parameters = self.tensors.values().filter(|tensor| tensor.slot.is_none());
        parameters.map(|tensor| tensor.bytes() as u64).sum()
    }

    fn record(&mut self, saved: &SavedTensors) {
        let slot = saved.slot.map(str::to_owned);
        for name in &saved.names {
            let record = TensorRecord {
                dims: saved.dims.clone(),
                dtype: safetensors::Dtype::F32,
                slot: slot.clone(),
            };
            self.tensors.insert(name.clone(), record);
        }
    }

    /// Adds the files of a part of the state, given what each device writes of it, and which
    /// devices are of this process.
    fn add_files(&mut self, kind: &str, owned: BTreeMap<usize, Vec<Placed>>, here: &Range<usize>) {
        let mut files = Vec::new();
        for (writer, placed) in owned {
            let new = || FilePlan { here: here.contains(&writer), ..FilePlan::default() };
            let mut file = new();
            let mut bytes = 0;
            for Placed { piece, source, bytes: more } in placed {
                if bytes > 0 && bytes + more > FILE_BYTES {
                    files.push(std::mem::replace(&mut file, new()));
                    bytes = 0;
                }
                bytes += more;
                file.pieces.push(piece);
                file.sources.push(source);
            }
            files.push(file);
        }
        let count = files.len();
        for (i, file) in files.iter_mut().enumerate() {
            file.name = shard_file_name(kind, i, count);
        }
        self.files.extend(files);
    }

    fn index(&self) -> Option<BTreeMap<String, String>> {
        let mut files = BTreeMap::new();
        for file in self.files.iter().filter(|file| file.name.starts_with("model")) {
            for piece in &file.pieces {
                if !piece.is_full(&self.tensors[&piece.tensor]) || file.name == SINGLE_FILE {
                    return None;
                }
                files.insert(piece.tensor.clone(), file.name.clone());
            }
        }
        Some(files)
    }
}

impl Tile<'_> {
    /// The bytes that are written of it.
    fn bytes(&self) -> usize {
        let elements: usize = self.parts.iter().map(|part| part.part.elements()).sum();
        elements * self.ty.dtype.size()
    }

    /// Its pieces, given its position among the tiles that are copied.
    fn placed(&self, index: usize) -> impl Iterator<Item = Placed> {
        self.parts.iter().map(move |SavedPart { tensor, part, held }| Placed {
            bytes: part.elements() * self.ty.dtype.size(),
            piece: Piece { tensor: self.saved.names[*tensor].clone(), part: part.clone() },
            source: (index, held.clone()),
        })
    }
}

/// The distinct tiles of an array that hold more than padding.
fn distinct_tiles<'a>(
    index: usize,
    array: &'a Array,
    saved: &'a SavedTensors,
) -> Result<Vec<Tile<'a>>, Error> {
    let mut tiles: BTreeMap<usize, Tile<'_>> = BTreeMap::new();
    let dims = array.tiling().tile_dims(&array.ty().dims)?;
    let ty = TensorType::new(array.ty().dtype, &dims);
    for device in 0..array.tiling().devices() {
        let tile = array.tiling().tile(device, &array.ty().dims)?;
        let held = tiles.entry(tile.index).or_insert_with(|| Tile {
            array: index,
            saved,
            parts: saved.parts(&tile.ranges),
            ty: ty.clone(),
            holders: Vec::new(),
        });
        held.holders.push(device);
    }
    Ok(tiles.into_values().filter(|tile| !tile.parts.is_empty()).collect())
}

/// The device that writes each tile, given its bytes and its holders. Tiles of one holder come
/// first, then large ones, each to the holder with the least so far, so that devices write about
/// the same.
fn writers(tiles: &[(usize, &[usize])]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..tiles.len()).collect();
    order.sort_by_key(|&tile| (tiles[tile].1.len() > 1, Reverse(tiles[tile].0)));
    let (mut writers, mut loads) = (vec![0; tiles.len()], BTreeMap::new());
    for tile in order {
        let (bytes, holders) = tiles[tile];
        let load = |device: &&usize| loads.get(*device).copied().unwrap_or(0);
        writers[tile] = holders.iter().min_by_key(load).copied().unwrap_or(0);
        *loads.entry(writers[tile]).or_insert(0) += bytes;
    }
    writers
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that each device writes.
    fn loads(tiles: &[(usize, &[usize])], devices: usize) -> Vec<usize> {
        let writers = writers(tiles);
        for (writer, (_, holders)) in writers.iter().zip(tiles) {
            assert!(holders.contains(writer));
        }
        let of = |device| {
            let mine = writers.iter().zip(tiles).filter(|(writer, _)| **writer == device);
            mine.map(|(_, (bytes, _))| bytes).sum()
        };
        (0..devices).map(of).collect()
    }

    #[test]
    fn replicas_write_about_the_same() {
        let all: &[usize] = &[0, 1];
        assert_eq!(loads(&[(1, all), (2, all), (3, all), (4, all), (10, all)], 2), [10, 10]);
        // Two replicas of two shards.
        let (first, second): (&[usize], &[usize]) = (&[0, 2], &[1, 3]);
        let tiles: Vec<_> = (1..=8).flat_map(|size| [(size, first), (size, second)]).collect();
        assert_eq!(loads(&tiles, 4), [18; 4]);
    }

    #[test]
    fn replicated_tensors_go_to_devices_with_less() {
        let tiles: [(usize, &[usize]); 3] = [(9, &[0, 1]), (5, &[0]), (4, &[0, 1])];
        assert_eq!(loads(&tiles, 2), [9, 9]);
        assert_eq!(loads(&[(3, &[1])], 2), [0, 3]);
        assert!(writers(&[]).is_empty());
    }
}
