//! Writing weights as Hugging Face does: `model.safetensors`, or shards and an index.
//!
//! The `safetensors` crate can stream tensors, but cannot stop if the values of one are not
//! available. So it only makes the header, and the values are written here.

use crate::error::{Error, Result};
use crate::format::checked_elements;
use crate::place::{Staged, write_error, write_json};
use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use serde_json::json;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The file of a model that is not sharded.
pub const SINGLE_FILE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// A tensor by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorEntry {
    /// Its name in Hugging Face's state dict.
    pub name: String,
    /// Its dimensions.
    pub dims: Vec<usize>,
}

impl TensorEntry {
    /// A tensor's name and dimensions.
    pub fn new(name: impl Into<String>, dims: impl Into<Vec<usize>>) -> TensorEntry {
        TensorEntry { name: name.into(), dims: dims.into() }
    }

    fn elements(&self) -> Result<usize> {
        checked_elements(&self.dims)
            .filter(|elements| elements.checked_mul(size_of::<f32>()).is_some())
            .ok_or_else(|| self.too_large())
    }

    fn too_large(&self) -> Error {
        Error::TooLarge { reason: format!("`{}` has dimensions {:?}", self.name, self.dims) }
    }
}

/// The dtype that weights are written in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WeightDtype {
    /// As they are.
    #[default]
    F32,
    /// Rounded to the nearest bfloat16, ties to even.
    BF16,
    /// Rounded to the nearest float16, ties to even; too large values become infinite.
    F16,
}

impl WeightDtype {
    /// Its name in `config.json`.
    pub fn config_name(self) -> &'static str {
        match self {
            WeightDtype::F32 => "float32",
            WeightDtype::BF16 => "bfloat16",
            WeightDtype::F16 => "float16",
        }
    }

    pub(crate) fn saved(self) -> Dtype {
        match self {
            WeightDtype::F32 => Dtype::F32,
            WeightDtype::BF16 => Dtype::BF16,
            WeightDtype::F16 => Dtype::F16,
        }
    }

    /// Bytes per element.
    pub fn bytes(self) -> usize {
        self.saved().bitsize() / 8
    }
}

/// Options of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportOptions {
    /// Maximum bytes of tensors per file. A larger tensor has its own file.
    pub max_shard_bytes: u64,
    /// The dtype of all tensors.
    pub dtype: WeightDtype,
}

impl Default for ExportOptions {
    /// Shards of at most 50 GB, as in `transformers`, in `f32`.
    fn default() -> ExportOptions {
        ExportOptions { max_shard_bytes: 50_000_000_000, dtype: WeightDtype::F32 }
    }
}

/// Parses a size in bytes as Hugging Face's `--max_shard_size` is written: `5GB` is 5·10⁹ bytes,
/// `2GiB` 2·2³⁰, a number alone is bytes.
pub fn parse_size(text: &str) -> Result<u64> {
    const UNITS: [(&str, u64); 9] = [
        ("kib", 1 << 10),
        ("mib", 1 << 20),
        ("gib", 1 << 30),
        ("tib", 1 << 40),
        ("kb", 1_000),
        ("mb", 1_000_000),
        ("gb", 1_000_000_000),
        ("tb", 1_000_000_000_000),
        ("", 1),
    ];
    let lower = text.trim().to_lowercase();
    let unit = UNITS.iter().find_map(|(name, unit)| Some((lower.strip_suffix(name)?, *unit)));
    let bytes = unit.and_then(|(number, unit)| {
        let number = number.trim_end();
        match number.parse::<u64>() {
            Ok(number) => number.checked_mul(unit),
            Err(_) => Some((number.parse::<f64>().ok()? * unit as f64) as u64),
        }
    });
    // Numbers that are not finite or positive come out as 0 or the maximum.
    bytes
        .filter(|&bytes| bytes > 0 && bytes < u64::MAX)
        .ok_or_else(|| Error::Size { text: text.to_owned() })
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// The files with weights, in order.
    pub files: Vec<PathBuf>,
    /// Total bytes of all tensors.
    pub bytes: u64,
}

