//! Model selection: a config, the defaults of a model type, or a checkpoint folder. Names on the
//! hub are folders by now.

use crate::config::{ConfigSource, Model};
use crate::error::{Error, Result};
use fullshard_models::{AnyModel, ConfigError, architectures, from_json};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A model, its config and its tokenizer.
pub struct ChosenModel {
    /// The model.
    pub model: Box<dyn AnyModel>,
    /// Its config.json.
    pub config: Value,
    /// The tokenizer of its checkpoint.
    pub tokenizer: Option<PathBuf>,
}

impl ChosenModel {
    /// The model of a config; `None` if it names none.
    pub fn of(model: &Model) -> Result<Option<ChosenModel>> {
        if let Some(folder) = &model.pretrained {
            return ChosenModel::of_folder(folder).map(Some);
        }
        match &model.config {
            Some(ConfigSource::Path(path)) => {
                let path = if path.is_dir() { path.join("config.json") } else { path.clone() };
                let config = read_config(&path)?;
                return ChosenModel::of_file(&path, config).map(Some);
            }
            Some(ConfigSource::Inline(config)) => {
                return ChosenModel::of_config(Value::Object(config.clone())).map(Some);
            }
            None => {}
        }
        let Some(model_type) = &model.model_type else { return Ok(None) };
        let overrides = model.overrides.as_deref().unwrap_or_default();
        ChosenModel::of_config(default_config(model_type, overrides)?).map(Some)
    }

    /// A model from scratch with a config.
    pub fn of_config(config: Value) -> Result<ChosenModel> {
        let model = from_json(&config.to_string())?;
        Ok(ChosenModel { model, config, tokenizer: None })
    }

    fn of_file(path: &Path, config: Value) -> Result<ChosenModel> {
        let in_file = |source| match source {
            Error::Model(source) => {
                let (path, source) = (path.to_owned(), Box::new(source));
                Error::Model(ConfigError::InFile { path, source })
            }
            other => other,
        };
        ChosenModel::of_config(config).map_err(in_file)
    }

    fn of_folder(folder: &Path) -> Result<ChosenModel> {
        let path = folder.join("config.json");
        let chosen = ChosenModel::of_file(&path, read_config(&path)?)?;
        let tokenizer = folder.join("tokenizer.json").is_file().then(|| folder.to_owned());
        Ok(ChosenModel { tokenizer, ..chosen })
    }

    /// Hugging Face's model type.
    pub fn model_type(&self) -> String {
        let stated = self.config.get("model_type").and_then(Value::as_str).map(str::to_owned);
        let known = architectures();
        let known = known.iter().find(|known| known.class == self.model.class());
        stated.or_else(|| known.map(|known| known.model_type.to_owned())).unwrap_or_default()
    }
}

fn read_config(path: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    serde_json::from_str(&text).map_err(|error| {
        let source = Box::new(ConfigError::Json { reason: error.to_string() });
        Error::Model(ConfigError::InFile { path: path.to_owned(), source })
    })
}

/// The default config of a model type with `key=value,key=value` overrides.
fn default_config(model_type: &str, overrides: &str) -> Result<Value> {
    fullshard_models::default_config(model_type, overrides).map_err(|error| match error {
        ConfigError::UnknownModel { .. } => {
            let names: Vec<&str> = architectures().iter().map(|known| known.model_type).collect();
            let names = names.join(", ");
            Error::Usage(format!("--model_type is `{model_type}`, but must be one of {names}"))
        }
        ConfigError::Override { pair, reason } => {
            Error::Usage(format!("--config_overrides has `{pair}`, but {reason}"))
        }
        other => Error::Model(other),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn default_configs_are_valid_and_overridable() {
        for known in architectures() {
            let chosen = ChosenModel::of_config((known.defaults)()).unwrap();
            assert_eq!(chosen.model.class(), known.class);
            assert_eq!(chosen.model_type(), known.model_type);
        }
        let config = default_config("gpt2", "n_layer=2, n_inner=7,embd_pdrop=0").unwrap();
        assert_eq!(
            (&config["n_layer"], &config["n_inner"], &config["embd_pdrop"]),
            (&json!(2), &json!(7), &json!(0.0))
        );
    }
}
