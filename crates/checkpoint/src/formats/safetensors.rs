//! Hugging Face's safetensors: one file, or shards with an index. Only headers are read when opened.

use super::{extension, first_bytes, index};
use crate::error::{Error, Result};
use crate::export::{INDEX, SINGLE_FILE};
use crate::format::{Format, SavedTensor};
use crate::header::{Header, MAX_BYTES};
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Opens a safetensors file, or those in a folder.
pub(super) fn open(path: &Path) -> Result<Option<Box<dyn Format>>> {
    if path.is_dir() {
        return index::open_in(path, SINGLE_FILE, INDEX);
    }
    if !path.is_file() || extension(path) != "safetensors" && !has_header(path) {
        return Ok(None);
    }
    Ok(Some(Box::new(SafetensorsFile::open(path)?)))
}

/// Whether a file begins with the length of a header and a JSON object.
fn has_header(path: &Path) -> bool {
    let start = first_bytes(path, 9);
    let Some((length, rest)) = start.split_first_chunk() else { return false };
    u64::from_le_bytes(*length) <= MAX_BYTES as u64 && rest == b"{"
}

/// A file with a valid header.
#[derive(Debug)]
struct SafetensorsFile {
    path: PathBuf,
    file: File,
    tensors: BTreeMap<String, SavedTensor>,
    /// Where the values of each tensor start.
    starts: BTreeMap<String, u64>,
}

impl SafetensorsFile {
    fn open(path: &Path) -> Result<SafetensorsFile> {
        let file =
            File::open(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
        let header = Header::read(path, &file)?;
        let (mut tensors, mut starts) = (BTreeMap::new(), BTreeMap::new());
        for (name, info) in header.metadata.tensors() {
            starts.insert(name.clone(), header.values() + info.data_offsets.0 as u64);
            tensors.insert(name, SavedTensor { dims: info.shape.clone(), dtype: info.dtype });
        }
        Ok(SafetensorsFile { path: path.to_owned(), file, tensors, starts })
    }
}

impl Format for SafetensorsFile {
    fn name(&self) -> &'static str {
        "safetensors"
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn tensors(&self) -> &BTreeMap<String, SavedTensor> {
        &self.tensors
    }

    fn read(&self, name: &str, elements: Range<usize>, out: &mut [u8]) -> Result<()> {
        self.check_request(name, &elements.clone().into(), out)?;
        let from = elements.start * self.tensors[name].dtype.bitsize() / 8;
        self.file
            .read_exact_at(out, self.starts[name] + from as u64)
            .map_err(|source| Error::Read { path: self.path.clone(), source })
    }
}
