//! The shards of tensors: their names in files, whether they cover a tensor, and their values.

use super::STEP;
use super::manifest::{Manifest, ShardChecksums, TensorRecord};
use crate::checksum::{Checksum, Summing};
use crate::error::{Error, Result};
use crate::header::Header;
use crate::runs::{CHUNK, place, read_runs};
use fullshard_core::{Part, Run};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A part of a tensor that is saved as one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The name of the tensor.
    pub tensor: String,
    /// Its elements.
    pub part: Part,
}

impl Piece {
    /// Whether it is all of its tensor.
    pub fn is_full(&self, tensor: &TensorRecord) -> bool {
        self.part == Part::from(0..tensor.elements())
    }

    /// Its name in a file, and the dimensions of its values there.
    pub(super) fn entry(&self, tensor: &TensorRecord) -> (String, Vec<usize>) {
        match self.is_full(tensor) {
            true => (self.tensor.clone(), tensor.dims.clone()),
            false => (format!("{}{}", self.tensor, self.part), self.part.dims()),
        }
    }

    /// The tensor and the part of a name in a file; no part if it is all of the tensor.
    fn parse(key: &str) -> Option<(&str, Option<Part>)> {
        if !key.ends_with(']') {
            return Some((key, None));
        }
        let (tensor, part) = key.split_at(key.rfind('[')?);
        Some((tensor, Some(Part::parse(part)?)))
    }
}

/// A file of shards.
#[derive(Debug)]
pub(super) struct ShardFile {
    pub path: PathBuf,
    pub file: File,
}

/// A part of a tensor in a file.
#[derive(Debug)]
pub(super) struct Shard {
    part: Part,
    /// The elements of the tensor from its first to its last.
    pub span: Range<usize>,
    file: Arc<ShardFile>,
    offset: u64,
    checksum: Checksum,
    /// Whether its values were found to match the checksum.
    checked: AtomicBool,
}

/// The shards of a file with the names of their tensors, as its header lists them.
pub(super) fn shards_in(
    file: ShardFile,
    manifest: &Manifest,
    sums: &ShardChecksums,
) -> Result<Vec<(String, Shard)>> {
    let damaged = |reason: String| Error::Damaged { path: file.path.clone(), reason };
    let header = Header::read(&file.path, &file.file)?;
    let step = header.metadata.metadata().as_ref().and_then(|metadata| metadata.get(STEP));
    let expected = manifest.progress.step.to_string();
    if let Some(step) = step.filter(|step| **step != expected) {
        return Err(damaged(format!("it is of step {step}, but the checkpoint of {expected}")));
    }
    if Checksum::of(&header.bytes) != sums.header {
        return Err(damaged(
            "its header is not the one that was saved: the file is damaged, or another's".into(),
        ));
    }
    let keys = header.metadata.offset_keys();
    if keys.len() != sums.values.len() {
        return Err(damaged("its shards are not those of the manifest".into()));
    }
    let mut places = Vec::with_capacity(keys.len());
    for key in &keys {
        let info = header.metadata.info(key);
        let info = info.ok_or_else(|| damaged(format!("`{key}` has no place in it")))?;
        let (tensor, part) = Piece::parse(key)
            .ok_or_else(|| damaged(format!("`{key}` is not the name of a shard")))?;
        let record = manifest.tensors.get(tensor);
        let record = record.ok_or_else(|| damaged(format!("`{tensor}` is not in the manifest")))?;
        let TensorRecord { dims, dtype, .. } = record;
        // Whether ranges of elements exceed the tensor is found with all of its shards.
        let fits = part.as_ref().is_none_or(|part| !part.is_box() || part.fits(dims));
        let shape = part.as_ref().filter(|_| fits).map_or_else(|| dims.clone(), Part::dims);
        if !fits || info.dtype != *dtype || info.shape != shape {
            return Err(damaged(format!(
                "`{key}` is {} of dimensions {:?}, but `{tensor}` in the manifest {dtype} of \
                 {dims:?}",
                info.dtype, info.shape
            )));
        }
        let part = part.unwrap_or_else(|| (0..record.elements()).into());
        places.push((tensor, part, header.values() + info.data_offsets.0 as u64));
    }
    let file = Arc::new(file);
    let shards = places.into_iter().zip(&sums.values).map(|((tensor, part, offset), &checksum)| {
        let span = part.span(&manifest.tensors[tensor].dims);
        let (file, checked) = (Arc::clone(&file), AtomicBool::new(false));
        (tensor.to_owned(), Shard { part, span, file, offset, checksum, checked })
    });
    Ok(shards.collect())
}

