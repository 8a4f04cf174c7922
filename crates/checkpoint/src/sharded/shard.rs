//! The shards of tensors: their names in files, whether they cover a tensor, and their values.

use super::STEP;
use super::manifest::{Manifest, ShardChecksums, TensorRecord};
use crate::checksum::{Checksum, Summing};
use crate::error::{Error, Result};
use crate::header::Header;
use crate::runs::{CHUNK, place, read_runs};
use fullshard_core::{Part, Run};
use safetensors::tensor::TensorInfo;
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

    /// The piece that a header lists under a name, if the manifest has its tensor.
    fn listed(
        key: &str,
        info: &TensorInfo,
        manifest: &Manifest,
    ) -> std::result::Result<Piece, String> {
        let (tensor, part) =
            Piece::parse(key).ok_or_else(|| format!("`{key}` is not the name of a shard"))?;
        let record = manifest.tensors.get(tensor);
        let record = record.ok_or_else(|| format!("`{tensor}` is not in the manifest"))?;
        let TensorRecord { dims, dtype, .. } = record;
        let shape = match &part {
            None => Some(dims.clone()),
            // Whether ranges of elements exceed the tensor is found with all of its shards.
            Some(part) => (!part.is_box() || part.fits(dims)).then(|| part.dims()),
        };
        if info.dtype != *dtype || Some(&info.shape) != shape.as_ref() {
            return Err(format!(
                "`{key}` is {} of dimensions {:?}, but `{tensor}` in the manifest {dtype} of \
                 {dims:?}",
                info.dtype, info.shape
            ));
        }
        let part = part.unwrap_or_else(|| (0..record.elements()).into());
        Ok(Piece { tensor: tensor.to_owned(), part })
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

/// Reads bytes of a file that is elsewhere.
pub(super) struct Fetch(pub Box<FetchBytes>);

type FetchBytes = dyn Fn(&Path, u64, &mut [u8]) -> Option<Result<()>> + Send + Sync;

impl std::fmt::Debug for Fetch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Fetch")
    }
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
    let file = Arc::new(file);
    let header = Header::read(&file.path, &file.file)?;
    let damaged = |reason: String| Error::Damaged { path: file.path.clone(), reason };
    check_header(&header, manifest, sums).map_err(damaged)?;
    let shard = |(key, &checksum): (String, &Checksum)| {
        let info = header.metadata.info(&key);
        let info = info.ok_or_else(|| format!("`{key}` has no place in it"))?;
        let Piece { tensor, part } = Piece::listed(&key, info, manifest)?;
        let span = part.span(&manifest.tensors[&tensor].dims);
        let offset = header.values() + info.data_offsets.0 as u64;
        let (file, checked) = (Arc::clone(&file), AtomicBool::new(false));
        Ok((tensor, Shard { part, span, file, offset, checksum, checked }))
    };
    let shards = header.metadata.offset_keys().into_iter().zip(&sums.values).map(shard);
    shards.collect::<std::result::Result<_, _>>().map_err(damaged)
}

/// Checks that a header is the one that was saved.
fn check_header(
    header: &Header,
    manifest: &Manifest,
    sums: &ShardChecksums,
) -> std::result::Result<(), String> {
    let step = header.metadata.metadata().as_ref().and_then(|metadata| metadata.get(STEP));
    let expected = manifest.progress.step.to_string();
    if let Some(step) = step.filter(|step| **step != expected) {
        return Err(format!("it is of step {step}, but the checkpoint of {expected}"));
    }
    if Checksum::of(&header.bytes) != sums.header {
        return Err("its header is not the one that was saved: the file is damaged, or another's"
            .to_owned());
    }
    if header.metadata.offset_keys().len() != sums.values.len() {
        return Err("its shards are not those of the manifest".to_owned());
    }
    Ok(())
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
        let mut near = shards[i + 1..].iter().take_while(|next| next.span.start < shard.span.end);
        near.any(|next| shard.part.overlaps(&next.part, &record.dims))
    };
    let inside = shards.iter().all(|shard| shard.part.fits(&record.dims));
    let all: usize = shards.iter().map(|shard| shard.part.elements()).sum();
    if inside && all == elements && !shards.iter().enumerate().any(overlaps) {
        return Ok(());
    }
    let reason = format!(
        "the shards of `{name}` do not cover its {elements} elements: they have gaps or overlap at \
         element {}",
        first_fault(record, shards)
    );
    Err(Error::Damaged { path: path.to_owned(), reason })
}

/// The first element that is in no shard or in several.
fn first_fault(record: &TensorRecord, shards: &[Shard]) -> usize {
    let runs = shards.iter().flat_map(|shard| shard.part.runs(&record.dims));
    let mut runs: Vec<_> = runs.map(|run| run.from..run.from + run.count).collect();
    runs.sort_unstable_by_key(|run| run.start);
    let mut next = 0;
    for run in runs {
        if run.start != next {
            return next.min(run.start);
        }
        next = run.end;
    }
    next.min(record.elements())
}

impl Shard {
    /// Reads what it has of a part of its tensor. The first time, all of it is read and checked.
    pub fn read(
        &self,
        name: &str,
        record: &TensorRecord,
        part: &Part,
        out: &mut [u8],
        fetch: Option<&Fetch>,
    ) -> Result<()> {
        let width = record.width();
        let mut runs = self.part.overlap(part, &record.dims).peekable();
        let Some(&first) = runs.peek() else { return Ok(()) };
        if self.checked.load(Ordering::Relaxed) {
            return read_runs(runs, width, out, |range, out| {
                self.read_at(range.start * width, out, fetch)
            });
        }
        let found = match first.count == self.part.elements() {
            true => {
                let out = place(out, first, width);
                self.read_at(0, out, fetch)?;
                Checksum::of(out)
            }
            false => self.read_summed(runs, width, out, fetch)?,
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
        fetch: Option<&Fetch>,
    ) -> Result<Checksum> {
        let elements = self.part.elements();
        let mut runs = runs.peekable();
        let mut sum = Summing::new();
        let step = CHUNK / width;
        let mut buffer = vec![0; elements.min(step) * width];
        for start in (0..elements).step_by(step) {
            let end = (start + step).min(elements);
            let chunk = &mut buffer[..(end - start) * width];
            self.read_at(start * width, chunk, fetch)?;
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

    fn read_at(&self, offset: usize, out: &mut [u8], fetch: Option<&Fetch>) -> Result<()> {
        let ShardFile { path, file } = self.file.as_ref();
        let offset = self.offset + offset as u64;
        if let Some(fetched) = fetch.and_then(|Fetch(fetch)| fetch(path, offset, out)) {
            return fetched;
        }
        let read = file.read_exact_at(out, offset);
        read.map_err(|source| Error::Read { path: path.clone(), source })
    }
}