/// A tensor to be written, with its dtype in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TypedEntry {
    pub entry: TensorEntry,
    pub dtype: Dtype,
}

impl TypedEntry {
    fn bytes(&self) -> Result<usize> {
        let bytes = self.entry.elements()?.checked_mul(self.dtype.bitsize());
        bytes.map(|bits| bits / 8).ok_or_else(|| self.entry.too_large())
    }
}

/// Takes a part of the bytes of a tensor.
pub(crate) type PassOn<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;

/// Writes tensors into a folder, in the order given, in the dtype of the options.
///
/// `values` is called for one tensor at a time, and only one is held in memory. Tied tensors are
/// not listed. Files are renamed into place once all are written; then files of an earlier export
/// that these replace are removed.
pub fn export<E>(
    dir: impl AsRef<Path>,
    tensors: &[TensorEntry],
    mut values: impl FnMut(&str) -> std::result::Result<Vec<f32>, E>,
    options: &ExportOptions,
) -> Result<Exported>
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let dtype = options.dtype.saved();
    let typed = tensors.iter().map(|entry| TypedEntry { entry: entry.clone(), dtype });
    let typed: Vec<TypedEntry> = typed.collect();
    export_typed(dir.as_ref(), &typed, options.max_shard_bytes, &mut |tensor, write| {
        let name = &tensor.name;
        let values = values(name)
            .map_err(|error| Error::Values { name: name.clone(), source: error.into() })?;
        let (expected, found) = (tensor.elements()?, values.len());
        if found != expected {
            return Err(Error::Count { name: name.clone(), expected, found });
        }
        write_values(&values, options.dtype, write)
    })
}

