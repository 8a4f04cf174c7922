//! Reading weights in Hugging Face's formats, under any of their names.
//!
//! Files are checked when opened, from their headers only; values are read one tensor at a time.

use crate::error::{Error, Result};
use crate::export::{INDEX, MAX_HEADER, SINGLE_FILE, TensorEntry};
use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Buffers in old checkpoints: causal masks and rotary frequencies.
const BUFFERS: [&str; 3] = [".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"];

/// Name prefixes that are missing in models saved without their head.
const PREFIXES: [&str; 2] = ["transformer.", "model."];

const HEAD: &str = "lm_head.weight";

/// Embeddings that a head can be tied to; a file may have the two under either name.
const EMBEDDINGS: [&str; 2] = ["transformer.wte.weight", "model.embed_tokens.weight"];

/// A model's weights on disk.
#[derive(Debug)]
pub struct Weights {
    path: PathBuf,
    files: Vec<Opened>,
    /// The file that each tensor is in.
    tensors: BTreeMap<String, usize>,
}

impl Weights {
    /// Opens a folder with `model.safetensors` or with shards and their index, or one such file.
    pub fn open(path: impl AsRef<Path>) -> Result<Weights> {
        let path = path.as_ref();
        let kind = std::fs::metadata(path).map_err(|source| read_error(path, source))?;
        if !kind.is_dir() {
            return match path.extension().and_then(|extension| extension.to_str()) {
                Some("json") => Weights::sharded(path),
                Some("bin" | "pt" | "pth") => Err(Error::Pickled { path: path.to_owned() }),
                _ => Weights::single_file(path),
            };
        }
        let within = |name: &str| Some(path.join(name)).filter(|path| path.is_file());
        if let Some(file) = within(SINGLE_FILE) {
            return Weights::single_file(&file);
        }
        if let Some(index) = within(INDEX) {
            return Weights::sharded(&index);
        }
        for pickled in ["pytorch_model.bin", "pytorch_model.bin.index.json"] {
            if let Some(path) = within(pickled) {
                return Err(Error::Pickled { path });
            }
        }
        Err(Error::NoWeights { path: path.to_owned() })
    }

    fn single_file(path: &Path) -> Result<Weights> {
        let file = Opened::open(path)?;
        let tensors = file.header.offset_keys().into_iter().map(|name| (name, 0)).collect();
        Ok(Weights::of(path, vec![file], tensors))
    }

    fn sharded(index: &Path) -> Result<Weights> {
        let damaged = |reason: String| Error::Damaged { path: index.to_owned(), reason };
        let names = read_index(index)?;
        let folder = index.parent().unwrap_or_else(|| Path::new("."));
        let mut files: Vec<Opened> = Vec::new();
        let mut tensors = BTreeMap::new();
        for (name, file) in names {
            if Path::new(&file).components().count() != 1 || file == ".." {
                return Err(damaged(format!(
                    "`{name}` is listed in {file}, which is not a file name"
                )));
            }
            let path = folder.join(&file);
            let found = files.iter().position(|opened| opened.path == path);
            let at = match found {
                Some(at) => at,
                None if !path.is_file() => {
                    return Err(damaged(format!("its file {file} is missing")));
                }
                None => {
                    files.push(Opened::open(&path)?);
                    files.len() - 1
                }
            };
            if files[at].header.info(&name).is_none() {
                return Err(damaged(format!("`{name}` is not in {file}, where it is listed")));
            }
            tensors.insert(name, at);
        }
        Ok(Weights::of(index, files, tensors))
    }

    fn of(path: &Path, files: Vec<Opened>, mut tensors: BTreeMap<String, usize>) -> Weights {
        tensors.retain(|name, _| !is_buffer(name));
        Weights { path: path.to_owned(), files, tensors }
    }

    /// The file, or the index, that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The saved names of all tensors, without buffers.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The dimensions of a tensor, by its name in the model.
    pub fn dims(&self, name: &str) -> Result<&[usize]> {
        Ok(&self.find(name)?.1.shape)
    }

    /// Checks that the weights have every tensor of the model except tied ones, with the right
    /// dimensions, and no others.
    pub fn check(&self, model: &[TensorEntry]) -> Result<()> {
        let missing: Vec<String> = model
            .iter()
            .filter(|tensor| self.saved_name(&tensor.name).is_none())
            .map(|tensor| tensor.name.clone())
            .collect();
        if !missing.is_empty() {
            return Err(Error::Missing { path: self.path.clone(), names: missing });
        }
        for tensor in model {
            self.check_dims(tensor)?;
        }
        let known: HashSet<&str> =
            model.iter().filter_map(|tensor| self.saved_name(&tensor.name)).collect();
        // A head that the model does not list is tied to its embedding.
        let extra = self.names().filter(|&name| name != HEAD && !known.contains(name));
        let names: Vec<String> = extra.map(str::to_owned).collect();
        if names.is_empty() { Ok(()) } else { Err(Error::Extra { path: self.path.clone(), names }) }
    }

