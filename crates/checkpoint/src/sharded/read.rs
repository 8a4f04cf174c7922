//! Reading a checkpoint: any range of any tensor, whatever mesh it was saved on.

use super::manifest::{FileRecord, MANIFEST, Manifest, ShardChecksums, TensorRecord};
use super::write::Piece;
use super::{COMMITTED, STEP};
use crate::checksum::{Checksum, Summing};
use crate::error::{Error, Result};
use crate::format::{Format, SavedTensor};
use crate::header::Header;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// The bytes that are checked at once.
const CHUNK: usize = 8 << 20;

/// A complete checkpoint. Values are checked when they are first read.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    manifest: Manifest,
    tensors: BTreeMap<String, SavedTensor>,
    files: Vec<(PathBuf, File)>,
    /// The shards of each tensor, in the order of their elements.
    shards: BTreeMap<String, Vec<Shard>>,
}

/// A part of a tensor in a file.
#[derive(Debug)]
struct Shard {
    elements: Range<usize>,
    file: usize,
    offset: u64,
    checksum: Checksum,
    /// Whether its values were found to match the checksum.
    checked: AtomicBool,
}

impl Checkpoint {
    /// Opens a checkpoint, if it is complete: its marker, the manifest, the lengths and headers of
    /// all files of shards and all other files match, and the shards cover all tensors.
    pub fn open(path: impl AsRef<Path>) -> Result<Checkpoint> {
        let path = path.as_ref();
        let manifest = read_manifest(path)?;
        let mut files = Vec::new();
        let mut shards: BTreeMap<String, Vec<Shard>> = BTreeMap::new();
        for (name, record) in &manifest.files {
            let file = open_file(path, name, record)?;
            let Some(sums) = &record.shards else {
                read_small_file(path, name, record)?;
                continue;
            };
            let path = path.join(name);
            add_shards(&manifest, (&path, &file), sums, files.len(), &mut shards)?;
            files.push((path, file));
        }
        for (name, record) in &manifest.tensors {
            let parts = shards.entry(name.clone()).or_default();
            parts.sort_by_key(|shard| (shard.elements.start, shard.elements.end));
            check_cover(&path.join(MANIFEST), name, record, parts)?;
        }
        let tensors = manifest.parameters().map(|(name, record)| {
            (name.clone(), SavedTensor { dims: record.dims.clone(), dtype: record.dtype })
        });
        let tensors = tensors.collect();
        Ok(Checkpoint { path: path.to_owned(), manifest, tensors, files, shards })
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.path
    }

    /// Reads another file of the checkpoint, such as a config, and checks it.
    pub fn read_file(&self, name: &str) -> Result<Vec<u8>> {
        let missing =
            || Error::Damaged { path: self.path.clone(), reason: format!("it has no file {name}") };
        let record = self.manifest.files.get(name).ok_or_else(missing)?;
        read_small_file(&self.path, name, record)
    }

    /// Reads a range of the elements of a tensor, of the optimizer's too, into `out`.
    pub fn read_elements(&self, name: &str, elements: Range<usize>, out: &mut [u8]) -> Result<()> {
        let (Some(record), Some(shards)) = (self.manifest.tensors.get(name), self.shards.get(name))
        else {
            return Err(Error::Missing { path: self.path.clone(), names: vec![name.to_owned()] });
        };
        let (width, expected) = (record.width(), elements.len());
        if out.len() != expected * width || elements.end > record.elements() {
            let found = out.len() / width;
            return Err(Error::Count { name: name.to_owned(), expected, found });
        }
        let first = shards.partition_point(|shard| shard.elements.end <= elements.start);
        for shard in shards[first..].iter().take_while(|s| s.elements.start < elements.end) {
            let start = shard.elements.start.max(elements.start);
            let end = shard.elements.end.min(elements.end);
            let place = (start - elements.start) * width..(end - elements.start) * width;
            self.read_shard(name, shard, start..end, width, &mut out[place])?;
        }
        Ok(())
    }

    /// The number of shards of a tensor.
    pub fn shard_count(&self, name: &str) -> usize {
        self.shards.get(name).map_or(0, Vec::len)
    }

