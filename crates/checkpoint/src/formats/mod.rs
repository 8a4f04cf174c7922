//! The formats that can be opened, and which of them a path has.
//!
//! Another format is a file here and a line in [`FORMATS`].

mod index;
mod safetensors;
mod torch;
mod xla_fsdp;

use crate::error::{Error, Result};
use crate::format::Format;
use crate::sharded;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Opens weights at a path; `None` if they have another format.
type Opener = fn(&Path) -> Result<Option<Box<dyn Format>>>;

/// The formats in the order tried: a folder may have several.
const FORMATS: [Opener; 5] =
    [sharded::open, safetensors::open, xla_fsdp::open, torch::open, index::open];

/// Opens tensors on disk: a file, a folder, an index of shards, or the common start of the paths
/// of PyTorch/XLA FSDP files.
pub fn open(path: impl AsRef<Path>) -> Result<Box<dyn Format>> {
    let path = path.as_ref();
    for open in FORMATS {
        if let Some(format) = open(path)? {
            return Ok(format);
        }
    }
    match std::fs::metadata(path) {
        Ok(_) => Err(Error::NoWeights { path: path.to_owned() }),
        Err(source) => Err(Error::Read { path: path.to_owned(), source }),
    }
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(|extension| extension.to_str()).unwrap_or_default()
}

/// The first bytes of a file, to tell its format; fewer if it has no more or cannot be read.
fn first_bytes(path: &Path, count: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if path.is_file()
        && let Ok(file) = File::open(path)
    {
        // A file that cannot be read fails once it is opened, with a message.
        let _ = file.take(count).read_to_end(&mut bytes);
    }
    bytes
}