    fn check_dims(&self, tensor: &TensorEntry) -> Result<()> {
        let (file, info) = self.find(&tensor.name)?;
        if info.shape == tensor.dims {
            return Ok(());
        }
        Err(Error::Dims {
            path: file.path.clone(),
            name: tensor.name.clone(),
            found: info.shape.clone(),
            expected: tensor.dims.clone(),
        })
    }

    /// The values of a tensor, by its name in the model, as `f32`.
    pub fn read_f32(&self, name: &str) -> Result<Vec<f32>> {
        let (file, info) = self.find(name)?;
        match info.dtype {
            Dtype::F32 => file.elements::<f32>(info),
            Dtype::F16 => Ok(converted(&file.elements(info)?, f16::to_f32)),
            Dtype::BF16 => Ok(converted(&file.elements(info)?, bf16::to_f32)),
            Dtype::F64 => Ok(converted(&file.elements(info)?, |value: f64| value as f32)),
            other => Err(Error::DType {
                path: file.path.clone(),
                name: name.to_owned(),
                dtype: other.to_string(),
            }),
        }
    }

    /// Reads a range of the elements of a tensor, by its name in the model, as `f32`.
    pub fn read_range_f32(&self, name: &str, elements: std::ops::Range<usize>, out: &mut [f32]) -> Result<()> {
        out.copy_from_slice(&self.read_f32(name)?[elements]);
        Ok(())
    }

    fn find(&self, name: &str) -> Result<(&Opened, &TensorInfo)> {
        self.saved_name(name)
            .and_then(|saved| {
                let file = &self.files[*self.tensors.get(saved)?];
                Some((file, file.header.info(saved)?))
            })
            .ok_or_else(|| Error::Missing { path: self.path.clone(), names: vec![name.to_owned()] })
    }

    /// The name under which a tensor of the model is saved.
    fn saved_name(&self, name: &str) -> Option<&str> {
        let bare = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix));
        let tied = EMBEDDINGS.contains(&name).then_some(HEAD);
        [Some(name), bare, tied]
            .into_iter()
            .flatten()
            .find_map(|name| self.tensors.get_key_value(name))
            .map(|(saved, _)| saved.as_str())
    }
}

fn is_buffer(name: &str) -> bool {
    BUFFERS.iter().any(|buffer| name.ends_with(buffer))
}

fn read_error(path: &Path, source: io::Error) -> Error {
    Error::Read { path: path.to_owned(), source }
}

/// The file of each tensor.
fn read_index(path: &Path) -> Result<BTreeMap<String, String>> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let text = std::fs::read(path).map_err(|source| read_error(path, source))?;
    let index: Index = serde_json::from_slice(&text).map_err(|error| Error::Damaged {
        path: path.to_owned(),
        reason: format!("it is not an index of weights ({error})"),
    })?;
    Ok(index.weight_map)
}

/// A safetensors file with a valid header.
#[derive(Debug)]
struct Opened {
    path: PathBuf,
    file: File,
    header: Metadata,
    /// The offset of the values.
    start: u64,
}

impl Opened {
    fn open(path: &Path) -> Result<Opened> {
        let read = |source| read_error(path, source);
        let damaged = |reason: String| Error::Damaged { path: path.to_owned(), reason };
        let mut file = File::open(path).map_err(read)?;
        let length = file.metadata().map_err(read)?.len();
        let mut count = [0; 8];
        if length < 8 {
            return Err(damaged(format!("it is {length} bytes long, too short for a header")));
        }
        file.read_exact(&mut count).map_err(read)?;
        let header_length = u64::from_le_bytes(count);
        if header_length > (length - 8).min(MAX_HEADER as u64) {
            return Err(damaged(format!(
                "its header should have {header_length} bytes, but the file has {length}"
            )));
        }
        let mut text = vec![0; header_length as usize];
        file.read_exact(&mut text).map_err(read)?;
        let header: Metadata = serde_json::from_slice(&text)
            .map_err(|error| damaged(format!("its header cannot be read ({error})")))?;
        let start = 8 + header_length;
        let expected = start.saturating_add(header.data_len() as u64);
        if expected != length {
            return Err(damaged(format!("it is {length} bytes long, but should be {expected}")));
        }
        Ok(Opened { path: path.to_owned(), file, header, start })
    }

    /// A tensor's values in their saved dtype.
    fn elements<T: bytemuck::Pod>(&self, info: &TensorInfo) -> Result<Vec<T>> {
        let (from, to) = info.data_offsets;
        let mut values = vec![T::zeroed(); (to - from) / size_of::<T>()];
        self.file
            .read_exact_at(bytemuck::cast_slice_mut(&mut values), self.start + from as u64)
            .map_err(|source| read_error(&self.path, source))?;
        Ok(values)
    }
}

fn converted<T: Copy>(values: &[T], to_f32: impl Fn(T) -> f32) -> Vec<f32> {
    values.iter().map(|&value| to_f32(value)).collect()
}
