//! What a run is planned for: so many accelerators and the network between them.

use crate::network::Network;
use fullshard_pjrt::plugins::PluginKind;
use fullshard_train::Chip;

/// Accelerators and the network between them.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Its name, as people write it: `v4-8`, `h200:8`, `cpu:4`.
    pub name: String,
    /// The plugin that compiles for it.
    pub kind: PluginKind,
    /// One of its devices.
    pub chip: Chip,
    /// How many devices a program sees.
    pub devices: usize,
    /// What is between them.
    pub network: Network,
    /// The bytes of a device's memory that a program may use.
    pub memory: u64,
}
