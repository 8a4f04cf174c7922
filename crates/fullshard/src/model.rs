//! Where the model comes from: a config, the defaults of a type, or a folder with weights.

use crate::config::{ConfigSource, FlagValue, Model};
use crate::error::{Error, Result};
use fullshard_checkpoint::Weights;
use fullshard_models::{CausalLm, ConfigError, from_json};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// A model, how it is described and what it is initialized from.
pub struct ChosenModel {
    /// The model.
    pub model: Box<dyn CausalLm>,
    /// Its config.json.
    pub config: Value,
    /// Its weights, if it does not begin anew.
    pub weights: Option<Weights>,
    /// A tokenizer that comes with it.
    pub tokenizer: Option<PathBuf>,
}

impl ChosenModel {
    /// What a config names; `None` if it names no model.
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

    /// A new model of a config.
    pub fn of_config(config: Value) -> Result<ChosenModel> {
        let model = from_json(&config.to_string())?;
        Ok(ChosenModel { model, config, weights: None, tokenizer: None })
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
        if !folder.is_dir() {
            return Err(Error::Usage(format!(
                "--model_name_or_path is {}, which is no folder here: models are not fetched, \
                 download it and name its folder",
                folder.display()
            )));
        }
        let path = folder.join("config.json");
        let chosen = ChosenModel::of_file(&path, read_config(&path)?)?;
        let weights = Some(Weights::open(folder)?);
        let tokenizer = folder.join("tokenizer.json").is_file().then(|| folder.to_owned());
        Ok(ChosenModel { weights, tokenizer, ..chosen })
    }

    /// What Hugging Face calls this type of model.
    pub fn model_type(&self) -> String {
        let stated = self.config.get("model_type").and_then(Value::as_str).map(str::to_owned);
        let class = self.model.tree().class;
        let known = DEFAULTS.iter().find(|known| known.architecture == class);
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

struct Defaults {
    model_type: &'static str,
    architecture: &'static str,
    config: fn() -> Value,
}

/// Hugging Face's defaults, which say what can be overridden and of what kind it is.
const DEFAULTS: &[Defaults] = &[
    Defaults {
        model_type: "gpt2",
        architecture: "GPT2LMHeadModel",
        config: || {
            json!({
                "model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 768,
                "n_layer": 12, "n_head": 12, "n_inner": null, "activation_function": "gelu_new",
                "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
                "layer_norm_epsilon": 1e-5, "initializer_range": 0.02,
                "scale_attn_weights": true, "scale_attn_by_inverse_layer_idx": false,
                "reorder_and_upcast_attn": false, "tie_word_embeddings": true,
                "bos_token_id": 50256, "eos_token_id": 50256,
            })
        },
    },
    Defaults {
        model_type: "llama",
        architecture: "LlamaForCausalLM",
        config: || {
            json!({
                "model_type": "llama", "vocab_size": 32000, "hidden_size": 4096,
                "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
                "num_key_value_heads": null, "hidden_act": "silu",
                "max_position_embeddings": 2048, "initializer_range": 0.02,
                "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "rope_theta": 10000.0,
                "attention_bias": false, "mlp_bias": false, "bos_token_id": 1, "eos_token_id": 2,
            })
        },
    },
];

/// The defaults of a type with `key=value,key=value` put in.
fn default_config(model_type: &str, overrides: &str) -> Result<Value> {
    let Some(known) = DEFAULTS.iter().find(|known| known.model_type == model_type) else {
        let names: Vec<&str> = DEFAULTS.iter().map(|known| known.model_type).collect();
        let names = names.join(" and ");
        return Err(Error::Usage(format!(
            "--model_type is `{model_type}`, but the types known are {names}"
        )));
    };
    let Value::Object(mut config) = (known.config)() else { return Ok(Value::Null) };
    for pair in overrides.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        put(&mut config, pair).map_err(|reason| {
            Error::Usage(format!("--config_overrides has `{pair}`, but {reason}"))
        })?;
    }
    Ok(Value::Object(config))
}

/// Puts a `key=value` in, as what the old value is.
fn put(config: &mut Map<String, Value>, pair: &str) -> Result<(), String> {
    let (key, text) = pair.split_once('=').ok_or("key=value is needed")?;
    let Some(old) = config.get(key) else {
        let meant = fullshard_parallel::nearest(key, config.keys().map(String::as_str));
        let meant = meant.map(|meant| format!("; perhaps `{meant}` was meant"));
        return Err(format!("the config has no `{key}`{}", meant.unwrap_or_default()));
    };
    let value = match old {
        Value::Bool(_) => bool::read(&[text.to_owned()]).ok().map(Value::Bool),
        Value::String(_) => Some(Value::from(text)),
        Value::Number(number) if number.is_f64() => text.parse::<f64>().ok().map(Value::from),
        _ => text.parse::<u64>().ok().map(Value::from),
    };
    let wrong = || format!("`{text}` is of another kind than its default, {old}");
    let value = value.ok_or_else(wrong)?;
    config.insert(key.to_owned(), value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_configs_and_can_be_overridden() {
        for known in DEFAULTS {
            let chosen = ChosenModel::of_config((known.config)()).unwrap();
            assert_eq!(chosen.model.tree().class, known.architecture);
            assert_eq!(chosen.model_type(), known.model_type);
        }
        let config = default_config("gpt2", "n_layer=2, n_inner=7,embd_pdrop=0").unwrap();
        assert_eq!(
            (&config["n_layer"], &config["n_inner"], &config["embd_pdrop"]),
            (&json!(2), &json!(7), &json!(0.0))
        );
    }
}
