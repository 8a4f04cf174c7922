//! Reading Hugging Face's `config.json`: which model it is of, and what can be wrong with it.

use crate::fields::Fields;
use crate::model::AnyModel;
use crate::nearest::nearest;
use crate::registry::{Architecture, architectures};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// What is wrong with a config.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the config {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The file is read, but not a config.
    #[error("in {}: {source}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<ConfigError>,
    },
    /// The text is no JSON object.
    #[error("the config is no JSON object: {reason}")]
    Json {
        /// What was found, with its line and column if it is no JSON at all.
        reason: String,
    },
    /// A field has a value that it cannot have.
    #[error("`{field}` is {value}, but must be {expected}")]
    Field {
        /// The field, with dots for fields of fields.
        field: String,
        /// Its value as it stands in the config.
        value: String,
        /// What it can be.
        expected: String,
    },
    /// A field that cannot be left out is.
    #[error("`{field}` is missing; it must be {expected}")]
    Missing {
        /// The field.
        field: String,
        /// What it can be.
        expected: String,
    },
    /// The config is of a model that is not here.
    #[error("`{field}` is {value}, but the models known are {known}")]
    UnknownModel {
        /// The field that says so.
        field: &'static str,
        /// Its value.
        value: String,
        /// The models known, registered ones included.
        known: String,
    },
    /// The config does not say which model it is of.
    #[error("neither `model_type` nor `architectures` says which model this is; known are {known}")]
    NoModel {
        /// The models known, registered ones included.
        known: String,
    },
    /// A default cannot be overridden so.
    #[error("the override `{pair}` is wrong: {reason}")]
    Override {
        /// The `key=value`.
        pair: String,
        /// Why not.
        reason: String,
    },
    /// The model that is described cannot be traced.
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
            known: listed(&known),
        });
    };
    let mut config = (found.defaults)();
    let Value::Object(fields) = &mut config else {
        return Err(ConfigError::Json { reason: format!("the defaults are {config}") });
    };
    for pair in overrides.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        put(fields, pair)
            .map_err(|reason| ConfigError::Override { pair: pair.to_owned(), reason })?;
    }
    Ok(config)
}

/// Puts a `key=value` in, as what the old value is.
fn put(config: &mut Map<String, Value>, pair: &str) -> Result<(), String> {
    let (key, text) = pair.split_once('=').ok_or("key=value is needed")?;
    let Some(old) = config.get(key) else {
        let meant = nearest(key, config.keys().map(String::as_str));
        let meant = meant.map(|meant| format!("; perhaps `{meant}` was meant"));
        return Err(format!("the config has no `{key}`{}", meant.unwrap_or_default()));
    };
    let value = match old {
        Value::Bool(_) => truth(text).map(Value::Bool),
        Value::String(_) => Some(Value::from(text)),
        Value::Number(number) if number.is_f64() => text.parse::<f64>().ok().map(Value::from),
        _ => text.parse::<u64>().ok().map(Value::from),
    };
    let wrong = || format!("`{text}` is of another kind than its default, {old}");
    let value = value.ok_or_else(wrong)?;
    config.insert(key.to_owned(), value);
    Ok(())
}

/// A truth value, in the words that Hugging Face's scripts take.
fn truth(text: &str) -> Option<bool> {
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
        let (value, known) = (value.to_string(), listed(&all));
        found.ok_or(ConfigError::UnknownModel { field, value, known })
    };
    let given = |field: &str| config.get(field).filter(|value| !value.is_null());
    if let Some(value) = given("model_type") {
        return find("model_type", value, |known| known.model_type);
    }
    match given("architectures") {
        Some(value) => find("architectures", value.get(0).unwrap_or(value), |known| known.class),
        None => Err(ConfigError::NoModel { known: listed(&all) }),
    }
}

fn listed(known: &[Architecture]) -> String {
    let known = known.iter().map(|known| format!("{} ({})", known.model_type, known.class));
    known.collect::<Vec<_>>().join(", ")
}
