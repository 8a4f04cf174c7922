//! What can go wrong with plugins, in words that name the file or package at
//! fault and the way out.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use super::{Origin, Platform};

/// A failure to find, install or remove a plugin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PluginError {
    /// The user named a plugin library that is not there.
    #[error("the {kind} plugin named by {origin} is not a file: {}", path.display())]
    NoSuchFile {
        /// The kind of plugin asked for.
        kind: Platform,
        /// The file that was named.
        path: PathBuf,
        /// Who named it.
        origin: Origin,
    },

    /// No plugin of this kind is anywhere we look.
    #[error(
        "no {kind} plugin found: run `fullshard plugins install {kind}`, \
         or set {} to the plugin library", super::variable(*kind)
    )]
    NotFound {
        /// The kind of plugin asked for.
        kind: Platform,
    },

    /// No plugin that compiles for this kind is anywhere we look.
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

    /// The system does not say where caches belong.
    #[error("no cache folder is known for this user: set FULLSHARD_CACHE to a folder")]
    NoCacheFolder,

    /// We pin no plugins for this machine.
    #[error(
        "cannot install the {kind} plugin: the pinned ones are for Linux on x86_64 only. \
         Set {} to a plugin library for this machine", super::variable(*kind)
    )]
    UnsupportedPlatform {
        /// The kind of plugin asked for.
        kind: Platform,
    },

    /// An installation failed and was undone.
    #[error(
        "cannot install the {kind} plugin: {cause}\n\
         Nothing was installed. To do it by hand:\n{by_hand}"
    )]
    Install {
        /// The kind of plugin that was being installed.
        kind: Platform,
        /// What went wrong.
        cause: InstallError,
        /// Shell commands that do the same without us.
        by_hand: String,
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
         or bring the wheels from another machine and give their folder with --from"
    )]
    NoPip(String),

    /// Pip could not fetch the wheel.
    #[error("pip could not fetch {package} ({status}):\n{output}")]
    PipFailed {
        /// The package asked for, as `name==version`.
        package: String,
        /// How pip ended.
        status: ExitStatus,
        /// The last lines that pip printed.
        output: String,
    },

    /// The wheel is not where it should be.
    #[error("there is no {file} in {}", folder.display())]
    MissingWheel {
        /// The exact file name looked for.
        file: &'static str,
        /// The folder it was looked for in.
        folder: PathBuf,
    },

    /// The wheel is whole but is not the one we pinned.
    #[error(
        "{} is not the wheel we trust: its SHA-256 is {found}, expected {expected}",
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

    /// The wheel is cut short or cannot be unpacked.
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
#[error("{}: {source}{}", path.display(), way_out(source))]
pub struct FileError {
    /// The file or folder at fault.
    pub path: PathBuf,
    /// What the system said.
    pub source: io::Error,
}

fn way_out(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ". The disk is full: free some space, or set FULLSHARD_CACHE to a folder on another disk"
        }
        _ => "",
    }
}

/// Says which path an I/O error is about.
pub(super) trait AtPath<T> {
    fn at(self, path: &Path) -> Result<T, FileError>;
}

impl<T> AtPath<T> for io::Result<T> {
    fn at(self, path: &Path) -> Result<T, FileError> {
        self.map_err(|source| FileError { path: path.to_owned(), source })
    }
}
