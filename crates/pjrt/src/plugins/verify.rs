//! Verifying installed libraries: a damaged one of the right size crashes whoever loads it.
//!
//! The checksum of a library is in its wheel, and unpacked beside it. Hashing a library takes up to
//! two seconds, so it is hashed once, in the background, and a record of its size and time says that
//! it was. A process marks the libraries that it uses, and removes the marks when it ends. A mark
//! that remains is of a crash, after which the library is hashed before it is loaded.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::exit;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::SystemTime;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use fullshard_core::cache::temporary_file;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use super::error::AtPath;
use super::install::{hex, sha256};
use super::store::MANIFEST;
use super::{Installed, Kind, Located, Origin, Package, PluginError};

const RECORD: &str = "verified.json";
const MARK_PREFIX: &str = ".in-use-";

/// The libraries that this process uses.
static USED: Mutex<Used> = Mutex::new(Used { libraries: Vec::new(), marks: None });

struct Used {
    libraries: Vec<PathBuf>,
    /// A locked file beside each library, removed when dropped; none without [`watch_crashes`].
    marks: Option<Vec<NamedTempFile>>,
}

/// Marks the plugins that this process loads, until [`clean_end`]: if that is never called, the next
/// process verifies them before it loads them.
pub fn watch_crashes() {
    used().marks.get_or_insert_default();
}

/// Removes the marks of [`watch_crashes`].
pub fn clean_end() {
    used().marks = None;
}

fn used() -> MutexGuard<'static, Used> {
    USED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Located {
    /// Verifies a library from the cache, on its first use in this process. That takes no time,
    /// except after a crash: a new library is hashed in the background, and a damaged one ends the
    /// process.
    pub fn verify(&self) -> Result<(), PluginError> {
        let library = match self.origin {
            Origin::Cache => Library::find(self.kind, &self.path),
            Origin::Flag | Origin::Environment(_) | Origin::Python => None,
        };
        let is_known = |library: &Library| used().libraries.contains(&library.path);
        let Some(library) = library.filter(|library| !is_known(library)) else { return Ok(()) };
        let crashes = library.crashes();
        if !crashes.is_empty() {
            tracing::info!("verifying {}, which was in use in a crash", self.path.display());
            library.check()?;
            crashes.iter().for_each(|mark| drop(fs::remove_file(mark)));
        }
        library.mark();
        used().libraries.push(library.path.clone());
        if !library.is_recorded() {
            // Taken now, since standard error is silenced while a plugin is loaded.
            let stderr = io::stderr().as_fd().try_clone_to_owned().map(File::from);
            thread::spawn(move || library.check_or_exit(stderr));
        }
        Ok(())
    }
}

impl Installed {
    /// Whether its library is undamaged. Hashes it, unless it was verified and no crash followed.
    pub(super) fn is_sound(&self) -> bool {
        let library = Library::find(self.kind, &self.path);
        library.is_none_or(|library| {
            (library.is_recorded() && library.crashes().is_empty()) || library.check().is_ok()
        })
    }
}

/// An installed library.
struct Library {
    kind: Kind,
    path: PathBuf,
    /// The folder of its package.
    tree: PathBuf,
    /// Its SHA-256 in the wheel.
    sum: String,
}

/// A library that was verified.
#[derive(Serialize, Deserialize)]
struct Record {
    bytes: u64,
    modified: SystemTime,
}

impl Record {
    fn new(file: &File) -> io::Result<Record> {
        let metadata = file.metadata()?;
        Ok(Record { bytes: metadata.len(), modified: metadata.modified()? })
    }

    fn read(tree: &Path) -> Option<Record> {
        serde_json::from_slice(&fs::read(tree.join(RECORD)).ok()?).ok()
    }

    fn write(&self, tree: &Path) -> io::Result<()> {
        let file = temporary_file(tree)?;
        serde_json::to_writer(&file, self)?;
        file.persist(tree.join(RECORD)).map_err(|error| error.error)?;
        Ok(())
    }

