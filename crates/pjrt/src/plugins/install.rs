//! Installing a package: download, verify, unpack into a staging folder inside the
//! cache, then one atomic rename. A failure before the rename removes the staging
//! folder and leaves nothing behind.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use sha2::{Digest, Sha256};
use zip::ZipArchive;
use zip::read::ZipFile;

use super::error::AtPath;
use super::progress::Progress;
use super::store::{Manifest, wheel_sums};
use super::{InstallError, Installed, Kind, Package, PluginError, Store, Wheel, python};

const WATCH_INTERVAL: Duration = Duration::from_millis(100);
const CHUNK: usize = 1 << 18;

/// Where the wheels come from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Downloaded by pip, from the index that the user's pip is configured for.
    Pip,
    /// Already in this folder.
    Folder(&'a Path),
}

impl Store {
    /// Downloads and installs the pinned package of a kind, unless already installed and undamaged.
    pub fn install(&self, kind: impl Into<Kind>) -> Result<Installed, PluginError> {
        self.install_package(Package::pinned(kind), Source::Pip)
    }

    /// Like [`Store::install`], from wheels already in `folder`, which are
    /// verified too.
    pub fn install_from(
        &self,
        kind: impl Into<Kind>,
        folder: &Path,
    ) -> Result<Installed, PluginError> {
        self.install_package(Package::pinned(kind), Source::Folder(folder))
    }

    /// Downloads and installs the compiler for a kind of device, unless already installed; from
    /// wheels in `folder` if given.
    pub fn install_compiler(
        &self,
        kind: impl Into<Kind>,
        folder: Option<&Path>,
    ) -> Result<Installed, PluginError> {
        let source = folder.map_or(Source::Pip, Source::Folder);
        self.install_package(Package::compiler(kind), source)
    }

    /// Installs any package, unless already installed.
    pub fn install_package(
        &self,
        package: &Package,
        source: Source<'_>,
    ) -> Result<Installed, PluginError> {
        let kind = package.kind;
        if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            return Err(PluginError::UnsupportedPlatform { kind });
        }
        self.try_install(package, source).map_err(|cause| PluginError::Install {
            kind,
            cause,
            commands: package.manual_commands(),
        })
    }

    fn try_install(
        &self,
        package: &Package,
        source: Source<'_>,
    ) -> Result<Installed, InstallError> {
        let _lock = self.lock()?;
        if let Some(installed) = self.installed_package(package).filter(Installed::is_sound) {
            return Ok(installed);
        }
        self.sweep()?;
        let staging = self.staging()?;
        let job = Job {
            package,
            store: self,
            download: staging.path().join("download"),
            tree: staging.path().join("tree"),
            progress: Progress::new(self.quiet),
        };
        job.build(source)?;
        self.publish(package, &job.tree)
    }

    /// Moves a finished tree to its final path. Requires the lock.
    fn publish(&self, package: &Package, tree: &Path) -> Result<Installed, InstallError> {
        let target = self.tree(package);
        self.discard(&target)?;
        fs::rename(tree, &target).at(&target)?;
        let folder = self.folder();
        File::open(folder).and_then(|folder| folder.sync_all()).at(folder)?;
        Ok(self
            .installed_package(package)
            .ok_or_else(|| io::Error::other("changed while it was being installed"))
            .at(&target)?)
    }
}

/// A running installation, in its staging folder.
struct Job<'a> {
    package: &'a Package,
    store: &'a Store,
    download: PathBuf,
    tree: PathBuf,
    progress: Progress,
}

