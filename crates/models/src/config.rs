//! Reading Hugging Face's `config.json`: which model it is of, and what can be wrong with it.

use crate::fields::Fields;
use crate::gpt2::Gpt2;
use crate::llama::Llama;
use crate::model::CausalLm;
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
    #[error("`{field}` is {value}, but the models known are {}", known())]
    UnknownModel {
        /// The field that says so.
        field: &'static str,
        /// Its value.
        value: String,
    },
    /// The config does not say which model it is of.
    #[error(
        "neither `model_type` nor `architectures` says which model this is; known are {}",
        known()
    )]
    NoModel,
}

/// A model that a config can be of.
struct Kind {
    model_type: &'static str,
    architecture: &'static str,
    read: fn(&Fields<'_>) -> Result<Box<dyn CausalLm>, ConfigError>,
}

const KINDS: &[Kind] = &[
    Kind {
        model_type: "gpt2",
        architecture: "GPT2LMHeadModel",
        read: |fields| boxed(Gpt2::read(fields)),
    },
    Kind {
        model_type: "llama",
        architecture: "LlamaForCausalLM",
        read: |fields| boxed(Llama::read(fields)),
    },
];

fn boxed<M: CausalLm + 'static>(
    model: Result<M, ConfigError>,
) -> Result<Box<dyn CausalLm>, ConfigError> {
    Ok(Box::new(model?))
}

fn known() -> String {
    let known = KINDS.iter().map(|kind| format!("{} ({})", kind.model_type, kind.architecture));
    known.collect::<Vec<_>>().join(", ")
}

/// The model that the text of a `config.json` describes.
pub fn from_json(text: &str) -> Result<Box<dyn CausalLm>, ConfigError> {
    let config = object(text)?;
    (kind(&config)?.read)(&Fields::new(&config))
}

/// The model that a `config.json` describes.
pub fn from_file(path: impl AsRef<Path>) -> Result<Box<dyn CausalLm>, ConfigError> {
    let path = path.as_ref();
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    from_json(&text)
        .map_err(|source| ConfigError::InFile { path: path.to_owned(), source: Box::new(source) })
}

pub(crate) fn object(text: &str) -> Result<Map<String, Value>, ConfigError> {
    match serde_json::from_str(text) {
        Ok(Value::Object(config)) => Ok(config),
        Ok(other) => Err(ConfigError::Json { reason: format!("it is {other}") }),
        Err(error) => Err(ConfigError::Json { reason: error.to_string() }),
    }
}

fn kind(config: &Map<String, Value>) -> Result<&'static Kind, ConfigError> {
    let known = |field, value: &Value, name: fn(&Kind) -> &'static str| {
        KINDS
            .iter()
            .find(|kind| value == name(kind))
            .ok_or_else(|| ConfigError::UnknownModel { field, value: value.to_string() })
    };
    let given = |field: &str| config.get(field).filter(|value| !value.is_null());
    if let Some(value) = given("model_type") {
        return known("model_type", value, |kind| kind.model_type);
    }
    match given("architectures") {
        Some(value) => {
            known("architectures", value.get(0).unwrap_or(value), |kind| kind.architecture)
        }
        None => Err(ConfigError::NoModel),
    }
}
