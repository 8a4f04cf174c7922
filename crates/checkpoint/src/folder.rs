//! The folder of a run: its checkpoints, what killed processes left, and the lock that keeps a
//! second job out.

use crate::error::{Error, Result};
use crate::place::write_error;
use crate::sharded::{COMMITTED, MANIFEST, Manifest, read_manifest};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The start of names of files and folders that are not complete.
pub(crate) const UNFINISHED: &str = ".unfinished-";

const REPLACED: &str = ".unfinished-replaced-";

/// The name of the file that a job locks.
pub const LOCK: &str = ".fullshard.lock";

const PREFIX: &str = "checkpoint-";

/// The name of the checkpoint of a step.
pub fn checkpoint_name(step: u64) -> String {
    format!("{PREFIX}{step}")
}

/// A checkpoint in a folder.
#[derive(Debug)]
pub struct Listed {
    /// Its folder.
    pub path: PathBuf,
    /// Its step, by its name.
    pub step: u64,
    /// Its manifest, or why it cannot be used.
    pub manifest: Result<Manifest>,
}

/// The checkpoints in a folder, those saved last first; those without a manifest at the end.
/// Shards are not read.
pub fn list(folder: &Path) -> Result<Vec<Listed>> {
    let mut listed: Vec<Listed> = checkpoints(folder)?
        .into_iter()
        .map(|(step, path)| Listed { manifest: read_manifest(&path), path, step })
        .collect();
    let saved_at = |listed: &Listed| listed.manifest.as_ref().map_or(0.0, |found| found.saved_at);
    listed.sort_by(|a, b| saved_at(b).total_cmp(&saved_at(a)).then_with(|| b.step.cmp(&a.step)));
    Ok(listed)
}

/// The folders that are called `checkpoint-{step}`.
fn checkpoints(folder: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let found = entries(folder)?.into_iter().filter_map(|(name, path)| {
        let step = name.strip_prefix(PREFIX)?.parse().ok()?;
        (checkpoint_name(step) == name && path.is_dir()).then_some((step, path))
    });
    Ok(found.collect())
}

/// The names and paths in a folder; none if it does not exist.
fn entries(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let read = |source| Error::Read { path: folder.to_owned(), source };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(read(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(read)?;
        if let Ok(name) = entry.file_name().into_string() {
            found.push((name, entry.path()));
        }
    }
    Ok(found)
}

/// Removes what killed processes left in a folder: unfinished files and checkpoints. The caller
/// holds the lock of the folder. Returns the number of those removed.
pub fn sweep(folder: &Path) -> Result<usize> {
    let mut swept = 0;
    for (name, path) in entries(folder)? {
        let replaced = name.strip_prefix(REPLACED).map(|step| format!("{PREFIX}{step}"));
        match replaced.map(|name| folder.join(name)) {
            Some(checkpoint) if read_manifest(&checkpoint).is_err() => {
                restore_replaced(&path, &checkpoint)?;
            }
            Some(_) => remove(&path)?,
            None if name.starts_with(UNFINISHED) => remove(&path)?,
            None => continue,
        }
        swept += 1;
    }
    for (_, path) in checkpoints(folder)? {
        // A folder of another program has no manifest.
        if path.join(MANIFEST).exists() && !path.join(COMMITTED).exists() {
            remove(&path)?;
            swept += 1;
        }
    }
    Ok(swept)
}

/// Removes a checkpoint that is not complete; one that it was to replace gets its name back.
pub(crate) fn restore_replaced(replaced: &Path, checkpoint: &Path) -> Result<()> {
    if checkpoint.exists() {
        remove(checkpoint)?;
    }
    match fs::rename(replaced, checkpoint) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(write_error(replaced, error)),
        _ => Ok(()),
    }
}

/// Removes a checkpoint; a kill midway leaves none under its name.
pub fn remove_checkpoint(path: &Path) -> Result<()> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    let doomed = path.with_file_name(format!("{UNFINISHED}removed-{}", name.unwrap_or_default()));
    fs::rename(path, &doomed).map_err(|source| write_error(path, source))?;
    remove(&doomed)
}

fn remove(path: &Path) -> Result<()> {
    let removed = match path.is_dir() {
        true => fs::remove_dir_all(path),
        false => fs::remove_file(path),
    };
    removed.map_err(|source| write_error(path, source))
}

/// The bytes that can still be written to the file system of a path.
pub fn free_bytes(path: &Path) -> Result<u64> {
    let existing = path.ancestors().find(|path| path.exists());
    let existing = existing.filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let stat = rustix::fs::statvfs(existing)
        .map_err(|errno| Error::Read { path: existing.to_owned(), source: errno.into() })?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// The lock of a job on its folder. The first process of a job holds it, until it ends in any way.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    /// The folders that it created, the innermost first.
    created: Vec<PathBuf>,
    _file: File,
}

impl Lock {
    /// Locks a folder, which is created; fails if another job has it.
    pub fn acquire(folder: &Path) -> Result<Lock> {
        let path = folder.join(LOCK);
        let error = |source| write_error(&path, source);
        let missing = folder.ancestors().take_while(|folder| !folder.exists());
        let mut created: Vec<_> = missing.map(Path::to_owned).collect();
        created.retain(|folder| !folder.as_os_str().is_empty());
        loop {
            fs::create_dir_all(folder).map_err(error)?;
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false);
            let mut file = match options.open(&path) {
                Ok(file) => file,
                // A job that ended meanwhile removed the folder.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(source) => return Err(error(source)),
            };
            match file.try_lock() {
                // Some network file systems have no locks.
                Ok(()) | Err(TryLockError::Error(_)) => {}
                Err(TryLockError::WouldBlock) => {
                    let mut holder = String::new();
                    let _ = file.read_to_string(&mut holder);
                    let (folder, holder) = (folder.to_owned(), holder.trim().to_owned());
                    return Err(Error::Locked { folder, holder });
                }
            }
            // A job that ended meanwhile may have removed the file that was locked.
            if !is_at(&file, &path) {
                continue;
            }
            let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
            let holder = format!("process {} on {host}\n", std::process::id());
            file.set_len(0).and_then(|()| file.write_all(holder.as_bytes())).map_err(error)?;
            return Ok(Lock { path, created, _file: file });
        }
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let same = |a: &fs::Metadata, b: &fs::Metadata| a.dev() == b.dev() && a.ino() == b.ino();
    matches!((file.metadata(), fs::metadata(path)), (Ok(a), Ok(b)) if same(&a, &b))
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        // Nothing is left of a run that wrote nothing.
        for folder in &self.created {
            let _ = fs::remove_dir(folder);
        }
    }
}