impl Job<'_> {
    /// Unpacks every wheel into the tree and writes a manifest.
    fn build(&self, source: Source<'_>) -> Result<(), InstallError> {
        fs::create_dir(&self.tree).at(&self.tree)?;
        let mut files = BTreeMap::new();
        for wheel in self.package.wheels() {
            match source {
                Source::Pip => {
                    self.fetch(wheel)?;
                    files.extend(self.add(wheel, &self.download)?);
                    // Wheels are large: each is deleted as soon as possible.
                    fs::remove_dir_all(&self.download).at(&self.download)?;
                }
                Source::Folder(folder) => {
                    self.progress.announce("reading", wheel);
                    files.extend(self.add(wheel, folder)?);
                }
            }
        }
        self.manifest(files)?.write(&self.tree)?;
        Ok(())
    }

    /// Runs pip, and shows progress by the bytes it has written so far: this
    /// works with every version of pip.
    fn fetch(&self, wheel: &Wheel) -> Result<(), InstallError> {
        let python = self
            .store
            .python()
            .ok_or_else(|| InstallError::NoPip("there is no python3 on the path".to_owned()))?;
        fs::create_dir(&self.download).at(&self.download)?;
        self.progress.announce("fetching", wheel);
        thread::scope(|scope| {
            let pip = scope.spawn(|| python::pip_download(&python, wheel, &self.download));
            while !pip.is_finished() {
                self.progress.reach(bytes_under(&self.download));
                thread::sleep(WATCH_INTERVAL);
            }
            pip.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Verifies a wheel and unpacks it. The file is opened once, so that the
    /// unpacked file is the verified one.
    fn add(&self, wheel: &Wheel, folder: &Path) -> Result<BTreeMap<PathBuf, u64>, InstallError> {
        let path = folder.join(wheel.file);
        let mut file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(InstallError::MissingWheel {
                    file: wheel.file,
                    folder: folder.to_owned(),
                });
            }
            opened => opened.at(&path)?,
        };
        self.verify(wheel, &path, &mut file)?;
        file.rewind().at(&path)?;
        self.unpack(wheel, &path, file)
    }

    fn verify(&self, wheel: &Wheel, path: &Path, file: &mut File) -> Result<(), InstallError> {
        let length = file.metadata().at(path)?.len();
        if length < wheel.bytes {
            let reason = format!("it is truncated at {length} of {} bytes", wheel.bytes);
            return Err(damaged(path, reason));
        }
        self.progress.phase("verifying", wheel, length);
        let found = sha256(file, |bytes| self.progress.advance(bytes)).at(path)?;
        if found == wheel.sha256 {
            return Ok(());
        }
        Err(InstallError::Checksum { path: path.to_owned(), expected: wheel.sha256, found })
    }

    /// Unpacks the needed files of a wheel; returns them with their sizes.
    fn unpack(
        &self,
        wheel: &Wheel,
        path: &Path,
        file: File,
    ) -> Result<BTreeMap<PathBuf, u64>, InstallError> {
        let unreadable = |error: zip::result::ZipError| damaged(path, error.to_string());
        let mut archive = ZipArchive::new(file).map_err(unreadable)?;
        let total = archive.decompressed_size().unwrap_or_default();
        let total = u64::try_from(total).unwrap_or(u64::MAX);
        self.progress.phase("unpacking", wheel, total);

        let mut files = BTreeMap::new();
        for index in 0..archive.len() {
            let entry = archive.by_index(index).map_err(unreadable)?;
            let name = entry.name().map_err(unreadable)?.into_owned();
            let relative = entry
                .enclosed_name()
                .filter(|_| !entry.is_symlink())
                .ok_or_else(|| damaged(path, format!("its entry `{name}` points outside")))?;
            if entry.is_dir() || self.package.excludes(&name) {
                continue;
            }
            let size = self.unpack_entry(path, entry, &relative)?;
            files.insert(relative, size);
        }
        Ok(files)
    }

    fn unpack_entry(
        &self,
        wheel: &Path,
        mut entry: ZipFile<'_, File>,
        relative: &Path,
    ) -> Result<u64, InstallError> {
        let target = self.tree.join(relative);
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder).at(folder)?;
        }
        let executable = entry.unix_mode().is_some_and(|mode| mode & 0o111 != 0);
        let mut file = File::options()
            .write(true)
            .create_new(true)
            .mode(if executable { 0o777 } else { 0o666 })
            .open(&target)
            .at(&target)?;
        let mut size = 0;
        let mut buffer = vec![0; CHUNK];
        loop {
            // A failed read is an error of the wheel, a failed write one of the disk.
            let count = entry
                .read(&mut buffer)
                .map_err(|error| damaged(wheel, format!("{}: {error}", relative.display())))?;
            if count == 0 {
                break;
            }
            file.write_all(&buffer[..count]).at(&target)?;
            self.progress.advance(count);
            size += count as u64;
        }
        file.sync_all().at(&target)?;
        Ok(size)
    }

    fn manifest(&self, files: BTreeMap<PathBuf, u64>) -> Result<Manifest, InstallError> {
        let package = self.package;
        let library = PathBuf::from(package.library);
        if !files.contains_key(&library) {
            let reason = format!("it does not contain {}", package.library);
            return Err(damaged(Path::new(package.plugin.file), reason));
        }
        Ok(Manifest {
            kind: package.kind,
            package: package.plugin.name.to_owned(),
            version: package.plugin.version.to_owned(),
            wheels: wheel_sums(package),
            library,
            files,
        })
    }
}

fn damaged(path: &Path, reason: String) -> InstallError {
    InstallError::DamagedWheel { path: path.to_owned(), reason }
}

/// The SHA-256 of the rest of the file, in lowercase hexadecimal.
pub(super) fn sha256(file: &mut File, on_bytes: impl Fn(usize)) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; CHUNK];
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        hasher.update(&buffer[..count]);
        on_bytes(count);
    }
    Ok(hex(&hasher.finalize()))
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The size of all files under a folder. Files may change meanwhile.
fn bytes_under(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else {
        return 0;
    };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(data) if data.is_dir() => bytes_under(&entry.path()),
            Ok(data) => data.len(),
            Err(_) => 0,
        })
        .sum()
}
