//! Reading Hugging Face's `config.json`: which model it is of, and fields that are what they must
//! be.

use crate::gpt2::Gpt2;
use crate::layers::{Activation, activation};
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

fn object(text: &str) -> Result<Map<String, Value>, ConfigError> {
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

/// The fields of a config or of an object in it. What is not asked for is ignored, as Hugging
/// Face does.
pub(crate) struct Fields<'a> {
    object: &'a Map<String, Value>,
    path: String,
}

impl<'a> Fields<'a> {
    pub fn new(object: &'a Map<String, Value>) -> Fields<'a> {
        Fields { object, path: String::new() }
    }

    /// The value of the first of some names that is there and not null, with its name.
    fn find<'n>(&self, names: &[&'n str]) -> Option<(&'n str, &'a Value)> {
        let found = |&name: &&'n str| self.object.get(name).map(|value| (name, value));
        names.iter().filter_map(found).find(|(_, value)| !value.is_null())
    }

    /// That a field has a value it cannot have.
    pub fn wrong(&self, name: &str, value: impl ToString, expected: &str) -> ConfigError {
        let field = format!("{}{name}", self.path);
        ConfigError::Field { field, value: value.to_string(), expected: expected.to_owned() }
    }

    fn read<T>(
        &self,
        names: &[&str],
        expected: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some((name, value)) = self.find(names) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.wrong(name, value, expected))
    }

    /// A size under the first of its names that is given.
    pub fn optional_size(&self, names: &[&str]) -> Result<Option<usize>, ConfigError> {
        let size = |value: &Value| usize::try_from(value.as_u64()?).ok().filter(|&size| size > 0);
        self.read(names, "a whole number of at least 1", size)
    }

    /// A size, or what it is when it is not given.
    pub fn size(&self, names: &[&str], default: usize) -> Result<usize, ConfigError> {
        Ok(self.optional_size(names)?.unwrap_or(default))
    }

    /// A number that a test holds for, if it is given.
    pub fn optional_number(
        &self,
        name: &str,
        expected: &str,
        holds: impl Fn(f64) -> bool,
    ) -> Result<Option<f64>, ConfigError> {
        self.read(&[name], expected, |value| value.as_f64().filter(|&number| holds(number)))
    }

    /// A number above zero.
    pub fn positive(&self, name: &str, default: f64) -> Result<f64, ConfigError> {
        let found = self.optional_number(name, "a number above 0", |number| number > 0.0)?;
        Ok(found.unwrap_or(default))
    }

    /// A standard deviation.
    pub fn deviation(&self, name: &str, default: f64) -> Result<f64, ConfigError> {
        let found = self.optional_number(name, "a number of at least 0", |number| number >= 0.0)?;
        Ok(found.unwrap_or(default))
    }

    /// A probability of dropping something.
    pub fn dropout(&self, name: &str, default: f64) -> Result<f64, ConfigError> {
        let expected = "a number from 0 to below 1";
        let found = self.optional_number(name, expected, |number| (0.0..1.0).contains(&number))?;
        Ok(found.unwrap_or(default))
    }

    /// A truth value.
    pub fn flag(&self, name: &str, default: bool) -> Result<bool, ConfigError> {
        Ok(self.read(&[name], "true or false", Value::as_bool)?.unwrap_or(default))
    }

    /// A text under the first of its names that is given.
    pub fn text(&self, names: &[&str], expected: &str) -> Result<Option<&'a str>, ConfigError> {
        self.read(names, expected, Value::as_str)
    }

    /// An activation function by its name.
    pub fn activation(&self, name: &str, default: &str) -> Result<Activation, ConfigError> {
        let known: Vec<&str> = activation::ALL.iter().map(|known| known.name).collect();
        let expected = format!("one of {}", known.join(", "));
        let given = self.text(&[name], &expected)?.unwrap_or(default);
        Activation::by_name(given).ok_or_else(|| self.wrong(name, Value::from(given), &expected))
    }

    /// The fields of an object that is a field.
    pub fn object(&self, name: &str) -> Result<Option<Fields<'a>>, ConfigError> {
        let found = self.read(&[name], "an object", Value::as_object)?;
        Ok(found.map(|object| Fields { object, path: format!("{}{name}.", self.path) }))
    }

    /// What a field that cannot be left out has.
    pub fn needed<T>(
        &self,
        name: &str,
        expected: &str,
        found: Option<T>,
    ) -> Result<T, ConfigError> {
        let field = format!("{}{name}", self.path);
        found.ok_or_else(|| ConfigError::Missing { field, expected: expected.to_owned() })
    }
}
