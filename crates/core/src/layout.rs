//! How one parameter is stored over the devices that shard it.

use serde::{Deserialize, Serialize};

/// How one parameter is stored over the devices that shard it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// The full parameter on every device.
    Replicated,
    /// In equal blocks of dimension 0, padded with zeros to a multiple of the devices.
    Dim0,
    /// Flattened in row-major order and padded with zeros at the end, in equal slices.
    Flat,
}
