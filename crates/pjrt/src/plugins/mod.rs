//! Finding, downloading, verifying, listing and removing PJRT plugins, and the MPI library.
//!
//! A plugin is a shared library for one kind of device. The search order is: user
//! setting, our cache, active Python environment. Cached plugins are pinned by
//! version and checksum, installation is atomic, and what is installed is verified
//! before it is trusted.

mod error;
mod install;
mod kind;
mod package;
mod progress;
mod python;
mod search;
mod store;
mod verify;

pub use error::{FileError, InstallError, PluginError};
pub use install::Source;
pub use kind::{Kind, UnknownKind};
pub use package::{Package, Wheel};
pub use search::{Located, Origin, find, find_compiler, find_or_install};
pub use store::{Installed, Store};
pub use verify::{clean_end, watch_crashes};

pub use fullshard_core::Platform;

/// The environment variable with the library of a kind.
pub fn variable(kind: impl Into<Kind>) -> &'static str {
    match kind.into() {
        Kind::Plugin(Platform::Cpu) => "FULLSHARD_CPU_PLUGIN",
        Kind::Plugin(Platform::Cuda) => "FULLSHARD_CUDA_PLUGIN",
        Kind::Plugin(Platform::Tpu) => "FULLSHARD_TPU_PLUGIN",
        Kind::Mpi => "FULLSHARD_MPI_LIBRARY",
    }
}
