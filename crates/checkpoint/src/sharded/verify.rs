//! Verifying all of a checkpoint.

use super::COMMITTED;
use super::manifest::FileRecord;
use super::read::{Checkpoint, read_manifest};
use crate::checksum::Summing;
use crate::error::{Error, Result};
use serde::Serialize;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A fault of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file or folder.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

/// Reads every byte of a checkpoint and returns all faults. `progress` is called with the number
/// of bytes read since the last call. It is an error if there is no manifest to compare with.
pub fn verify(folder: &Path, progress: &mut dyn FnMut(u64)) -> Result<Vec<Problem>> {
    let manifest = read_manifest(folder)?;
    let mut problems = Vec::new();
    for (name, record) in &manifest.files {
        let path = folder.join(name);
        if let Some(reason) = fault(&path, record, progress) {
            problems.push(Problem { path, reason });
        }
    }
    if problems.is_empty()
        && let Err(error) = Checkpoint::open(folder)
    {
        problems.push(Problem::new(folder, &error));
    }
    Ok(problems)
}

impl Problem {
    /// The fault that an error of a checkpoint names.
    pub fn new(folder: &Path, error: &Error) -> Problem {
        let (path, reason) = match error {
            Error::Damaged { path, reason } => (path.as_path(), reason.clone()),
            Error::Read { path, source } if source.kind() == std::io::ErrorKind::NotFound => {
                (path.as_path(), "it is missing".to_owned())
            }
            Error::Read { path, source } => {
                (path.as_path(), format!("it cannot be read: {source}"))
            }
            Error::Uncommitted { path } => {
                let reason = format!("it has no file {COMMITTED}: it was not committed");
                (path.as_path(), reason)
            }
            error => (folder, error.to_string()),
        };
        Problem { path: path.to_owned(), reason }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        write!(f, "{name}: {}", self.reason)
    }
}

/// What is wrong with a file, if anything.
fn fault(path: &Path, record: &FileRecord, progress: &mut dyn FnMut(u64)) -> Option<String> {
    let mut sum = Summing::new();
    let mut read = || -> std::io::Result<u64> {
        let mut file = File::open(path)?;
        let (mut buffer, mut length) = (vec![0; 4 << 20], 0);
        loop {
            let count = file.read(&mut buffer)?;
            if count == 0 {
                return Ok(length);
            }
            sum.add(&buffer[..count]);
            length += count as u64;
            progress(count as u64);
        }
    };
    let found = match read() {
        Ok(length) if length != record.bytes => {
            format!("it is {length} bytes long, but should be {}", record.bytes)
        }
        Ok(_) if sum.finish() != record.checksum => {
            "its checksum is not that of the manifest".to_owned()
        }
        Ok(_) => return None,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => "it is missing".to_owned(),
        Err(error) => format!("it cannot be read: {error}"),
    };
    Some(found)
}