    fn describes(&self, path: &Path) -> bool {
        fs::metadata(path).is_ok_and(|file| {
            file.len() == self.bytes && file.modified().is_ok_and(|time| time == self.modified)
        })
    }
}

impl Library {
    /// The library at a path; none if its wheel has no checksum of it.
    fn find(kind: Kind, path: &Path) -> Option<Library> {
        let tree = path.ancestors().find(|above| above.join(MANIFEST).is_file())?;
        let sum = wheel_sum(tree, path.strip_prefix(tree).ok()?)?;
        Some(Library { kind, path: path.to_owned(), tree: tree.to_owned(), sum })
    }

    fn is_recorded(&self) -> bool {
        Record::read(&self.tree).is_some_and(|record| record.describes(&self.path))
    }

    /// Hashes the library, and records it if it is the one of the wheel.
    fn check(&self) -> Result<(), PluginError> {
        let mut file = File::open(&self.path).at(&self.path)?;
        let found = sha256(&mut file, |_| {}).at(&self.path)?;
        if found != self.sum {
            return Err(PluginError::Damaged {
                kind: self.kind,
                path: self.path.clone(),
                expected: self.sum.clone(),
                found,
                flag: self.install_flag(),
            });
        }
        self.tolerate(Record::new(&file).and_then(|record| record.write(&self.tree)));
        Ok(())
    }

    /// Ends the process if the library is damaged: it is about to crash, or to compute nonsense.
    fn check_or_exit(&self, stderr: io::Result<File>) {
        match self.check() {
            Err(error @ PluginError::Damaged { .. }) => {
                let _ = stderr.and_then(|mut stderr| writeln!(stderr, "error: {error}"));
                exit(1);
            }
            Err(error) => tracing::debug!("{error}"),
            Ok(()) => {}
        }
    }

    /// The marks of processes that ended without removing them: those of running ones are locked.
    fn crashes(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.tree).into_iter().flatten().flatten();
        let marks =
            entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(MARK_PREFIX));
        let is_free = |path: &PathBuf| File::open(path).is_ok_and(|file| file.try_lock().is_ok());
        marks.map(|entry| entry.path()).filter(is_free).collect()
    }

    /// Marks the library as in use, if crashes are watched.
    fn mark(&self) {
        if let Some(marks) = &mut used().marks {
            let mark = tempfile::Builder::new().prefix(MARK_PREFIX).tempfile_in(&self.tree);
            let locked = mark.and_then(|mark| {
                mark.as_file().lock()?;
                marks.push(mark);
                Ok(())
            });
            self.tolerate(locked);
        }
    }

    /// The flag with which its package is installed.
    fn install_flag(&self) -> &'static str {
        let is = |package: &Package| self.tree.ends_with(package.folder_name());
        let only_compiles = !is(Package::pinned(self.kind)) && is(Package::compiler(self.kind));
        if only_compiles { " --compiler" } else { "" }
    }

    /// A plugin in a folder that cannot be written is used all the same.
    fn tolerate(&self, result: io::Result<()>) {
        if let Err(error) = result {
            tracing::debug!("cannot write to {}: {error}", self.tree.display());
        }
    }
}

/// The SHA-256 of a file in the RECORD of its wheel, whose lines are `path,sha256=sum,size`.
fn wheel_sum(tree: &Path, file: &Path) -> Option<String> {
    let start = format!("{},sha256=", file.display());
    let records = fs::read_dir(tree).ok()?.flatten().map(|entry| entry.path().join("RECORD"));
    let texts = records.filter_map(|record| fs::read_to_string(record).ok());
    let sum = texts.filter_map(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix(&start))?;
        BASE64_URL_SAFE_NO_PAD.decode(line.split(',').next()?).ok()
    });
    sum.map(|sum| hex(&sum)).next()
}
