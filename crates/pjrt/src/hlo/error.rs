//! Errors of reading optimized HLO.

/// Why bytes are not a usable HLO module.
#[derive(Debug, thiserror::Error)]
pub enum HloError {
    /// The plugin returned a program in an unknown format.
    #[error("program format `{0}` is not HLO: expected `hlo` or `hlo_with_config`")]
    UnknownFormat(String),
    /// The bytes are not a valid protobuf.
    #[error("HLO does not decode: {0}")]
    Decode(#[from] prost::DecodeError),
    /// The protobuf decodes, but is inconsistent.
    #[error("malformed HLO in {place}: {reason}")]
    Malformed {
        /// The module, and where known the computation and the instruction.
        place: String,
        /// What is wrong.
        reason: String,
    },
}

impl HloError {
    pub(super) fn malformed(place: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Malformed { place: place.into(), reason: reason.into() }
    }
}