/// Writes tensors into a folder, each in its dtype. `values` passes the bytes of a tensor on.
pub(crate) fn export_typed(
    dir: &Path,
    tensors: &[TypedEntry],
    max_shard_bytes: u64,
    values: &mut dyn FnMut(&TensorEntry, &mut PassOn<'_>) -> Result<()>,
) -> Result<Exported> {
    let mut seen = HashSet::new();
    if let Some(tensor) = tensors.iter().find(|tensor| !seen.insert(&tensor.entry.name)) {
        return Err(Error::Duplicate { name: tensor.entry.name.clone() });
    }
    let shards = shards(tensors, max_shard_bytes)?;
    let mut staged = Vec::new();
    for (i, shard) in shards.iter().enumerate() {
        let path = dir.join(shard_name(i, shards.len()));
        staged.push(Staged::write(&path, |writer| write_shard(&path, writer, shard, values))?);
    }
    let files = staged.into_iter().map(Staged::place).collect::<Result<Vec<_>>>()?;
    let bytes = tensors.iter().map(TypedEntry::bytes).sum::<Result<usize>>()? as u64;
    if shards.len() > 1 {
        write_index(dir, &shards, bytes)?;
    }
    remove_stale(dir, shards.len())?;
    Ok(Exported { files, bytes })
}

/// Splits the list into shards that fit into a file; at least one, which may be empty.
fn shards(tensors: &[TypedEntry], max_shard_bytes: u64) -> Result<Vec<&[TypedEntry]>> {
    let mut shards = Vec::new();
    let (mut start, mut bytes) = (0, 0_u64);
    for (i, tensor) in tensors.iter().enumerate() {
        let more = tensor.bytes()? as u64;
        if i > start && bytes.saturating_add(more) > max_shard_bytes {
            shards.push(&tensors[start..i]);
            (start, bytes) = (i, 0);
        }
        bytes = bytes.saturating_add(more);
    }
    shards.push(&tensors[start..]);
    Ok(shards)
}

/// The name of a file of a given kind, such as `model`: one of several, or the only one.
pub fn shard_file_name(kind: &str, index: usize, of: usize) -> String {
    match of {
        1 => format!("{kind}.safetensors"),
        _ => format!("{kind}-{:05}-of-{of:05}.safetensors", index + 1),
    }
}

fn shard_name(index: usize, of: usize) -> String {
    shard_file_name("model", index, of)
}

fn write_shard(
    path: &Path,
    writer: &mut dyn Write,
    tensors: &[TypedEntry],
    values: &mut dyn FnMut(&TensorEntry, &mut PassOn<'_>) -> Result<()>,
) -> Result<()> {
    let mut write = |bytes: &[u8]| writer.write_all(bytes).map_err(|e| write_error(path, e));
    write(&header(tensors)?)?;
    for tensor in tensors {
        values(&tensor.entry, &mut write)?;
    }
    Ok(())
}

/// Passes values on in a dtype, converted a few MB at a time.
pub(crate) fn write_values(
    values: &[f32],
    dtype: WeightDtype,
    write: &mut PassOn<'_>,
) -> Result<()> {
    match dtype {
        WeightDtype::F32 => write(bytemuck::cast_slice(values)),
        WeightDtype::BF16 => write_as(values, bf16::from_f32, write),
        WeightDtype::F16 => write_as(values, f16::from_f32, write),
    }
}

fn write_as<T: bytemuck::Pod>(
    values: &[f32],
    convert: fn(f32) -> T,
    write: &mut PassOn<'_>,
) -> Result<()> {
    let mut converted = Vec::new();
    for chunk in values.chunks(1 << 20) {
        converted.clear();
        converted.extend(chunk.iter().map(|&value| convert(value)));
        write(bytemuck::cast_slice(&converted))?;
    }
    Ok(())
}

/// The header length and the header, padded to align the values.
fn header(tensors: &[TypedEntry]) -> Result<Vec<u8>> {
    let mut infos = Vec::with_capacity(tensors.len());
    let mut offset = 0_usize;
    for tensor in tensors {
        let TypedEntry { entry, dtype } = tensor;
        let end = offset.checked_add(tensor.bytes()?).ok_or_else(|| entry.too_large())?;
        let (shape, data_offsets) = (entry.dims.clone(), (offset, end));
        infos.push((entry.name.clone(), TensorInfo { dtype: *dtype, shape, data_offsets }));
        offset = end;
    }
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    crate::header::encode(infos, format)
}

fn write_index(dir: &Path, shards: &[&[TypedEntry]], bytes: u64) -> Result<()> {
    let (mut files, mut parameters) = (BTreeMap::new(), 0);
    for (i, shard) in shards.iter().enumerate() {
        for TypedEntry { entry, .. } in *shard {
            files.insert(&entry.name, shard_name(i, shards.len()));
            parameters += entry.elements()?;
        }
    }
    let index = json!({
        "metadata": { "total_parameters": parameters, "total_size": bytes },
        "weight_map": files,
    });
    write_json(dir.join(INDEX), &index, 2)
}

/// Removes files of an export with another number of shards: readers would load them.
fn remove_stale(dir: &Path, shards: usize) -> Result<()> {
    let read = |source| Error::Read { path: dir.to_owned(), source };
    for entry in std::fs::read_dir(dir).map_err(read)? {
        let name = entry.map_err(read)?.file_name();
        if name.to_str().is_some_and(|name| is_stale(name, shards)) {
            let path = dir.join(name);
            std::fs::remove_file(&path).map_err(|source| write_error(&path, source))?;
        }
    }
    Ok(())
}

fn is_stale(name: &str, shards: usize) -> bool {
    if name == SINGLE_FILE {
        return shards > 1;
    }
    if name == INDEX {
        return shards == 1;
    }
    let numbers = name
        .strip_prefix("model-")
        .and_then(|name| name.strip_suffix(".safetensors"))
        .and_then(|name| name.split_once("-of-"));
    numbers.is_some_and(|(index, of)| {
        let number = |text: &str| text.parse::<usize>().ok().filter(|_| text.len() == 5);
        number(index).is_some() && number(of).is_some_and(|of| shards == 1 || of != shards)
    })
}
