//! Platforms: the kinds of device that programs are compiled for.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A kind of device that programs are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Platform {
    /// The host's processors.
    Cpu,
    /// NVIDIA GPUs.
    #[serde(alias = "gpu")]
    Cuda,
    /// Google TPUs.
    Tpu,
}

/// A name that is not a platform.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a platform; the platforms are cpu, cuda (or gpu) and tpu")]
pub struct UnknownPlatform(pub String);

impl Platform {
    /// Every platform.
    pub const ALL: [Platform; 3] = [Platform::Cpu, Platform::Cuda, Platform::Tpu];

    /// The name on the command line, in configs and in file names.
    pub fn name(self) -> &'static str {
        match self {
            Platform::Cpu => "cpu",
            Platform::Cuda => "cuda",
            Platform::Tpu => "tpu",
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Platform {
    type Err = UnknownPlatform;

    fn from_str(name: &str) -> Result<Self, UnknownPlatform> {
        match name {
            "cpu" => Ok(Platform::Cpu),
            "cuda" | "gpu" => Ok(Platform::Cuda),
            "tpu" => Ok(Platform::Tpu),
            other => Err(UnknownPlatform(other.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for platform in Platform::ALL {
            assert_eq!(platform.to_string().parse(), Ok(platform));
            assert_eq!(serde_json::to_string(&platform).unwrap(), format!("\"{platform}\""));
        }
        assert_eq!("gpu".parse(), Ok(Platform::Cuda));
        assert_eq!(serde_json::from_str::<Platform>("\"gpu\"").unwrap(), Platform::Cuda);
        let error = "npu".parse::<Platform>().unwrap_err().to_string();
        assert!(error.contains("`npu`") && error.contains("cuda"), "{error}");
    }
}
