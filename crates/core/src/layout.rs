//! The layout of a parameter over the devices that shard it.

use serde::{Deserialize, Serialize};

/// The layout of a parameter over the devices that shard it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// The full parameter on every device.
    Replicated,
    /// Sharded evenly on dim 0, padded with zeros to a multiple of the devices.
    Dim0,
    /// Flattened in row-major order, padded with zeros at the end and sharded evenly.
    Flat,
}
