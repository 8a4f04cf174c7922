//! What the commands on checkpoints open: a checkpoint of a run with all of its state, or weights
//! in any other format.

use crate::error::{Error, Result};
use crate::folder::list;
use crate::format::{Format, SavedTensor};
use crate::place::parent;
use crate::sharded::{COMMITTED, Checkpoint, MANIFEST};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// Tensors on disk, of a checkpoint or of a model.
#[derive(Debug)]
pub enum Opened {
    /// A checkpoint of a run.
    Checkpoint(Box<Checkpoint>),
    /// Weights in another format.
    Weights(Box<dyn Format>),
}

impl Opened {
    /// Opens a path of any format.
    pub fn open(path: impl AsRef<Path>) -> Result<Opened> {
        let path = path.as_ref();
        if is_checkpoint(path) {
            return Ok(Opened::Checkpoint(Box::new(Checkpoint::open(path)?)));
        }
        match crate::open(path) {
            Ok(format) => Ok(Opened::Weights(format)),
            Err(Error::NoWeights { path }) => match run_folder(&path)? {
                Some(error) => Err(error),
                None => Err(Error::NoWeights { path }),
            },
            Err(error) => Err(error),
        }
    }

    /// The weights.
    pub fn format(&self) -> &dyn Format {
        match self {
            Opened::Checkpoint(checkpoint) => checkpoint.as_ref(),
            Opened::Weights(format) => format.as_ref(),
        }
    }

    /// The weights alone.
    pub fn into_format(self) -> Box<dyn Format> {
        match self {
            Opened::Checkpoint(checkpoint) => checkpoint,
            Opened::Weights(format) => format,
        }
    }

    /// The checkpoint, if it is one.
    pub fn checkpoint(&self) -> Option<&Checkpoint> {
        match self {
            Opened::Checkpoint(checkpoint) => Some(checkpoint),
            Opened::Weights(_) => None,
        }
    }

    /// All tensors, with those of the optimizer if it is a checkpoint.
    pub fn tensors(&self) -> BTreeMap<String, SavedTensor> {
        let Some(checkpoint) = self.checkpoint() else { return self.format().tensors().clone() };
        let tensors = checkpoint.manifest().tensors.iter();
        tensors.map(|(name, it)| (name.clone(), SavedTensor::new(&it.dims, it.dtype))).collect()
    }

    /// Reads a range of the elements of any of the tensors.
    pub fn read(&self, name: &str, elements: Range<usize>, out: &mut [u8]) -> Result<()> {
        match self {
            Opened::Checkpoint(checkpoint) => checkpoint.read_elements(name, elements, out),
            Opened::Weights(format) => format.read(name, elements, out),
        }
    }

    /// The folder of the weights.
    pub fn folder(&self) -> &Path {
        let path = self.format().path();
        if path.is_dir() { path } else { parent(path) }
    }

    /// The content of a file beside the weights, if there is one of this name.
    pub fn read_file(&self, name: &str) -> Result<Option<Vec<u8>>> {
        if let Some(checkpoint) = self.checkpoint() {
            let has = checkpoint.manifest().files.contains_key(name);
            return has.then(|| checkpoint.read_file(name)).transpose();
        }
        let path = self.folder().join(name);
        match std::fs::read(&path) {
            Ok(content) => Ok(Some(content)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::Read { path, source }),
        }
    }
}

/// Opens a checkpoint of a run, and nothing else.
pub fn open_checkpoint(path: impl AsRef<Path>) -> Result<Checkpoint> {
    let path = path.as_ref();
    if is_checkpoint(path) {
        return Checkpoint::open(path);
    }
    std::fs::metadata(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    let error = run_folder(path)?;
    Err(error.unwrap_or_else(|| Error::NotACheckpoint { path: path.to_owned() }))
}

/// Whether a path has one of the files that only checkpoints have.
pub(crate) fn is_checkpoint(path: &Path) -> bool {
    [MANIFEST, COMMITTED].iter().any(|name| path.join(name).is_file())
}

/// The error that names the checkpoints of a folder, if it has some.
fn run_folder(path: &Path) -> Result<Option<Error>> {
    if !path.is_dir() {
        return Ok(None);
    }
    let mut listed = list(path)?;
    listed.sort_by_key(|listed| listed.step);
    let names = listed.iter().filter_map(|listed| listed.path.file_name());
    let names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    Ok((!names.is_empty()).then(|| Error::RunFolder { path: path.to_owned(), names }))
}
