//! Shards with an index, `*.index.json`, as Hugging Face splits large models. The files may have
//! any format.

use super::extension;
use crate::error::{Error, Result};
use crate::format::{Format, SavedTensor};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Opens an index given by its path.
pub(super) fn open(path: &Path) -> Result<Option<Box<dyn Format>>> {
    if !path.is_file() || extension(path) != "json" {
        return Ok(None);
    }
    Ok(Some(Box::new(Sharded::open(path)?)))
}

/// Opens a file in a folder, or else an index.
pub(super) fn open_in(dir: &Path, file: &str, index: &str) -> Result<Option<Box<dyn Format>>> {
    let found = [file, index].map(|name| dir.join(name)).into_iter().find(|path| path.is_file());
    found.map(super::open).transpose()
}

/// Files with an index.
#[derive(Debug)]
struct Sharded {
    path: PathBuf,
    files: Vec<Box<dyn Format>>,
    /// The file that each tensor is in.
    places: BTreeMap<String, usize>,
    tensors: BTreeMap<String, SavedTensor>,
}

impl Sharded {
    fn open(index: &Path) -> Result<Sharded> {
        let mut sharded = Sharded {
            path: index.to_owned(),
            files: Vec::new(),
            places: BTreeMap::new(),
            tensors: BTreeMap::new(),
        };
        let mut opened = BTreeMap::new();
        for (name, file) in read_index(index)? {
            let at = match opened.get(&file) {
                Some(&at) => at,
                None => {
                    sharded.files.push(sharded.open_shard(&name, &file)?);
                    opened.insert(file.clone(), sharded.files.len() - 1);
                    sharded.files.len() - 1
                }
            };
            let Some(tensor) = sharded.files[at].tensors().get(&name) else {
                let reason = format!("`{name}` is not in {file}, where it is listed");
                return Err(sharded.damaged(reason));
            };
            sharded.tensors.insert(name.clone(), tensor.clone());
            sharded.places.insert(name, at);
        }
        Ok(sharded)
    }

    fn open_shard(&self, name: &str, file: &str) -> Result<Box<dyn Format>> {
        let is_name = Path::new(file).components().count() == 1 && file != "..";
        // An index in an index could list itself.
        if !is_name || extension(Path::new(file)) == "json" {
            let reason =
                format!("`{name}` is listed in {file}, which is not a file name of weights");
            return Err(self.damaged(reason));
        }
        let path = self.path.parent().unwrap_or_else(|| Path::new(".")).join(file);
        if !path.is_file() {
            return Err(self.damaged(format!("its file {file} is missing")));
        }
        super::open(path)
    }

    fn damaged(&self, reason: String) -> Error {
        Error::Damaged { path: self.path.clone(), reason }
    }
}

impl Format for Sharded {
    fn name(&self) -> &'static str {
        self.files.first().map_or("index", |file| file.name())
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn tensors(&self) -> &BTreeMap<String, SavedTensor> {
        &self.tensors
    }

    fn read(&self, name: &str, elements: Range<usize>, out: &mut [u8]) -> Result<()> {
        self.check_request(name, &elements.clone().into(), out)?;
        self.files[self.places[name]].read(name, elements, out)
    }
}

/// The file of each tensor.
fn read_index(path: &Path) -> Result<BTreeMap<String, String>> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let text =
        std::fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    let index: Index = serde_json::from_slice(&text).map_err(|error| Error::Damaged {
        path: path.to_owned(),
        reason: format!("it is not an index of weights ({error})"),
    })?;
    Ok(index.weight_map)
}
