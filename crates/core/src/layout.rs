//! The layout of a parameter over the devices that shard it.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// The layout of a parameter over the devices that shard it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// The full parameter on every device.
    Replicated,
    /// Sharded evenly on a dim. Dim 0 is padded with zeros to a multiple of the devices; others
    /// have to be one.
    Dim(usize),
    /// Flattened in row-major order, padded with zeros at the end and sharded evenly.
    Flat,
}

impl Layout {
    /// The dim of a shard along which shards follow each other, if there is one.
    pub fn sharded_dim(self) -> Option<usize> {
        match self {
            Layout::Replicated => None,
            Layout::Dim(dim) => Some(dim),
            Layout::Flat => Some(0),
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Layout::Replicated => f.write_str("replicated"),
            Layout::Dim(dim) => write!(f, "dim{dim}"),
            Layout::Flat => f.write_str("flat"),
        }
    }
}

impl FromStr for Layout {
    type Err = String;

    fn from_str(text: &str) -> Result<Layout, String> {
        match text {
            "replicated" => Ok(Layout::Replicated),
            "flat" => Ok(Layout::Flat),
            _ => {
                let dim = text.strip_prefix("dim").and_then(|dim| dim.parse().ok());
                dim.map(Layout::Dim).ok_or_else(|| {
                    format!("`{text}` is not a layout: replicated, flat, dim0 and so on")
                })
            }
        }
    }
}

impl Serialize for Layout {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Layout {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Layout, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for layout in [Layout::Replicated, Layout::Flat, Layout::Dim(0), Layout::Dim(2)] {
            assert_eq!(layout.to_string().parse(), Ok(layout));
        }
        assert!("dim".parse::<Layout>().unwrap_err().contains("dim0"));
    }
}
