//! Writes weights of any format as a model of Hugging Face, a few MB at a time.

use crate::config::exported_config;
use crate::error::{Error, Result};
use crate::export::{PassOn, TensorEntry, TypedEntry, WeightDtype, export_typed, write_values};
use crate::import::Weights;
use crate::opened::Opened;
use crate::place::{check_output, write_file, write_folder, write_json};
use safetensors::Dtype;
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;

/// The config of a model, whose dtype becomes the one requested.
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

/// Elements that are converted at once.
const CHUNK: usize = 1 << 22;

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Consolidated {
    /// The number of tensors.
    pub tensors: usize,
    /// Their bytes.
    pub bytes: u64,
    /// The number of tensors of each dtype.
    pub dtypes: BTreeMap<String, usize>,
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

/// Writes weights into a new folder, with the configs and the tokenizer beside them. Floats are
/// converted to a dtype, if one is given; other tensors stay as they are. `progress` is called with
/// the bytes read since the last call.
pub fn consolidate(
    source: Opened,
    output: &Path,
    max_shard_bytes: u64,
    dtype: Option<WeightDtype>,
    progress: &mut dyn FnMut(u64),
) -> Result<Consolidated> {
    check_output(output)?;
    let config = config(&source, dtype)?;
    let mut others = Vec::new();
    for name in OTHERS {
        others.extend(source.read_file(name)?.map(|content| (name, content)));
    }
    let weights = Weights::new(source.into_format());
    let entries = entries(&weights, dtype)?;
    write_folder(output, |folder| {
        let mut values = |tensor: &TensorEntry, write: &mut PassOn<'_>| {
            copy(&weights, &tensor.name, dtype, progress, write)
        };
        let exported = export_typed(folder, &entries, max_shard_bytes, &mut values)?;
        for (name, content) in &others {
            write_file(folder.join(name), content)?;
        }
        if let Some(config) = &config {
            write_json(folder.join(CONFIG), config, 2)?;
        }
        let mut dtypes = BTreeMap::new();
        for entry in &entries {
            *dtypes.entry(entry.dtype.to_string()).or_default() += 1;
        }
        let files = exported.files.iter().filter_map(|path| path.file_name());
        let names = config.iter().map(|_| CONFIG).chain(others.iter().map(|(name, _)| *name));
        Ok(Consolidated {
            tensors: entries.len(),
            bytes: exported.bytes,
            dtypes,
            files: files.map(|name| name.to_string_lossy().into_owned()).collect(),
            others: names.map(str::to_owned).collect(),
        })
    })
}

/// The config beside the weights, for the dtype that they are written in.
fn config(source: &Opened, dtype: Option<WeightDtype>) -> Result<Option<Map<String, Value>>> {
    let Some(text) = source.read_file(CONFIG)? else { return Ok(None) };
    let config = serde_json::from_slice(&text).map_err(|error| Error::Damaged {
        path: source.folder().join(CONFIG),
        reason: format!("it is not JSON ({error})"),
    })?;
    exported_config(&config, dtype).map(Some)
}

/// The tensors to write, without buffers.
fn entries(weights: &Weights, dtype: Option<WeightDtype>) -> Result<Vec<TypedEntry>> {
    let entries = weights.names().map(|name| {
        let saved = weights.dtype(name)?;
        let dtype = dtype.filter(|_| is_float(saved)).map_or(saved, WeightDtype::saved);
        Ok(TypedEntry { entry: TensorEntry::new(name, weights.dims(name)?), dtype })
    });
    entries.collect()
}

/// Passes the bytes of a tensor on, floats in the given dtype.
fn copy(
    weights: &Weights,
    name: &str,
    dtype: Option<WeightDtype>,
    progress: &mut dyn FnMut(u64),
    write: &mut PassOn<'_>,
) -> Result<()> {
    let saved = weights.dtype(name)?;
    let dtype = dtype.filter(|dtype| is_float(saved) && dtype.saved() != saved);
    let elements = weights.dims(name)?.iter().product();
    let (mut bytes, mut values) = (Vec::new(), Vec::new());
    for start in (0..elements).step_by(CHUNK) {
        let range = start..(start + CHUNK).min(elements);
        let length = range.len() * saved.bitsize() / 8;
        match dtype {
            Some(dtype) => {
                values.resize(range.len(), 0.0);
                weights.read_range_f32(name, range, &mut values)?;
                write_values(&values, dtype, write)?;
            }
            None => {
                bytes.resize(length, 0);
                weights.format().read(name, range, &mut bytes)?;
                write(&bytes)?;
            }
        }
        progress(length as u64);
    }
    Ok(())
}

/// Whether a dtype is one that weights are converted from.
fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16)
}
