//! What can be wrong with an optimized program.

/// Why bytes are not an HLO module we can use.
#[derive(Debug, thiserror::Error)]
pub enum HloError {
    /// The plugin returned a program in a format this reader does not know.
    #[error("program format `{0}` is not HLO: expected `hlo` or `hlo_with_config`")]
    UnknownFormat(String),
    /// The bytes are not the protobuf they claim to be.
    #[error("HLO does not decode: {0}")]
    Decode(#[from] prost::DecodeError),
    /// The protobuf decodes, but contradicts itself.
    #[error("malformed HLO in {place}: {reason}")]
    Malformed {
        /// The module, and where known the computation and the instruction.
        place: String,
        /// What is wrong there.
        reason: String,
    },
}

impl HloError {
    pub(super) fn malformed(place: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Malformed { place: place.into(), reason: reason.into() }
    }
}
