//! torch's own files: `pytorch_model.bin`, `.pt`, `.pth`, one or shards with an index.

mod archive;
mod opcodes;
mod pickle;
mod view;

pub(super) use archive::{Archive, sizes};
pub(super) use pickle::{Pickle, Value};
pub(super) use view::View;

use super::{extension, first_bytes, index};
use crate::error::{Error, Result};
use crate::format::{Format, SavedTensor};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

const SINGLE_FILE: &str = "pytorch_model.bin";
const INDEX: &str = "pytorch_model.bin.index.json";

/// The first byte of a pickle.
const PICKLE_MAGIC: u8 = 0x80;

/// Keys under which training scripts keep the state dict of a model.
const STATE_DICTS: [&str; 3] = ["model", "state_dict", "model_state_dict"];

/// Opens torch's files, or those in a folder.
pub(super) fn open(path: &Path) -> Result<Option<Box<dyn Format>>> {
    if path.is_dir() {
        return index::open_in(path, SINGLE_FILE, INDEX);
    }
    let start = first_bytes(path, 4);
    let is_torch = start == archive::ZIP_MAGIC
        || start.first() == Some(&PICKLE_MAGIC)
        || matches!(extension(path), "bin" | "pt" | "pth");
    if !path.is_file() || !is_torch {
        return Ok(None);
    }
    // Before version 1.6 torch wrote a row of pickles, the first a magic number.
    if start.first() == Some(&PICKLE_MAGIC) {
        return Err(Error::Pickled {
            path: path.to_owned(),
            reason: "it has the format of torch before version 1.6".to_owned(),
        });
    }
    Ok(Some(Box::new(TorchFile::open(path)?)))
}

/// A state dict in a file of torch.
#[derive(Debug)]
struct TorchFile {
    archive: Archive,
    tensors: BTreeMap<String, SavedTensor>,
    views: BTreeMap<String, View>,
}

impl TorchFile {
    fn open(path: &Path) -> Result<TorchFile> {
        let archive = Archive::open(path)?;
        let pickled = archive.pickled()?;
        let pickle = archive.unpickle(&pickled)?;
        let (tensors, views) = tensors(&archive, &pickle, state_dict(&archive, &pickle)?)?;
        Ok(TorchFile { archive, tensors, views })
    }
}

/// The root, or the dict in it that has tensors.
fn state_dict<'a>(archive: &Archive, pickle: &Pickle<'a>) -> Result<Value<'a>> {
    let inner = STATE_DICTS.iter().filter_map(|key| pickle.get(pickle.root, key));
    for dict in std::iter::once(pickle.root).chain(inner) {
        for (_, value) in pickle.entries(dict).into_iter().flatten() {
            if archive.tensor(pickle, "", value).is_ok_and(|tensor| tensor.is_some()) {
                return Ok(dict);
            }
        }
    }
    // What stands where a tensor could be is the better message.
    tensors(archive, pickle, pickle.root)?;
    let found = pickle.describe(pickle.root);
    Err(archive.unreadable(format!("it has {found} and no state dict of tensors")))
}

/// The tensors of a state dict. Plain values among them are left out; anything that only code
/// could make sense of is refused.
pub(super) fn tensors<'a>(
    archive: &Archive,
    pickle: &Pickle<'a>,
    dict: Value<'a>,
) -> Result<(BTreeMap<String, SavedTensor>, BTreeMap<String, View>)> {
    let (mut tensors, mut views) = (BTreeMap::new(), BTreeMap::new());
    for (name, value) in pickle.entries(dict).into_iter().flatten() {
        let Value::Str(name) = name else {
            let found = pickle.describe(name);
            return Err(archive.unreadable(format!("its state dict has {found} as a name")));
        };
        if let Some((tensor, view)) = archive.tensor(pickle, name, value)? {
            tensors.insert(name.to_owned(), tensor);
            views.insert(name.to_owned(), view);
        } else if matches!(value, Value::Object(_) | Value::Global { .. } | Value::Persistent(_))
            && pickle.entries(value).is_none()
        {
            let found = pickle.describe(value);
            return Err(archive.unreadable(format!("`{name}` is {found}, not a tensor")));
        }
    }
    Ok((tensors, views))
}

impl Format for TorchFile {
    fn name(&self) -> &'static str {
        "torch"
    }

    fn path(&self) -> &Path {
        &self.archive.path
    }

    fn tensors(&self) -> &BTreeMap<String, SavedTensor> {
        &self.tensors
    }

    fn read(&self, name: &str, elements: Range<usize>, out: &mut [u8]) -> Result<()> {
        self.check_request(name, &elements.clone().into(), out)?;
        let read = self.views[name].read(&self.archive.file, elements, out);
        read.map_err(|source| Error::Read { path: self.path().to_owned(), source })
    }
}
