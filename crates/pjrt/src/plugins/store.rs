//! The plugin cache: one folder per installed package, each with a manifest.
//!
//! Every change happens under a file lock and by renaming, so that readers, which
//! take no lock, never see a partial package.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::error::AtPath;
use super::{FileError, Kind, Package, PluginError, python};

const CACHE_VARIABLE: &str = "FULLSHARD_CACHE";
const STAGING_PREFIX: &str = ".staging-";
const LOCK: &str = ".lock";
pub(super) const MANIFEST: &str = "manifest.json";

/// The cache of installed plugins.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
    python: Option<PathBuf>,
    pub(super) quiet: bool,
}

/// A package installed in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// What it is.
    pub kind: Kind,
    /// The version of the package.
    pub version: String,
    /// The library.
    pub path: PathBuf,
    /// The size of all its files, in bytes.
    pub bytes: u64,
}

/// The unpacked files, recorded next to them.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) kind: Kind,
    pub(super) package: String,
    pub(super) version: String,
    /// SHA-256 of each wheel, by file name.
    pub(super) wheels: BTreeMap<String, String>,
    pub(super) library: PathBuf,
    /// Size of each unpacked file, by relative path.
    pub(super) files: BTreeMap<PathBuf, u64>,
}

impl Store {
    /// The user's cache: `$FULLSHARD_CACHE`, or `fullshard` in the system's
    /// cache folder.
    pub fn default_location() -> Result<Self, PluginError> {
        let named = env::var_os(CACHE_VARIABLE).filter(|value| !value.is_empty());
        let root = match named {
            Some(path) => path.into(),
            None => dirs::cache_dir().ok_or(PluginError::NoCacheFolder)?.join("fullshard"),
        };
        Ok(Self::at(root))
    }

    /// A cache under `root`; plugins go to the folder `plugins` there.
    pub fn at(root: impl AsRef<Path>) -> Self {
        let root = root.as_ref();
        // Pip and the loader use these paths from other working directories.
        let root = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
        Self { folder: root.join("plugins"), python: None, quiet: false }
    }

    /// Uses this Python interpreter in place of the active one.
    pub fn with_python(self, python: impl Into<PathBuf>) -> Self {
        Self { python: Some(python.into()), ..self }
    }

    /// Shows no progress.
    pub fn quiet(self) -> Self {
        Self { quiet: true, ..self }
    }

    /// The folder that holds the installed plugins.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn python(&self) -> Option<PathBuf> {
        self.python.clone().or_else(python::active)
    }

    /// The installed package of a kind, if it is intact and of the pinned
    /// version.
    pub fn installed(&self, kind: impl Into<Kind>) -> Option<Installed> {
        self.installed_package(Package::pinned(kind))
    }

    /// Like [`Store::installed`], for any package.
    pub fn installed_package(&self, package: &Package) -> Option<Installed> {
        let tree = self.tree(package);
        let manifest = Manifest::read(&tree)?;
        let intact = manifest.describes(package) && manifest.matches_files(&tree);
        intact.then(|| Installed {
            kind: package.kind,
            bytes: manifest.files.values().sum(),
            path: tree.join(manifest.library),
            version: manifest.version,
        })
    }

    /// Every installed package.
    pub fn list(&self) -> Vec<Installed> {
        let kinds = Kind::ALL.into_iter();
        kinds.filter_map(|kind| self.installed(kind)).collect()
    }

    /// Removes every version of a package, broken ones too. Returns whether there
    /// was anything to remove.
    pub fn remove(&self, kind: impl Into<Kind>) -> Result<bool, PluginError> {
        if !self.folder.exists() {
            return Ok(false);
        }
        let _lock = self.lock()?;
        self.sweep()?;
        let trees = self.entries(&format!("{}-", kind.into()))?;
        for tree in &trees {
            self.discard(tree)?;
        }
        Ok(!trees.is_empty())
    }

    pub(super) fn tree(&self, package: &Package) -> PathBuf {
        self.folder.join(package.folder_name())
    }

    /// Takes the exclusive lock of the cache, held until the result is dropped.
    pub(super) fn lock(&self) -> Result<File, FileError> {
        fs::create_dir_all(&self.folder).at(&self.folder)?;
        let path = self.folder.join(LOCK);
        let file =
            File::options().create(true).truncate(false).write(true).open(&path).at(&path)?;
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(error).at(&path),
            Err(TryLockError::WouldBlock) => {}
        }
        if !self.quiet {
            let folder = self.folder.display();
            let _ = writeln!(io::stderr(), "waiting for another process that changes {folder} …");
        }
        file.lock().at(&path)?;
        Ok(file)
    }

    /// A new folder inside the cache, so on the same file system, removed when
    /// dropped. Requires the lock.
    pub(super) fn staging(&self) -> Result<TempDir, FileError> {
        tempfile::Builder::new().prefix(STAGING_PREFIX).tempdir_in(&self.folder).at(&self.folder)
    }

    /// Removes leftovers of killed processes. Requires the lock.
    pub(super) fn sweep(&self) -> Result<(), FileError> {
        for leftover in self.entries(STAGING_PREFIX)? {
            fs::remove_dir_all(&leftover).at(&leftover)?;
        }
        Ok(())
    }

    /// Removes a tree atomically by renaming it, then deletes it.
    pub(super) fn discard(&self, tree: &Path) -> Result<(), FileError> {
        let staging = self.staging()?;
        match fs::rename(tree, staging.path().join("discarded")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            renamed => renamed.at(tree),
        }
    }

    fn entries(&self, prefix: &str) -> Result<Vec<PathBuf>, FileError> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder).at(&self.folder)? {
            let entry = entry.at(&self.folder)?;
            if entry.file_name().to_string_lossy().starts_with(prefix) {
                found.push(entry.path());
            }
        }
        Ok(found)
    }
}

impl Manifest {
    fn read(tree: &Path) -> Option<Self> {
        let text = fs::read(tree.join(MANIFEST)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    pub(super) fn write(&self, tree: &Path) -> Result<(), FileError> {
        let path = tree.join(MANIFEST);
        let text = serde_json::to_vec_pretty(self).map_err(io::Error::from).at(&path)?;
        let mut file = File::create(&path).at(&path)?;
        file.write_all(&text).at(&path)?;
        file.sync_all().at(&path)
    }

    fn describes(&self, package: &Package) -> bool {
        self.kind == package.kind
            && self.version == package.plugin.version
            && self.library == Path::new(package.library)
            && self.wheels == wheel_sums(package)
    }

    fn matches_files(&self, tree: &Path) -> bool {
        let has_size = |(path, size): (&PathBuf, &u64)| {
            fs::metadata(tree.join(path)).is_ok_and(|file| file.is_file() && file.len() == *size)
        };
        self.files.contains_key(&self.library) && self.files.iter().all(has_size)
    }
}

/// The checksum of each wheel of a package, by file name.
pub(super) fn wheel_sums(package: &Package) -> BTreeMap<String, String> {
    package.wheels().map(|wheel| (wheel.file.to_owned(), wheel.sha256.to_owned())).collect()
}