/// Checks that shards, in the order of their spans, cover a tensor exactly.
pub(super) fn check_cover(
    path: &Path,
    name: &str,
    record: &TensorRecord,
    shards: &[Shard],
) -> Result<()> {
    let elements = record.elements();
    let overlaps = |(i, shard): (usize, &Shard)| {
        let near = shards[i + 1..].iter().take_while(|next| next.span.start < shard.span.end);
        near.into_iter().any(|next| shard.part.overlap(&next.part, &record.dims).next().is_some())
    };
    let inside = shards.iter().all(|shard| shard.part.fits(&record.dims));
    let all: usize = shards.iter().map(|shard| shard.part.elements()).sum();
    if inside && all == elements && !shards.iter().enumerate().any(overlaps) {
        return Ok(());
    }
    let runs = shards.iter().flat_map(|shard| shard.part.runs(&record.dims));
    let mut runs: Vec<_> = runs.map(|run| (run.from, run.from + run.count)).collect();
    runs.sort_unstable();
    let next = runs.iter().try_fold(0, |next, &(start, end)| match start == next {
        true => Ok(end),
        false => Err(next.min(start)),
    });
    let at = next.unwrap_or_else(|at| at);
    let reason = format!(
        "the shards of `{name}` do not cover its {elements} elements: they have gaps or overlap at \
         element {at}"
    );
    Err(Error::Damaged { path: path.to_owned(), reason })
}

impl Shard {
    /// Reads what it has of a part of its tensor. The first time, all of it is read and checked.
    pub fn read(
        &self,
        name: &str,
        record: &TensorRecord,
        part: &Part,
        out: &mut [u8],
    ) -> Result<()> {
        let width = record.width();
        let mut runs = self.part.overlap(part, &record.dims).peekable();
        let Some(&first) = runs.peek() else { return Ok(()) };
        if self.checked.load(Ordering::Relaxed) {
            return read_runs(runs, width, out, |range, out| {
                self.read_at(range.start * width, out)
            });
        }
        let found = match first.count == self.part.elements() {
            true => {
                let out = place(out, first, width);
                self.read_at(0, out)?;
                Checksum::of(out)
            }
            false => self.read_summed(runs, width, out)?,
        };
        if found != self.checksum {
            let (path, part) = (self.file.path.clone(), &self.part);
            return Err(Error::Damaged {
                path,
                reason: format!(
                    "the values of `{name}` (elements {part}) have another checksum than when they \
                     were saved"
                ),
            });
        }
        self.checked.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Reads all of it once, copies runs of it, and returns its checksum.
    fn read_summed(
        &self,
        runs: impl Iterator<Item = Run>,
        width: usize,
        out: &mut [u8],
    ) -> Result<Checksum> {
        let elements = self.part.elements();
        let mut runs = runs.peekable();
        let mut sum = Summing::new();
        let step = CHUNK / width;
        let mut buffer = vec![0; elements.min(step) * width];
        for start in (0..elements).step_by(step) {
            let end = (start + step).min(elements);
            let chunk = &mut buffer[..(end - start) * width];
            self.read_at(start * width, chunk)?;
            sum.add(chunk);
            while let Some(run) = runs.peek_mut().filter(|run| run.from < end) {
                let count = run.count.min(end - run.from);
                let saved = &chunk[(run.from - start) * width..][..count * width];
                place(out, Run { count, ..*run }, width).copy_from_slice(saved);
                let rest = run.count - count;
                *run = Run { from: run.from + count, to: run.to + count, count: rest };
                if rest == 0 {
                    runs.next();
                }
            }
        }
        Ok(sum.finish())
    }

    fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        let ShardFile { path, file } = self.file.as_ref();
        let read = file.read_exact_at(out, self.offset + offset as u64);
        read.map_err(|source| Error::Read { path: path.clone(), source })
    }
}
