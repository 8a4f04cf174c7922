//! Which shards of the state go into which files.

use crate::error::Error;
use fullshard_checkpoint::sharded::{Piece, TensorRecord};
use fullshard_checkpoint::{SINGLE_FILE, shard_file_name};
use fullshard_pjrt::Array;
use fullshard_step::{Ordered, SavedTensors, StateTensor, StepSpec, TrainState};
use std::collections::BTreeMap;
use std::ops::Range;

/// The largest file, so that a device's shards are written by several threads.
const FILE_BYTES: usize = 1 << 30;

/// The files of a checkpoint of a state.
#[derive(Debug)]
pub(crate) struct SavePlan {
    pub tensors: BTreeMap<String, TensorRecord>,
    /// The shards to copy from devices.
    pub tiles: Vec<TileSource>,
    pub files: Vec<FilePlan>,
}

/// A shard on a device: of the array at this position of the state.
#[derive(Debug)]
pub(crate) struct TileSource {
    pub array: usize,
    pub shard: usize,
    pub bytes: usize,
}

/// The pieces of a file, and the bytes of a tile that each is.
#[derive(Debug, Default)]
pub(crate) struct FilePlan {
    pub name: String,
    pub pieces: Vec<Piece>,
    pub sources: Vec<(usize, Range<usize>)>,
}

/// A piece before it has a file.
struct Placed {
    piece: Piece,
    source: (usize, Range<usize>),
}

impl SavePlan {
    /// The plan of a state, with or without the optimizer's part.
    pub fn new(
        spec: &StepSpec,
        state: &TrainState<Array>,
        only_model: bool,
    ) -> Result<SavePlan, Error> {
        let described = spec.state()?;
        let pairs = state.zip(&described)?.flatten();
        let mut plan = SavePlan { tensors: BTreeMap::new(), tiles: Vec::new(), files: Vec::new() };
        let devices = spec.placement.devices();
        let mut model: Vec<Vec<Placed>> = (0..devices).map(|_| Vec::new()).collect();
        let mut optimizer: Vec<Vec<Placed>> = (0..devices).map(|_| Vec::new()).collect();
        let mut loads = vec![0; devices];
        for (index, (array, tensor)) in pairs.into_iter().enumerate() {
            let is_slot = tensor.slot.is_some();
            if !(is_slot && only_model) {
                let owned = if is_slot { &mut optimizer } else { &mut model };
                plan.add(spec, (index, array), tensor, owned, &mut loads)?;
            }
        }
        plan.add_files("model", model);
        plan.add_files("optimizer", optimizer);
        Ok(plan)
    }

    /// The bytes that a copy of all shards needs.
    pub fn bytes(&self) -> usize {
        self.tiles.iter().map(|tile| tile.bytes).sum()
    }

    /// The bytes of the parameters.
    pub fn model_bytes(&self) -> u64 {
        let parameters = self.tensors.values().filter(|tensor| tensor.slot.is_none());
        parameters.map(|tensor| tensor.bytes() as u64).sum()
    }

    /// Adds a tensor's distinct shards, each from the device with the least so far that has it.
    fn add(
        &mut self,
        spec: &StepSpec,
        (index, array): (usize, &Array),
        tensor: &StateTensor,
        owned: &mut [Vec<Placed>],
        loads: &mut [usize],
    ) -> Result<(), Error> {
        let saved = spec.saved(tensor);
        self.record(&saved);
        let mut holders: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for shard in 0..array.shards().len() {
            let tile = array.tiling().tile(shard, &array.ty().dims)?;
            holders.entry(tile.index).or_default().push(shard);
        }
        let width = array.ty().dtype.size();
        for shards in holders.into_values() {
            let least = shards.into_iter().min_by_key(|&shard| loads[shard]);
            let Some(shard) = least else { continue };
            let tile = array.tiling().tile(shard, &array.ty().dims)?;
            let bytes = array.shards()[shard].ty().bytes();
            let parts = saved.parts(&tile.ranges);
            if parts.is_empty() {
                continue;
            }
            self.tiles.push(TileSource { array: index, shard, bytes });
            loads[shard] += bytes;
            owned[shard].extend(parts.into_iter().map(|part| {
                let end = part.start + part.elements.len();
                let source = (self.tiles.len() - 1, part.start * width..end * width);
                let tensor = saved.names[part.tensor].clone();
                Placed { piece: Piece { tensor, elements: part.elements }, source }
            }));
        }
        Ok(())
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

    /// Adds the files of a part of the state, given what each device writes of it.
    fn add_files(&mut self, kind: &str, owned: Vec<Vec<Placed>>) {
        let mut files = Vec::new();
        for placed in owned.into_iter().filter(|placed| !placed.is_empty()) {
            let mut file = FilePlan::default();
            let mut bytes = 0;
            for Placed { piece, source } in placed {
                let more = source.1.len();
                if bytes > 0 && bytes + more > FILE_BYTES {
                    files.push(std::mem::take(&mut file));
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

    /// The file of each parameter, if all are in full and in more than one file: an index with
    /// which `transformers` loads them.
    pub fn index(&self) -> Option<BTreeMap<&str, &str>> {
        let mut files = BTreeMap::new();
        for file in self.files.iter().filter(|file| file.name.starts_with("model")) {
            for piece in &file.pieces {
                let full = piece.elements == (0..self.tensors[&piece.tensor].elements());
                if !full || file.name == SINGLE_FILE {
                    return None;
                }
                files.insert(piece.tensor.as_str(), file.name.as_str());
            }
        }
        Some(files)
    }
}
