//! Reads Hugging Face's `config.json`, finds its model and reports errors in it.

use crate::fields::Fields;
use crate::model::AnyModel;
use crate::nearest::nearest;
use crate::registry::{Architecture, architectures};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// An error in a config.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the config {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// The file is not a valid config.
    #[error("in {}: {source}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// The error.
        source: Box<ConfigError>,
    },
    /// The text is not a JSON object.
    #[error("the config is not a JSON object: {reason}")]
    Json {
        /// What was found, with line and column if it is not JSON.
        reason: String,
    },
    /// A field has an invalid value.
    #[error("`{field}` is {value}, but must be {expected}")]
    Field {
        /// The field, with dots for nested fields.
        field: String,
        /// Its value in the config.
        value: String,
        /// The valid values.
        expected: String,
    },
    /// A required field is missing.
    #[error("`{field}` is missing; it must be {expected}")]
    Missing {
        /// The field.
        field: String,
        /// The valid values.
        expected: String,
    },
    /// The model is not supported.
    #[error("`{field}` is {value}, but the supported models are {known}")]
    UnknownModel {
        /// The field that names the model.
        field: &'static str,
        /// Its value.
        value: String,
        /// The supported models, registered ones included.
        known: String,
    },
    /// The config does not name a model.
    #[error("neither `model_type` nor `architectures` is set; the supported models are {known}")]
    NoModel {
        /// The supported models, registered ones included.
        known: String,
    },
    /// An invalid override of a default.
    #[error("the override `{pair}` is invalid: {reason}")]
    Override {
        /// The `key=value`.
        pair: String,
        /// Why it is invalid.
        reason: String,
    },
    /// The model cannot be traced.
    #[error("the model of this config cannot be traced: {0}")]
    Trace(#[from] fullshard_graph::Error),
}

/// The model that the text of a `config.json` describes.
pub fn from_json(text: &str) -> Result<Box<dyn AnyModel>, ConfigError> {
    let config = object(text)?;
    (architecture(&config)?.read)(&Fields::new(&config))
}

/// The model that a `config.json` describes.
pub fn from_file(path: impl AsRef<Path>) -> Result<Box<dyn AnyModel>, ConfigError> {
    let path = path.as_ref();
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    from_json(&text)
        .map_err(|source| ConfigError::InFile { path: path.to_owned(), source: Box::new(source) })
}

/// The default config of a `model_type`, with overrides as `key=value,key=value`.
pub fn default_config(model_type: &str, overrides: &str) -> Result<Value, ConfigError> {
    let known = architectures();
    let Some(found) = known.iter().find(|known| known.model_type == model_type) else {
        let value = Value::from(model_type).to_string();
        return Err(ConfigError::UnknownModel {
            field: "model_type",
            value,
            known: model_names(&known),
        });
    };
    let mut config = (found.defaults)();
    let Value::Object(fields) = &mut config else {
        return Err(ConfigError::Json { reason: format!("the defaults are {config}") });
    };
    for pair in overrides.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        apply_override(fields, pair)
            .map_err(|reason| ConfigError::Override { pair: pair.to_owned(), reason })?;
    }
    Ok(config)
}

/// Applies a `key=value`, parsed as the type of the old value.
fn apply_override(config: &mut Map<String, Value>, pair: &str) -> Result<(), String> {
    let (key, text) = pair.split_once('=').ok_or("expected key=value")?;
    let Some(old) = config.get(key) else {
        let suggestion = nearest(key, config.keys().map(String::as_str));
        let suggestion = suggestion.map(|suggestion| format!(" (did you mean `{suggestion}`?)"));
        return Err(format!("the config has no `{key}`{}", suggestion.unwrap_or_default()));
    };
    let value = match old {
        Value::Bool(_) => parse_bool(text).map(Value::Bool),
        Value::String(_) => Some(Value::from(text)),
        Value::Number(number) if number.is_f64() => text.parse::<f64>().ok().map(Value::from),
        _ => text.parse::<u64>().ok().map(Value::from),
    };
    let mismatch = || format!("`{text}` has another type than the default, {old}");
    let value = value.ok_or_else(mismatch)?;
    config.insert(key.to_owned(), value);
    Ok(())
}

/// A boolean, in the forms that Hugging Face's scripts accept.
fn parse_bool(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "t" | "y" | "1" => Some(true),
        "false" | "no" | "f" | "n" | "0" => Some(false),
        _ => None,
    }
}

pub(crate) fn object(text: &str) -> Result<Map<String, Value>, ConfigError> {
    match serde_json::from_str(text) {
        Ok(Value::Object(config)) => Ok(config),
        Ok(other) => Err(ConfigError::Json { reason: format!("it is {other}") }),
        Err(error) => Err(ConfigError::Json { reason: error.to_string() }),
    }
}

/// The architecture that a config names.
fn architecture(config: &Map<String, Value>) -> Result<Architecture, ConfigError> {
    let all = architectures();
    let find = |field, value: &Value, name: fn(&Architecture) -> &'static str| {
        let found = all.iter().find(|known| value == name(known)).copied();
        let (value, known) = (value.to_string(), model_names(&all));
        found.ok_or(ConfigError::UnknownModel { field, value, known })
    };
    let given = |field: &str| config.get(field).filter(|value| !value.is_null());
    if let Some(value) = given("model_type") {
        return find("model_type", value, |known| known.model_type);
    }
    match given("architectures") {
        Some(value) => find("architectures", value.get(0).unwrap_or(value), |known| known.class),
        None => Err(ConfigError::NoModel { known: model_names(&all) }),
    }
}

fn model_names(known: &[Architecture]) -> String {
    let known = known.iter().map(|known| format!("{} ({})", known.model_type, known.class));
    known.collect::<Vec<_>>().join(", ")
}
