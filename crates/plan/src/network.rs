//! Networks between devices, and how long collectives take on them.

/// What is between the devices of a machine.
#[derive(Debug, Clone, PartialEq)]
pub enum Network {
    /// A mesh of links, some of its dimensions closed to rings.
    Torus {
        /// Devices in each dimension.
        dims: Vec<usize>,
        /// Which dimensions are rings.
        wrap: Vec<bool>,
        /// Bytes a second over one link one way.
        link: f64,
        /// Seconds from one device to the next.
        latency: f64,
    },
    /// A switch that every device is connected to.
    Switch {
        /// Bytes a second out of (and into) one device.
        bandwidth: f64,
        /// Seconds from one device to another.
        latency: f64,
    },
}
