//! A model's `config.json`: a path or inline JSON.

use super::value::FlagValue;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::path::PathBuf;

/// The source of a `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ConfigSource {
    /// A file, or a folder that has one.
    Path(PathBuf),
    /// Inline JSON.
    Inline(Map<String, Value>),
}

impl ConfigSource {
    /// An inline config. Nulls are dropped: they equal missing fields, and TOML has none.
    pub fn inline(mut config: Map<String, Value>) -> ConfigSource {
        config.retain(|_, value| !value.is_null());
        ConfigSource::Inline(config)
    }
}

impl FlagValue for ConfigSource {
    fn read(words: &[String]) -> Result<ConfigSource, String> {
        let text = String::read(words)?;
        match text.trim_start().starts_with('{') {
            true => Map::read(words).map(ConfigSource::inline),
            false => Ok(ConfigSource::Path(text.into())),
        }
    }

    fn words(&self) -> Option<Vec<String>> {
        match self {
            ConfigSource::Path(path) => path.words(),
            ConfigSource::Inline(config) => config.words(),
        }
    }
}

impl From<&str> for ConfigSource {
    fn from(path: &str) -> ConfigSource {
        ConfigSource::Path(path.into())
    }
}
