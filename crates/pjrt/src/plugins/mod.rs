//! Finding, fetching, verifying, listing and removing PJRT plugins.
//!
//! A plugin is a shared library that drives one kind of device. It is looked
//! for where the user says, then in our own cache, then in the active Python
//! environment. What the cache holds is pinned by version and checksum, and an
//! installation appears there whole or not at all.

mod error;
mod install;
mod package;
mod progress;
mod python;
mod search;
mod store;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use error::{FileError, InstallError, PluginError};
pub use install::Source;
pub use package::{Package, Wheel};
pub use search::{Located, Origin, find, find_compiler, find_or_install};
pub use store::{Installed, Store};

/// The kind of device a plugin drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PluginKind {
    /// The host's processors.
    Cpu,
    /// NVIDIA GPUs.
    Cuda,
    /// Google TPUs.
    Tpu,
}

impl PluginKind {
    /// Every kind, in the order they are listed.
    pub const ALL: [PluginKind; 3] = [PluginKind::Cpu, PluginKind::Cuda, PluginKind::Tpu];

    /// The name used on the command line and in file names.
    pub fn name(self) -> &'static str {
        match self {
            PluginKind::Cpu => "cpu",
            PluginKind::Cuda => "cuda",
            PluginKind::Tpu => "tpu",
        }
    }

    /// The environment variable that names the plugin library to use.
    pub fn variable(self) -> &'static str {
        match self {
            PluginKind::Cpu => "FULLSHARD_CPU_PLUGIN",
            PluginKind::Cuda => "FULLSHARD_CUDA_PLUGIN",
            PluginKind::Tpu => "FULLSHARD_TPU_PLUGIN",
        }
    }
}

impl fmt::Display for PluginKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for PluginKind {
    type Err = PluginError;

    fn from_str(name: &str) -> Result<Self, PluginError> {
        match name {
            "cpu" => Ok(PluginKind::Cpu),
            "cuda" | "gpu" => Ok(PluginKind::Cuda),
            "tpu" => Ok(PluginKind::Tpu),
            other => Err(PluginError::UnknownKind(other.to_owned())),
        }
    }
}
