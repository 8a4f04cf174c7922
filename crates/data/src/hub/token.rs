//! The access token of the hub, which is sent and never shown.

use serde::{Deserialize, Serialize, Serializer};
use std::fmt;

/// An access token, or none. It is neither printed nor written: as text it is always none.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Token(Option<String>);

impl Token {
    /// A token.
    pub fn new(token: impl Into<String>) -> Self {
        Self(Some(token.into()))
    }

    /// Whether it is a token.
    pub fn is_given(&self) -> bool {
        self.value().is_some()
    }

    /// This token, or that of `HF_TOKEN`.
    pub(super) fn or_env(&self) -> Option<String> {
        let in_env = || Self(std::env::var("HF_TOKEN").ok()).value();
        self.value().or_else(in_env)
    }

    fn value(&self) -> Option<String> {
        let value = self.0.as_deref().map(str::trim).filter(|value| !value.is_empty());
        value.map(str::to_owned)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_given() { "Token(hidden)" } else { "Token(none)" })
    }
}

impl Serialize for Token {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_none()
    }
}
