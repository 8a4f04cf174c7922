//! Plugin errors. Each names the file or package and the fix.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use super::{Kind, Origin, Platform};

/// A failure to find, install or remove a plugin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PluginError {
    /// The user named a plugin library that does not exist.
    #[error("the {} named by {origin} is not a file: {}", kind.noun(), path.display())]
    NoSuchFile {
        /// The requested kind of package.
        kind: Kind,
        /// The named file.
        path: PathBuf,
        /// Where it was named.
        origin: Origin,
    },

    /// No plugin of this kind was found.
    #[error(
        "no {kind} plugin found: run `fullshard plugins install {kind}`, \
         or set {} to the plugin library", super::variable(*kind)
    )]
    NotFound {
        /// The requested kind of plugin.
        kind: Platform,
    },

    /// No plugin that compiles for this kind was found.
    #[error(
        "no compiler for {kind} found: run `fullshard plugins install {kind}{}`, \
         or set {} to the plugin library",
        if *kind == Platform::Cuda { " --compiler" } else { "" },
        super::variable(*kind)
    )]
    NoCompiler {
        /// The kind of device to compile for.
        kind: Platform,
    },

    /// The system has no cache folder.
    #[error("no cache folder for this user: set FULLSHARD_CACHE to a folder")]
    NoCacheFolder,

    /// No plugins are pinned for this machine.
    #[error(
        "cannot install the {}: the pinned ones are for Linux on x86_64 only. \
         Set {} to a library for this machine", kind.noun(), super::variable(*kind)
    )]
    UnsupportedPlatform {
        /// The requested kind of package.
        kind: Kind,
    },

    /// An installation failed and was rolled back.
    #[error(
        "cannot install the {}: {cause}\n\
         Nothing was installed. To install it manually:\n{commands}", kind.noun()
    )]
    Install {
        /// The kind of package.
        kind: Kind,
        /// What went wrong.
        cause: InstallError,
        /// Shell commands that install it manually.
        commands: String,
    },

    /// An installed library changed since it was installed.
    #[error(
        "the {} {} is damaged: its SHA-256 is {found}, expected {expected}. \
         `fullshard plugins install {kind}{flag}` replaces it", kind.noun(), path.display()
    )]
    Damaged {
        /// The kind of package.
        kind: Kind,
        /// The library.
        path: PathBuf,
        /// Its checksum in the wheel.
        expected: String,
        /// Its checksum now.
        found: String,
        /// The flag with which it is installed.
        flag: &'static str,
    },

    /// A file of the plugin cache cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
}

/// The reason why an installation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InstallError {
    /// There is no Python, or it has no pip.
    #[error(
        "pip is needed to fetch it, and {0}. Install Python with pip, \
         or copy the wheels from another machine and pass their folder with --from"
    )]
    NoPip(String),

    /// Pip could not fetch the wheel.
    #[error("pip could not fetch {package} ({status}):\n{output}")]
    PipFailed {
        /// The requested package, as `name==version`.
        package: String,
        /// The exit status of pip.
        status: ExitStatus,
        /// The last lines of pip's output.
        output: String,
    },

    /// The wheel is missing.
    #[error("there is no {file} in {}", folder.display())]
    MissingWheel {
        /// The exact file name.
        file: &'static str,
        /// The folder that was searched.
        folder: PathBuf,
    },

    /// The wheel is not the pinned one.
    #[error(
        "{} is not the pinned wheel: its SHA-256 is {found}, expected {expected}",
        path.display()
    )]
    Checksum {
        /// The wheel.
        path: PathBuf,
        /// The pinned checksum.
        expected: &'static str,
        /// The checksum of the file.
        found: String,
    },

    /// The wheel is truncated or cannot be unpacked.
    #[error("{} is damaged: {reason}", path.display())]
    DamagedWheel {
        /// The wheel.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// A failed operation on a file or folder.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}{}", path.display(), fix(source))]
pub struct FileError {
    /// The file or folder.
    pub path: PathBuf,
    /// The system error.
    pub source: io::Error,
}

fn fix(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ". The disk is full: free some space, or set FULLSHARD_CACHE to a folder on another disk"
        }
        _ => "",
    }
}

/// Adds the path to an I/O error.
pub(super) trait AtPath<T> {
    fn at(self, path: &Path) -> Result<T, FileError>;
}

impl<T> AtPath<T> for io::Result<T> {
    fn at(self, path: &Path) -> Result<T, FileError> {
        self.map_err(|source| FileError { path: path.to_owned(), source })
    }
}
