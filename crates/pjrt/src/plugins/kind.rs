//! Kinds of packages: a plugin for each platform, and the MPI library that CPU programs of several
//! processes communicate over.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Platform;

/// What a package of the cache provides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "&'static str")]
pub enum Kind {
    /// The plugin of a platform.
    Plugin(Platform),
    /// An MPI library with its launcher.
    Mpi,
}

/// A name that is not a kind of package.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a package; the packages are cpu, cuda (or gpu), tpu and mpi")]
pub struct UnknownKind(pub String);

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 4] = [
        Kind::Plugin(Platform::Cpu),
        Kind::Plugin(Platform::Cuda),
        Kind::Plugin(Platform::Tpu),
        Kind::Mpi,
    ];

    /// The name on the command line and in file names.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Plugin(platform) => platform.name(),
            Kind::Mpi => "mpi",
        }
    }

    /// What it is, in messages.
    pub(super) fn noun(self) -> String {
        match self {
            Kind::Plugin(platform) => format!("{platform} plugin"),
            Kind::Mpi => "MPI library".to_owned(),
        }
    }
}

impl From<Platform> for Kind {
    fn from(platform: Platform) -> Kind {
        Kind::Plugin(platform)
    }
}

impl From<Kind> for &'static str {
    fn from(kind: Kind) -> &'static str {
        kind.name()
    }
}

impl TryFrom<String> for Kind {
    type Error = UnknownKind;

    fn try_from(name: String) -> Result<Kind, UnknownKind> {
        name.parse()
    }
}

impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(name: &str) -> Result<Kind, UnknownKind> {
        match name {
            "mpi" => Ok(Kind::Mpi),
            other => other.parse().map(Kind::Plugin).map_err(|_| UnknownKind(other.to_owned())),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
