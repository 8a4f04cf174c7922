//! Run configs as TOML and JSON files.

use super::error::ConfigError;
use super::{RunConfig, VERSION};
use serde_json::{Value, json};
use std::path::Path;

/// The file name of the resolved config that a run writes next to its results.
pub const FILE_NAME: &str = "run_config.toml";

impl RunConfig {
    /// Reads a `.toml` or `.json` file.
    pub fn read(path: impl AsRef<Path>) -> Result<RunConfig, ConfigError> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let in_file = |reason: String| ConfigError::File { path: path.to_owned(), reason };
        let object = object(path, &text)?;
        check_version(path, &object)?;
        if object["version"] != VERSION {
            let current = from_older_version(object);
            return serde_json::from_value(current).map_err(|error| in_file(error.to_string()));
        }
        let config: RunConfig = match is_json(path) {
            true => serde_json::from_str(&text).map_err(|error| in_file(error.to_string()))?,
            false => toml::from_str(&text).map_err(|error| in_file(error.to_string()))?,
        };
        Ok(config)
    }

    /// The config as TOML, defaults included.
    pub fn to_toml(&self) -> Result<String, ConfigError> {
        toml::to_string(self).map_err(|error| ConfigError::Write(error.to_string()))
    }

    /// The config as JSON.
    pub fn to_json(&self) -> Result<String, ConfigError> {
        serde_json::to_string_pretty(self).map_err(|error| ConfigError::Write(error.to_string()))
    }
}

/// Parses a file of any version.
pub(super) fn object(path: &Path, text: &str) -> Result<Value, ConfigError> {
    let value = match is_json(path) {
        true => serde_json::from_str(text).map_err(|error| format!("invalid JSON: {error}")),
        false => toml::from_str(text).map_err(|error| format!("invalid TOML: {error}")),
    };
    value.map_err(|reason| ConfigError::File { path: path.to_owned(), reason })
}

/// Whether an object is a run config, with a version or a section, rather than a list of flags.
pub(super) fn is_run_config(object: &Value) -> bool {
    let sections = serde_json::to_value(RunConfig::default()).unwrap_or_default();
    let is_section = |key: &String, value: &Value| value.is_object() && sections.get(key).is_some();
    let entries = object.as_object();
    object.get("version").is_some()
        || entries.is_some_and(|entries| entries.iter().any(|(key, value)| is_section(key, value)))
}

fn is_json(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}

/// Version 1 had no checkpoints, and the strategy to save none among the output files. Version 2
/// had one mesh axis, `fsdp`. In version 3 layers were gathered ahead or not, which was the default
/// and is left to the chip now.
fn from_older_version(mut object: Value) -> Value {
    if object["version"] == 1 {
        let output = object.get_mut("output").and_then(Value::as_object_mut);
        let strategy = output.and_then(|output| output.remove("save_strategy"));
        object["checkpoint"] = json!({ "strategy": strategy.unwrap_or_else(|| "no".into()) });
    }
    if let Some(mesh) = object.get_mut("mesh").and_then(Value::as_object_mut)
        && let Some(devices) = mesh.remove("fsdp")
    {
        mesh.insert("devices".to_owned(), devices);
    }
    let ahead = object.pointer_mut("/fsdp/gather_ahead").filter(|ahead| **ahead == false);
    if let Some(ahead) = ahead {
        *ahead = "auto".into();
    }
    object["version"] = VERSION.into();
    object
}

fn check_version(path: &Path, object: &Value) -> Result<(), ConfigError> {
    let reject = |found: String, hint| {
        Err(ConfigError::Version { path: path.to_owned(), found, known: VERSION, hint })
    };
    match object.get("version") {
        Some(version) if (Some(1)..=Some(u64::from(VERSION))).contains(&version.as_u64()) => Ok(()),
        Some(version) if version.as_u64() > Some(u64::from(VERSION)) => {
            reject(version.to_string(), ", or use a newer fullshard")
        }
        Some(version) => reject(version.to_string(), ""),
        None => reject("none".to_owned(), ", or add `version = 4`"),
    }
}
