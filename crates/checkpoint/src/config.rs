//! The config files of a model, next to its weights.

use crate::error::{Error, Result};
use crate::export::WeightDtype;
use crate::place::write_json;
use serde_json::{Map, Value, json};
use std::path::Path;

/// Hugging Face's names of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelNames<'a> {
    /// Its `model_type`, such as `gpt2`.
    pub model_type: &'a str,
    /// Its class, such as `GPT2LMHeadModel`.
    pub architecture: &'a str,
}

/// Writes a model's `config.json` and `generation_config.json` into a folder.
///
/// The config is written unchanged except for the architecture, the model type and the `dtype`,
/// which is that of the exported weights. `torch_dtype` and `transformers_version` are dropped.
pub fn write_config(
    dir: impl AsRef<Path>,
    config: &Value,
    names: ModelNames<'_>,
    dtype: WeightDtype,
) -> Result<()> {
    let dir = dir.as_ref();
    let mut config = exported_config(config, Some(dtype))?;
    config.insert("architectures".to_owned(), json!([names.architecture]));
    config.insert("model_type".to_owned(), json!(names.model_type));
    if let Some(generation) = generation_config(&config) {
        write_json(dir.join("generation_config.json"), &generation, 2)?;
    }
    write_json(dir.join("config.json"), &config, 2)
}

/// The config of a model whose weights are written in a dtype; unchanged if that is not given.
pub(crate) fn exported_config(
    config: &Value,
    dtype: Option<WeightDtype>,
) -> Result<Map<String, Value>> {
    let Value::Object(config) = config else {
        return Err(Error::Config { found: config.to_string() });
    };
    let mut config = config.clone();
    if let Some(dtype) = dtype {
        for outdated in ["torch_dtype", "transformers_version"] {
            config.remove(outdated);
        }
        config.insert("dtype".to_owned(), json!(dtype.config_name()));
    }
    Ok(config)
}

/// The tokens that generated text starts and ends with. `None` if the config has no end token:
/// without the file, `transformers` uses the defaults of the model.
fn generation_config(config: &Map<String, Value>) -> Option<Map<String, Value>> {
    let given = |key: &str| config.get(key).filter(|value| !value.is_null());
    given("eos_token_id")?;
    let tokens = ["bos_token_id", "eos_token_id", "pad_token_id"];
    let mut generation: Map<String, Value> =
        tokens.iter().filter_map(|&key| Some((key.to_owned(), given(key)?.clone()))).collect();
    generation.insert("_from_model_config".to_owned(), Value::Bool(true));
    Some(generation)
}
