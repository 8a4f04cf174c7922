//! Writes the files of a checkpoint, several at a time.

use super::plan::{FilePlan, SavePlan};
use crate::error::Error;
use fullshard_checkpoint::sharded::Staging;
use fullshard_pjrt::{Array, Buffer, HostTensor, PinnedMemory};
use std::collections::{HashMap, VecDeque};
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError};

/// The most threads that write at the same time.
const WRITERS: usize = 4;

/// A file to write: its position in the plan, and its tiles by their positions.
pub(crate) struct FileJob<'a> {
    file: usize,
    tiles: HashMap<usize, Tile<'a>>,
}

/// A shard, on the host or still on its device.
#[derive(Clone)]
enum Tile<'a> {
    Copied(Arc<HostTensor>),
    /// In pinned memory, by its position there.
    Pinned(Arc<PinnedMemory>, usize),
    OnDevice(&'a Buffer),
}

/// The shards of a plan on their devices.
pub(crate) fn buffers<'a>(plan: &SavePlan, arrays: &[&'a Array]) -> Vec<&'a Buffer> {
    plan.tiles.iter().map(|tile| &arrays[tile.array].shards()[tile.shard]).collect()
}

/// Copies shards to the host.
pub(crate) fn copy(buffers: &[&Buffer]) -> Result<Vec<HostTensor>, Error> {
    let downloads = buffers.iter().map(|buffer| buffer.download());
    let downloads = downloads.collect::<Result<Vec<_>, _>>()?;
    Ok(downloads.into_iter().map(|download| download.wait()).collect::<Result<_, _>>()?)
}

impl<'a> FileJob<'a> {
    /// The files of a plan, from copies of all tiles. A copy is freed with the last file that
    /// needs it.
    pub fn copied(plan: &SavePlan, copies: Vec<HostTensor>) -> Vec<FileJob<'a>> {
        let copies: Vec<_> = copies.into_iter().map(|copy| Tile::Copied(Arc::new(copy))).collect();
        FileJob::with_tiles(plan, |tile| copies[tile].clone())
    }

    /// The files of a plan, from pinned memory with copies of all tiles.
    pub fn pinned(plan: &SavePlan, memory: &Arc<PinnedMemory>) -> Vec<FileJob<'a>> {
        FileJob::with_tiles(plan, |tile| Tile::Pinned(Arc::clone(memory), tile))
    }

    /// The files of a plan, from tiles that are read when they are written.
    pub fn on_devices(plan: &SavePlan, buffers: &[&'a Buffer]) -> Vec<FileJob<'a>> {
        FileJob::with_tiles(plan, |tile| Tile::OnDevice(buffers[tile]))
    }

    fn with_tiles(plan: &SavePlan, tile: impl Fn(usize) -> Tile<'a>) -> Vec<FileJob<'a>> {
        let job = |(file, planned): (usize, &FilePlan)| {
            let tiles = planned.sources.iter().map(|(index, _)| (*index, tile(*index)));
            FileJob { file, tiles: tiles.collect() }
        };
        plan.files.iter().enumerate().map(job).collect()
    }

    fn write(self, staging: &Staging, plan: &SavePlan) -> Result<(), Error> {
        let file = &plan.files[self.file];
        // Pieces of a tile follow each other.
        let mut last: Option<(usize, Bytes)> = None;
        staging.write_pieces(&file.name, &file.pieces, &plan.tensors, |piece, write| {
            let (index, held) = &file.sources[piece];
            let tile = match last.take().filter(|(last, _)| last == index) {
                Some((_, tile)) => tile,
                None => self.tiles[index].read().map_err(|error| {
                    let name = file.pieces[piece].tensor.clone();
                    fullshard_checkpoint::Error::Values { name, source: error.into() }
                })?,
            };
            let ty = &plan.tiles[*index].ty;
            let width = ty.dtype.size();
            for run in held.runs(&ty.dims) {
                write(&tile.get()[run.from * width..][..run.count * width])?;
            }
            last = Some((*index, tile));
            Ok(())
        })?;
        Ok(())
    }
}

/// The bytes of a tile on the host.
enum Bytes {
    Tensor(Arc<HostTensor>),
    Pinned(Arc<PinnedMemory>, usize),
}

impl Bytes {
    fn get(&self) -> &[u8] {
        match self {
            Bytes::Tensor(tensor) => tensor.bytes(),
            Bytes::Pinned(memory, index) => memory.bytes(*index),
        }
    }
}

impl Tile<'_> {
    fn read(&self) -> Result<Bytes, fullshard_pjrt::Error> {
        match self {
            Tile::Copied(copy) => Ok(Bytes::Tensor(Arc::clone(copy))),
            Tile::Pinned(memory, index) => Ok(Bytes::Pinned(Arc::clone(memory), *index)),
            Tile::OnDevice(buffer) => Ok(Bytes::Tensor(Arc::new(buffer.to_host()?))),
        }
    }
}

/// Writes files on as many threads as tiles fit into the memory.
pub(crate) fn write_files(
    staging: &Staging,
    plan: &SavePlan,
    files: Vec<FileJob<'_>>,
    memory: u64,
) -> Result<(), Error> {
    let largest = plan.tiles.iter().map(|tile| tile.ty.bytes() as u64).max().unwrap_or(0).max(1);
    let threads = (memory / largest).clamp(1, WRITERS.min(files.len().max(1)) as u64);
    let queue = Mutex::new(VecDeque::from(files));
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let work = || -> Result<(), Error> {
        while let Some(file) = next() {
            file.write(staging, plan)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut done = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic)));
        done.try_for_each(|done| done)
    })
}
