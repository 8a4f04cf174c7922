//! Verifying installed libraries: a damaged one of the right size crashes whoever loads it.
//!
//! Hashing a library takes a second or two. So it is hashed once, in the background, and a record of
//! its size and time says that it was. A process marks the libraries that it uses and removes the
//! marks when it ends; a mark that remains is of a crash, and the library is hashed again before
//! it is loaded.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::exit;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::SystemTime;

use fullshard_core::cache::temporary_file;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use super::error::AtPath;
use super::install::sha256;
use super::store::{MANIFEST, Manifest};
use super::{Installed, Located, Origin, Package, Platform, PluginError};

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
    kind: Platform,
    path: PathBuf,
    /// The folder of its package.
    tree: PathBuf,
    /// Its SHA-256 at installation. Earlier versions stored none.
    installed_sum: Option<String>,
}

/// A library that was verified.
#[derive(Serialize, Deserialize)]
struct Record {
    sha256: String,
    bytes: u64,
    modified: SystemTime,
}

impl Record {
    fn new(file: &File, sha256: String) -> io::Result<Record> {
        let metadata = file.metadata()?;
        Ok(Record { sha256, bytes: metadata.len(), modified: metadata.modified()? })
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
    fn find(kind: Platform, path: &Path) -> Option<Library> {
        let tree = path.ancestors().find(|above| above.join(MANIFEST).is_file())?;
        let installed_sum = Manifest::read(tree)?.sha256;
        Some(Library { kind, path: path.to_owned(), tree: tree.to_owned(), installed_sum })
    }

    fn is_recorded(&self) -> bool {
        Record::read(&self.tree).is_some_and(|record| record.describes(&self.path))
    }

    /// Hashes the library, compares it with the sum of its installation or of its first use, and
    /// records it.
    fn check(&self) -> Result<(), PluginError> {
        let mut file = File::open(&self.path).at(&self.path)?;
        let found = sha256(&mut file, |_| {}).at(&self.path)?;
        let recorded = || Record::read(&self.tree).map(|record| record.sha256);
        match self.installed_sum.clone().or_else(recorded) {
            Some(expected) if expected != found => Err(PluginError::Damaged {
                kind: self.kind,
                path: self.path.clone(),
                expected,
                found,
                flag: self.install_flag(),
            }),
            _ => {
                let record = Record::new(&file, found).and_then(|record| record.write(&self.tree));
                self.tolerate(record);
                Ok(())
            }
        }
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