    /// Reads a part of a shard. The first time, all of it is read and checked.
    fn read_shard(
        &self,
        name: &str,
        shard: &Shard,
        part: Range<usize>,
        width: usize,
        out: &mut [u8],
    ) -> Result<()> {
        let (path, file) = &self.files[shard.file];
        let read = |out: &mut [u8], offset| {
            file.read_exact_at(out, offset)
                .map_err(|source| Error::Read { path: path.clone(), source })
        };
        let skipped = (part.start - shard.elements.start) * width;
        read(out, shard.offset + skipped as u64)?;
        if shard.checked.load(Ordering::Relaxed) {
            return Ok(());
        }
        let found = if part == shard.elements {
            Checksum::of(out)
        } else {
            let mut sum = Summing::new();
            let bytes = shard.elements.len() * width;
            let mut buffer = vec![0; bytes.min(CHUNK)];
            for start in (0..bytes).step_by(CHUNK) {
                let chunk = &mut buffer[..CHUNK.min(bytes - start)];
                read(chunk, shard.offset + start as u64)?;
                sum.add(chunk);
            }
            sum.finish()
        };
        if found != shard.checksum {
            let range = &shard.elements;
            return Err(Error::Damaged {
                path: path.clone(),
                reason: format!(
                    "the values of `{name}` (elements {} to {}) have another checksum than when \
                     they were saved",
                    range.start, range.end
                ),
            });
        }
        shard.checked.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// The parameters; the optimizer's state is no weights.
impl Format for Checkpoint {
    fn name(&self) -> &'static str {
        "fullshard checkpoint"
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn tensors(&self) -> &BTreeMap<String, SavedTensor> {
        &self.tensors
    }

    fn read(&self, name: &str, elements: Range<usize>, out: &mut [u8]) -> Result<()> {
        self.read_elements(name, elements, out)
    }
}

/// Opens a path as a checkpoint, if it looks like one.
pub(crate) fn open(path: &Path) -> Result<Option<Box<dyn Format>>> {
    if !path.join(MANIFEST).is_file() {
        return Ok(None);
    }
    Ok(Some(Box::new(Checkpoint::open(path)?)))
}

/// The manifest of a folder with a marker that matches it.
pub(crate) fn read_manifest(folder: &Path) -> Result<Manifest> {
    let read = |path: &Path| {
        std::fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })
    };
    let marker = folder.join(COMMITTED);
    if !folder.is_dir() || !marker.exists() {
        return Err(Error::Uncommitted { path: folder.to_owned() });
    }
    let text = String::from_utf8_lossy(&read(&marker)?).into_owned();
    let sum = text.strip_suffix('\n').ok_or("it has no line".to_owned());
    let expected: Checksum = sum
        .and_then(str::parse)
        .map_err(|reason| Error::Damaged { path: marker.clone(), reason })?;
    let path = folder.join(MANIFEST);
    let bytes = read(&path)?;
    if Checksum::of(&bytes) != expected {
        let reason = format!("its checksum is not that of {COMMITTED}");
        return Err(Error::Damaged { path, reason });
    }
    Manifest::parse(&path, &bytes)
}

fn open_file(folder: &Path, name: &str, record: &FileRecord) -> Result<File> {
    let path = folder.join(name);
    if Path::new(name).components().count() != 1 {
        let reason = format!("`{name}` is not a file name");
        return Err(Error::Damaged { path: folder.join(MANIFEST), reason });
    }
    let opened = File::open(&path).and_then(|file| Ok((file.metadata()?.len(), file)));
    match opened {
        Ok((length, file)) if length == record.bytes => Ok(file),
        Ok((length, _)) => {
            let reason = format!("it is {length} bytes long, but should be {}", record.bytes);
            Err(Error::Damaged { path, reason })
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let reason = format!("its file {name} is missing");
            Err(Error::Damaged { path: folder.to_owned(), reason })
        }
        Err(source) => Err(Error::Read { path, source }),
    }
}

/// Reads a file that is not of shards, and checks it.
fn read_small_file(folder: &Path, name: &str, record: &FileRecord) -> Result<Vec<u8>> {
    let path = folder.join(name);
    let content =
        std::fs::read(&path).map_err(|source| Error::Read { path: path.clone(), source })?;
    if Checksum::of(&content) != record.checksum {
        let reason = "its checksum is not that of the manifest".to_owned();
        return Err(Error::Damaged { path, reason });
    }
    Ok(content)
}

/// Adds the shards of a file, as its header lists them.
fn add_shards(
    manifest: &Manifest,
    (path, file): (&Path, &File),
    sums: &ShardChecksums,
    index: usize,
    shards: &mut BTreeMap<String, Vec<Shard>>,
) -> Result<()> {
    let damaged = |reason: String| Error::Damaged { path: path.to_owned(), reason };
    let header = Header::read(path, file)?;
    let step = header.metadata.metadata().as_ref().and_then(|metadata| metadata.get(STEP));
    let expected = manifest.progress.step.to_string();
    if step.is_some_and(|step| *step != expected) {
        let step = step.map_or("", String::as_str);
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
    for (key, &checksum) in keys.iter().zip(&sums.values) {
        let info = header.metadata.info(key);
        let info = info.ok_or_else(|| damaged(format!("`{key}` has no place in it")))?;
        let elements = info.shape.iter().product();
        let piece = Piece::parse(key, elements)
            .ok_or_else(|| damaged(format!("`{key}` is not the name of a shard")))?;
        let record = manifest.tensors.get(&piece.tensor);
        let record =
            record.ok_or_else(|| damaged(format!("`{}` is not in the manifest", piece.tensor)))?;
        let is_full = *key == piece.tensor;
        if info.dtype != record.dtype || (is_full && info.shape != record.dims) {
            let TensorRecord { dims, dtype, .. } = record;
            return Err(damaged(format!(
                "`{key}` is {} of dimensions {:?}, but `{}` in the manifest {dtype} of {dims:?}",
                info.dtype, info.shape, piece.tensor
            )));
        }
        shards.entry(piece.tensor).or_default().push(Shard {
            elements: piece.elements,
            file: index,
            offset: header.values() + info.data_offsets.0 as u64,
            checksum,
            checked: AtomicBool::new(false),
        });
    }
    Ok(())
}

/// Checks that shards cover a tensor exactly.
fn check_cover(path: &Path, name: &str, record: &TensorRecord, shards: &[Shard]) -> Result<()> {
    let mut next = 0;
    for shard in shards {
        if shard.elements.start != next {
            break;
        }
        next = shard.elements.end;
    }
    let (elements, all) = (record.elements(), shards.iter().map(|shard| shard.elements.len()));
    if next == elements && all.sum::<usize>() == elements {
        return Ok(());
    }
    let reason = format!(
        "the shards of `{name}` do not cover its {elements} elements: they have gaps or overlap at \
         element {next}"
    );
    Err(Error::Damaged { path: path.to_owned(), reason })
}
