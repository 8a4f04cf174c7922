//! Atomic file writes: to a temporary file in the same folder, then synced and renamed.

use crate::error::{Error, Result};
use crate::folder::UNFINISHED;
use serde::Serialize;
use serde_json::ser::{PrettyFormatter, Serializer};
use std::fs::{FileType, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

const BUFFER: usize = 1 << 20;

/// A complete file that is not yet renamed. Dropping it removes the file.
pub(crate) struct Staged {
    file: NamedTempFile,
    path: PathBuf,
}

impl Staged {
    /// Writes the content of `path`, whose folder is created if missing.
    pub(crate) fn write(
        path: &Path,
        content: impl FnOnce(&mut dyn Write) -> Result<()>,
    ) -> Result<Staged> {
        check_place(path)?;
        let error = |source| write_error(path, source);
        let parent = parent(path);
        std::fs::create_dir_all(parent).map_err(error)?;
        let file = tempfile::Builder::new()
            .prefix(UNFINISHED)
            // The mode of any new file; temporary files are private by default.
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(parent)
            .map_err(error)?;
        let mut writer = BufWriter::with_capacity(BUFFER, file.as_file());
        content(&mut writer)?;
        writer.flush().map_err(error)?;
        drop(writer);
        file.as_file().sync_all().map_err(error)?;
        Ok(Staged { file, path: path.to_owned() })
    }

    /// Renames the file to its path, replacing an existing one.
    pub(crate) fn place(self) -> Result<PathBuf> {
        let Staged { file, path } = self;
        file.persist(&path).map_err(|error| write_error(&path, error.error))?;
        Ok(path)
    }
}

/// The folder of a path.
pub(crate) fn parent(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or_else(|| Path::new("."))
}

/// Writes a folder with another name and renames it, so that it is complete or not there.
pub(crate) fn write_folder<T>(path: &Path, content: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    check_output(path)?;
    let error = |source| write_error(path, source);
    std::fs::create_dir_all(parent(path)).map_err(error)?;
    let folder = tempfile::Builder::new()
        .prefix(UNFINISHED)
        .permissions(Permissions::from_mode(0o777))
        .tempdir_in(parent(path))
        .map_err(error)?;
    let written = content(folder.path())?;
    sync_folder(folder.path())?;
    std::fs::rename(folder.path(), path).map_err(error)?;
    let _ = folder.keep();
    sync_folder(parent(path))?;
    Ok(written)
}

/// Rejects an output folder that has something in it.
pub fn check_output(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    match std::fs::read_dir(path).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::NotEmpty { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(write_error(path, error)),
    }
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(folder: &Path) -> Result<()> {
    let synced = std::fs::File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|source| write_error(folder, source))
}

pub(crate) fn write_error(path: &Path, source: io::Error) -> Error {
    Error::Write { path: path.to_owned(), source }
}

/// Rejects a path that is not a regular file: a rename would replace a device, a pipe or a dangling
/// link by a file.
/// Every file is checked before it is written; long operations check before they start.
pub fn check_place(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => Ok(()),
        Ok(metadata) => {
            Err(Error::NotAFile { path: path.to_owned(), what: file_kind(metadata.file_type()) })
        }
        Err(_) if path.is_symlink() => {
            Err(Error::NotAFile { path: path.to_owned(), what: "a dangling link" })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(write_error(path, error)),
    }
}

fn file_kind(kind: FileType) -> &'static str {
    if kind.is_dir() {
        "a folder"
    } else if kind.is_fifo() {
        "a pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

/// Writes a file atomically: it is complete, or as it was before.
pub fn write_file(path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<()> {
    let path = path.as_ref();
    let write = |writer: &mut dyn Write| {
        writer.write_all(content.as_ref()).map_err(|source| write_error(path, source))
    };
    Staged::write(path, write)?.place().map(drop)
}

/// Writes a value as a JSON file, as Python's `json.dump` does with `indent` and sorted keys.
/// Non-finite numbers become null.
pub fn write_json(path: impl AsRef<Path>, value: &impl Serialize, indent: usize) -> Result<()> {
    let path = path.as_ref();
    let error = |source: serde_json::Error| write_error(path, source.into());
    let mut value = serde_json::to_value(value).map_err(error)?;
    value.sort_all_objects();
    let spaces = " ".repeat(indent);
    let mut text = Vec::new();
    let formatter = PrettyFormatter::with_indent(spaces.as_bytes());
    value.serialize(&mut Serializer::with_formatter(&mut text, formatter)).map_err(error)?;
    text.push(b'\n');
    write_file(path, text)
}
