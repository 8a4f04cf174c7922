//! Reading a checkpoint: any part of any tensor, whatever mesh it was saved on.

use super::COMMITTED;
use super::manifest::{FileRecord, MANIFEST, Manifest};
use super::shard::{Fetch, Shard, ShardFile, check_cover, shards_in};
use crate::checksum::Checksum;
use crate::error::{Error, Result};
use crate::format::{Format, SavedTensor};
use fullshard_core::Part;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A complete checkpoint. Values are checked when they are first read.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    manifest: Manifest,
    tensors: BTreeMap<String, SavedTensor>,
    /// The shards of each tensor, in the order of their spans.
    shards: BTreeMap<String, Vec<Shard>>,
    fetch: Option<Fetch>,
}

impl Checkpoint {
    /// Opens a checkpoint, if it is complete: its marker, the manifest, the lengths and headers of
    /// all files of shards and all other files match, and the shards cover all tensors.
    pub fn open(path: impl AsRef<Path>) -> Result<Checkpoint> {
        let path = path.as_ref();
        let manifest = read_manifest(path)?;
        let mut shards: BTreeMap<String, Vec<Shard>> = BTreeMap::new();
        for (name, record) in &manifest.files {
            let file = open_file(path, name, record)?;
            let Some(sums) = &record.shards else {
                read_small_file(path, name, record)?;
                continue;
            };
            let file = ShardFile { path: path.join(name), file };
            for (tensor, shard) in shards_in(file, &manifest, sums)? {
                shards.entry(tensor).or_default().push(shard);
            }
        }
        for (name, record) in &manifest.tensors {
            let parts = shards.entry(name.clone()).or_default();
            parts.sort_by_key(|shard| (shard.span.start, shard.span.end));
            check_cover(&path.join(MANIFEST), name, record, parts)?;
        }
        let tensors = manifest.parameters().map(|(name, record)| {
            (name.clone(), SavedTensor { dims: record.dims.clone(), dtype: record.dtype })
        });
        let tensors = tensors.collect();
        Ok(Checkpoint { path: path.to_owned(), manifest, tensors, shards, fetch: None })
    }

    /// Reads the values of files that are elsewhere by a function of a file's path, an offset and
    /// the place for the bytes, which returns none for files that are here. It is called from any
    /// thread. Here such files have only their headers.
    pub fn fetching(
        self,
        fetch: impl Fn(&Path, u64, &mut [u8]) -> Option<Result<()>> + Send + Sync + 'static,
    ) -> Checkpoint {
        Checkpoint { fetch: Some(Fetch(Box::new(fetch))), ..self }
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
        self.read_part(name, &elements.into(), out)
    }

    /// Reads a part of a tensor, of the optimizer's too, into `out`.
    pub fn read_part(&self, name: &str, part: &Part, out: &mut [u8]) -> Result<()> {
        let (Some(record), Some(shards)) = (self.manifest.tensors.get(name), self.shards.get(name))
        else {
            return Err(Error::Missing { path: self.path.clone(), names: vec![name.to_owned()] });
        };
        if !part.fits(&record.dims) || out.len() != part.elements() * record.width() {
            return Err(Error::Range {
                path: self.path.clone(),
                name: name.to_owned(),
                part: part.clone(),
                dims: record.dims.clone(),
            });
        }
        let span = part.span(&record.dims);
        let before_end = shards.iter().take_while(|shard| shard.span.start < span.end);
        for shard in before_end.filter(|shard| span.start < shard.span.end) {
            shard.read(name, record, part, out, self.fetch.as_ref())?;
        }
        Ok(())
    }

    /// The number of shards of a tensor.
    pub fn shard_count(&self, name: &str) -> usize {
        self.shards.get(name).map_or(0, Vec::len)
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

    fn read_shard(&self, name: &str, shard: &Part, out: &mut [u8]) -> Result<()> {
        self.read_part(name, shard, out)
    }
}

/// Opens a path as a checkpoint, if it looks like one.
pub(crate) fn open(path: &Path) -> Result<Option<Box<dyn Format>>> {
    if !path.join(MANIFEST).is_file() {
        return Ok(None);
    }
    Ok(Some(Box::new(Checkpoint::open(path)?)))
}

impl Manifest {
    /// The manifest of a checkpoint, if it is complete. Its other files are not looked at.
    pub fn read(folder: &Path) -> Result<Manifest> {
        read_manifest(folder)
    }
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
