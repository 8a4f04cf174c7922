//! The files beside the weights that say what model they are of.

use crate::error::{Error, Result};
use crate::place::write_json;
use serde_json::{Map, Value, json};
use std::path::Path;

/// What Hugging Face calls a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelNames<'a> {
    /// Its `model_type`, such as `gpt2`.
    pub model_type: &'a str,
    /// Its class, such as `GPT2LMHeadModel`.
    pub architecture: &'a str,
}

/// Writes a model's `config.json` and `generation_config.json` into a folder.
///
/// The config is written as it was given but for what these weights are: their architecture,
/// model type and, as they are exported, their `dtype` of `float32`. What a version of
/// `transformers` has noted of itself is left out.
pub fn write_config(dir: impl AsRef<Path>, config: &Value, names: ModelNames<'_>) -> Result<()> {
    let dir = dir.as_ref();
    let Value::Object(config) = config else {
        return Err(Error::Config { found: config.to_string() });
    };
    let mut config = config.clone();
    for outdated in ["torch_dtype", "transformers_version"] {
        config.remove(outdated);
    }
    config.insert("architectures".to_owned(), json!([names.architecture]));
    config.insert("model_type".to_owned(), json!(names.model_type));
    config.insert("dtype".to_owned(), json!("float32"));
    if let Some(generation) = generation_config(&config) {
        write_json(dir.join("generation_config.json"), &generation, 2)?;
    }
    write_json(dir.join("config.json"), &config, 2)
}

/// The tokens that generated text begins and ends with. None if the config does not say where it
/// ends: without the file, `transformers` goes by what the model usually has.
fn generation_config(config: &Map<String, Value>) -> Option<Map<String, Value>> {
    let given = |key: &str| config.get(key).filter(|value| !value.is_null());
    given("eos_token_id")?;
    let tokens = ["bos_token_id", "eos_token_id", "pad_token_id"];
    let mut generation: Map<String, Value> =
        tokens.iter().filter_map(|&key| Some((key.to_owned(), given(key)?.clone()))).collect();
    generation.insert("_from_model_config".to_owned(), Value::Bool(true));
    Some(generation)
}
