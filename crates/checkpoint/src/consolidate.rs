//! Writes weights of any format as a model of Hugging Face, one tensor at a time.

use crate::config::exported_config;
use crate::error::{Error, Result};
use crate::export::{ExportOptions, TensorEntry, WeightDtype, export};
use crate::import::Weights;
use crate::opened::Opened;
use crate::place::{check_output, write_file, write_folder, write_json};
use safetensors::Dtype;
use serde::Serialize;
use std::path::Path;

/// The config of a model, whose dtype becomes that of the weights.
const CONFIG: &str = "config.json";

/// The other files of a model, if it has them.
const OTHERS: [&str; 11] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
];

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Consolidated {
    /// The number of tensors.
    pub tensors: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Their dtype, by its name in `config.json`.
    pub dtype: &'static str,
    /// The files of weights.
    pub files: Vec<String>,
    /// The files that came with the weights: configs and the tokenizer.
    pub others: Vec<String>,
}

impl Consolidated {
    /// Whether the model has a config, without which `transformers` cannot open it.
    pub fn has_config(&self) -> bool {
        self.others.iter().any(|name| name == CONFIG)
    }
}

/// Writes weights into a new folder, with the configs and the tokenizer beside them. Without a
/// dtype they have the one they are saved in, or `f32` if that is no single one. `progress` is
/// called with the saved bytes of each tensor written.
pub fn consolidate(
    source: Opened,
    output: &Path,
    max_shard_bytes: u64,
    dtype: Option<WeightDtype>,
    progress: &mut dyn FnMut(u64),
) -> Result<Consolidated> {
    check_output(output)?;
    let dtype = dtype.unwrap_or_else(|| saved_dtype(&source));
    let config = source.read_file(CONFIG)?.map(|text| {
        let path = source.format().path().with_file_name(CONFIG);
        let config = serde_json::from_slice(&text).map_err(|error| {
            let reason = format!("it is not JSON ({error})");
            Error::Damaged { path, reason }
        })?;
        exported_config(&config, dtype)
    });
    let config = config.transpose()?;
    let mut others = Vec::new();
    for name in OTHERS {
        others.extend(source.read_file(name)?.map(|content| (name, content)));
    }
    let weights = Weights::new(source.into_format());
    let entries = weights.names().map(|name| Ok(TensorEntry::new(name, weights.dims(name)?)));
    let entries = entries.collect::<Result<Vec<_>>>()?;
    write_folder(output, |folder| {
        let values = |name: &str| -> Result<Vec<f32>> {
            let values = weights.read_f32(name)?;
            progress((values.len() * weights.dtype(name)?.bitsize() / 8) as u64);
            Ok(values)
        };
        let exported = export(folder, &entries, values, &ExportOptions { max_shard_bytes, dtype })?;
        for (name, content) in &others {
            write_file(folder.join(name), content)?;
        }
        if let Some(config) = &config {
            write_json(folder.join(CONFIG), config, 2)?;
        }
        let files = exported.files.iter().filter_map(|path| path.file_name());
        let names = others.iter().map(|(name, _)| *name).chain(config.is_some().then_some(CONFIG));
        Ok(Consolidated {
            tensors: entries.len(),
            bytes: exported.bytes,
            dtype: dtype.config_name(),
            files: files.map(|name| name.to_string_lossy().into_owned()).collect(),
            others: names.map(str::to_owned).collect(),
        })
    })
}

/// The dtype of all tensors, if it is one and can be written.
fn saved_dtype(source: &Opened) -> WeightDtype {
    let all = |dtype| source.format().tensors().values().all(|tensor| tensor.dtype == dtype);
    match () {
        () if all(Dtype::BF16) => WeightDtype::BF16,
        () if all(Dtype::F16) => WeightDtype::F16,
        () => WeightDtype::F32,
    }
}
