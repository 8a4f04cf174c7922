//! Finding, downloading, verifying, listing and removing PJRT plugins.
//!
//! A plugin is a shared library for one kind of device. The search order is: user
//! setting, our cache, active Python environment. Cached plugins are pinned by
//! version and checksum, installation is atomic, and what is installed is verified
//! before it is trusted.

mod error;
mod install;
mod package;
mod progress;
mod python;
mod search;
mod store;
mod verify;

pub use error::{FileError, InstallError, PluginError};
pub use install::Source;
pub use package::{Package, Wheel};
pub use search::{Located, Origin, find, find_compiler, find_or_install};
pub use store::{Installed, Store};
pub use verify::{clean_end, watch_crashes};

pub use fullshard_core::Platform;

/// The environment variable with the plugin library of a platform.
pub fn variable(platform: Platform) -> &'static str {
    match platform {
        Platform::Cpu => "FULLSHARD_CPU_PLUGIN",
        Platform::Cuda => "FULLSHARD_CUDA_PLUGIN",
        Platform::Tpu => "FULLSHARD_TPU_PLUGIN",
    }
}
