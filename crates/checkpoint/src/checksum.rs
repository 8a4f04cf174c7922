//! XXH3 checksums: they find damage, at the speed of memory.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::hash::Hasher;
use std::str::FromStr;
use twox_hash::XxHash3_64;

/// A checksum of bytes, written as 16 hexadecimal digits as by `xxhsum -H3`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Checksum(u64);

impl Checksum {
    /// The checksum of bytes.
    pub fn of(bytes: &[u8]) -> Checksum {
        Checksum(XxHash3_64::oneshot(bytes))
    }
}

/// Sums bytes that come in parts.
pub(crate) struct Summing(XxHash3_64);

impl Summing {
    pub fn new() -> Summing {
        Summing(XxHash3_64::with_seed(0))
    }

    pub fn add(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    pub fn finish(&self) -> Checksum {
        Checksum(self.0.finish())
    }
}

impl From<u64> for Checksum {
    fn from(sum: u64) -> Checksum {
        Checksum(sum)
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Checksum {
    type Err = String;

    fn from_str(text: &str) -> Result<Checksum, String> {
        // Only what is written is read: a flipped bit can make a digit upper case.
        let sum = u64::from_str_radix(text, 16).ok().map(Checksum);
        sum.filter(|sum| sum.to_string() == text)
            .ok_or_else(|| format!("`{text}` is not a checksum of 16 digits"))
    }
}

impl Serialize for Checksum {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Checksum {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Checksum, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}
