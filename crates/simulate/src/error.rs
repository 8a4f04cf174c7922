//! Errors of simulations.

/// Something that cannot be simulated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// A value that makes no sense, by the flag that it is given by.
    #[error("--{flag} is {value}: {reason}")]
    Value {
        /// The flag.
        flag: &'static str,
        /// Its value.
        value: String,
        /// What it must be.
        reason: String,
    },
    /// A network or group that the simulation of collectives has no algorithm for.
    #[error("cannot simulate {what}: {reason}")]
    Network {
        /// The network, group or collective.
        what: String,
        /// Why, and what can be simulated.
        reason: &'static str,
    },
}
