//! Headers of safetensors files, checked against the length of the file.

use crate::error::{Error, Result};
use safetensors::tensor::{Metadata, TensorInfo};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Longer headers are rejected, as by `safetensors`.
pub(crate) const MAX_BYTES: usize = 100_000_000;

/// The header of a file, and where its values start.
#[derive(Debug)]
pub(crate) struct Header {
    pub metadata: Metadata,
    /// The bytes of the header with its length, as in the file.
    pub bytes: Vec<u8>,
}

impl Header {
    /// The offset of the values in the file.
    pub fn values(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Reads and checks the header of a file.
    pub fn read(path: &Path, file: &File) -> Result<Header> {
        let read = |source| Error::Read { path: path.to_owned(), source };
        let damaged = |reason: String| Error::Damaged { path: path.to_owned(), reason };
        let length = file.metadata().map_err(read)?.len();
        if length < 8 {
            return Err(damaged(format!("it is {length} bytes long, too short for a header")));
        }
        let mut count = [0; 8];
        file.read_exact_at(&mut count, 0).map_err(read)?;
        let text = u64::from_le_bytes(count);
        if text > (length - 8).min(MAX_BYTES as u64) {
            return Err(damaged(format!(
                "its header should have {text} bytes, but the file has {length}"
            )));
        }
        let mut bytes = vec![0; 8 + text as usize];
        file.read_exact_at(&mut bytes, 0).map_err(read)?;
        let metadata: Metadata = serde_json::from_slice(&bytes[8..])
            .map_err(|error| damaged(format!("its header cannot be read ({error})")))?;
        let expected = (bytes.len() as u64).saturating_add(metadata.data_len() as u64);
        if expected != length {
            return Err(damaged(format!("it is {length} bytes long, but should be {expected}")));
        }
        Ok(Header { metadata, bytes })
    }
}

/// A header of tensors in the order of their values, padded to align these.
pub(crate) fn encode(
    tensors: Vec<(String, TensorInfo)>,
    metadata: HashMap<String, String>,
) -> Result<Vec<u8>> {
    let too_large = |error: &dyn std::fmt::Display| Error::TooLarge { reason: error.to_string() };
    let metadata = Metadata::new(Some(metadata), tensors).map_err(|error| too_large(&error))?;
    let mut text = serde_json::to_vec(&metadata).map_err(|error| too_large(&error))?;
    text.resize(text.len().next_multiple_of(8), b' ');
    if text.len() > MAX_BYTES {
        return Err(too_large(&format!("a header of {} bytes", text.len())));
    }
    Ok([&(text.len() as u64).to_le_bytes()[..], &text].concat())
}
