//! The files next to a `tokenizer.json` that `transformers` needs.

use super::gpt2::END_OF_TEXT;
use crate::{Error, Result};
use serde_json::{Map, Value, json};
use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tokenizers::{Model, ModelWrapper, Tokenizer};

const CONFIG: &str = "tokenizer_config.json";
const SPECIAL_TOKENS: &str = "special_tokens_map.json";

/// The contents of the files, unchanged.
pub(crate) struct Files {
    config: Map<String, Value>,
    special_tokens: Option<Value>,
}

impl Files {
    pub(super) fn gpt2() -> Self {
        let special = json!({
            "bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT, "unk_token": END_OF_TEXT,
        });
        let mut config = Map::new();
        config.extend(special.as_object().cloned().unwrap_or_default());
        config.insert("add_prefix_space".into(), false.into());
        config.insert("model_max_length".into(), 1024.into());
        config.insert("tokenizer_class".into(), "GPT2Tokenizer".into());
        Self { config, special_tokens: Some(special) }
    }

    /// For a tokenizer with only a `tokenizer.json`.
    fn plain() -> Self {
        let mut config = Map::new();
        config.insert("tokenizer_class".into(), "PreTrainedTokenizerFast".into());
        Self { config, special_tokens: None }
    }

    /// For a word-level tokenizer, with its end-of-sequence and unknown tokens.
    pub(crate) fn word_level(end: &str, unknown: &str) -> Self {
        let mut files = Self::plain();
        files.config.insert("eos_token".into(), end.into());
        files.config.insert("unk_token".into(), unknown.into());
        files
    }

    /// Reads the files next to a `tokenizer.json`.
    pub(super) fn read(directory: &Path) -> Result<Self> {
        let mut files = Self::plain();
        if let Some(Value::Object(config)) = read_json(&directory.join(CONFIG))? {
            files.config = config;
        }
        files.special_tokens = read_json(&directory.join(SPECIAL_TOKENS))?;
        Ok(files)
    }

    /// `model_max_length`; tokenizers without a limit store a very large number there.
    pub(super) fn max_length(&self) -> Option<usize> {
        let length = self.config.get("model_max_length")?.as_f64()?;
        (1.0..1e12).contains(&length).then_some(length as usize)
    }

    pub(super) fn write(&self, directory: &Path, tokenizer: &Tokenizer, name: &str) -> Result<()> {
        let bad = |error: tokenizers::Error| Error::BadTokenizer {
            name: name.into(),
            reason: error.to_string(),
        };
        let text = tokenizer.to_string(true).map_err(bad)?;
        write(&directory.join("tokenizer.json"), &text)?;
        write(&directory.join(CONFIG), &pretty(&Value::Object(self.config.clone())))?;
        if let Some(special_tokens) = &self.special_tokens {
            write(&directory.join(SPECIAL_TOKENS), &pretty(special_tokens))?;
        }
        if let ModelWrapper::BPE(model) = tokenizer.get_model() {
            model.save(directory, None).map_err(bad)?; // vocab.json and merges.txt
        }
        Ok(())
    }
}

fn read_json(path: &Path) -> Result<Option<Value>> {
    if !path.is_file() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(path).map_err(Error::io("read", path))?;
    let value = serde_json::from_str(&text).map_err(|error| Error::BadTokenizer {
        name: path.display().to_string(),
        reason: format!("not JSON: {error}"),
    })?;
    Ok(Some(value))
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

/// Writes a file under a temporary name, then renames it.
fn write(path: &Path, text: &str) -> Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new()
        // The mode of any new file; temporary files are private by default.
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(directory)
        .map_err(Error::io("write", path))?;
    file.write_all(text.as_bytes()).map_err(Error::io("write", path))?;
    file.persist(path).map_err(|error| error.error).map_err(Error::io("write", path))?;
    Ok(())
}
