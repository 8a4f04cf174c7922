//! Reading the weights of a model, in any format and under any of their names, as `f32`.

use crate::error::{Error, Result};
use crate::export::TensorEntry;
use crate::format::{Format, SavedTensor};
use fullshard_core::Part;
use half::{bf16, f16};
use safetensors::Dtype;
use std::collections::{BTreeSet, HashSet};
use std::ops::Range;
use std::path::Path;

/// Buffers in old checkpoints: causal masks and rotary frequencies.
const BUFFERS: [&str; 3] = [".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"];

/// Name prefixes that are missing in models saved without their head.
const PREFIXES: [&str; 2] = ["transformer.", "model."];

const HEAD: &str = "lm_head.weight";

/// Embeddings that a head can be tied to; a file may have the two under either name.
const EMBEDDINGS: [&str; 2] = ["transformer.wte.weight", "model.embed_tokens.weight"];

/// Elements that are converted at once.
const CHUNK: usize = 1 << 20;

/// A model's weights on disk.
#[derive(Debug)]
pub struct Weights {
    format: Box<dyn Format>,
    /// The saved names, without buffers.
    names: BTreeSet<String>,
}

impl Weights {
    /// Opens weights in any format that [`open`](crate::open) knows.
    pub fn open(path: impl AsRef<Path>) -> Result<Weights> {
        Ok(Weights::new(crate::open(path)?))
    }

    /// The weights in an opened checkpoint.
    pub fn new(format: Box<dyn Format>) -> Weights {
        let names = format.tensors().keys().filter(|name| !is_buffer(name)).cloned().collect();
        Weights { format, names }
    }

    /// The file, folder or index that was opened.
    pub fn path(&self) -> &Path {
        self.format.path()
    }

    /// What was opened.
    pub(crate) fn format(&self) -> &dyn Format {
        self.format.as_ref()
    }

    /// The saved names of all tensors, without buffers.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// The dimensions of a tensor, by its name in the model.
    pub fn dims(&self, name: &str) -> Result<&[usize]> {
        Ok(&self.find(name)?.1.dims)
    }

    /// The saved dtype of a tensor, by its name in the model.
    pub fn dtype(&self, name: &str) -> Result<Dtype> {
        Ok(self.find(name)?.1.dtype)
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
            return Err(Error::Missing { path: self.path().to_owned(), names: missing });
        }
        for tensor in model {
            self.check_dims(tensor)?;
        }
        let known: HashSet<&str> =
            model.iter().filter_map(|tensor| self.saved_name(&tensor.name)).collect();
        // A head that the model does not list is tied to its embedding.
        let extra = self.names().filter(|&name| name != HEAD && !known.contains(name));
        let names: Vec<String> = extra.map(str::to_owned).collect();
        if names.is_empty() {
            Ok(())
        } else {
            Err(Error::Extra { path: self.path().to_owned(), names })
        }
    }

    fn check_dims(&self, tensor: &TensorEntry) -> Result<()> {
        let (_, saved) = self.find(&tensor.name)?;
        if saved.dims == tensor.dims {
            return Ok(());
        }
        Err(Error::Dims {
            path: self.path().to_owned(),
            name: tensor.name.clone(),
            found: saved.dims.clone(),
            expected: tensor.dims.clone(),
        })
    }

    /// The values of a tensor, by its name in the model, as `f32`.
    pub fn read_f32(&self, name: &str) -> Result<Vec<f32>> {
        let mut values = vec![0.0; self.find(name)?.1.elements()];
        self.read_range_f32(name, 0..values.len(), &mut values)?;
        Ok(values)
    }

    /// Reads a range of a tensor's elements, in row-major order, as `f32`.
    pub fn read_range_f32(
        &self,
        name: &str,
        elements: Range<usize>,
        out: &mut [f32],
    ) -> Result<()> {
        self.read_part_f32(name, &elements.into(), out)
    }

    /// Reads a part of a tensor as `f32`. Other dtypes are converted while they are read, a few MB
    /// at a time.
    pub fn read_part_f32(&self, name: &str, part: &Part, out: &mut [f32]) -> Result<()> {
        let (saved, tensor) = self.find(name)?;
        if !part.fits(&tensor.dims) || part.elements() != out.len() {
            return Err(Error::Range {
                path: self.path().to_owned(),
                name: name.to_owned(),
                part: part.clone(),
                dims: tensor.dims.clone(),
            });
        }
        match tensor.dtype {
            Dtype::F32 => self.format.read_shard(saved, part, bytemuck::cast_slice_mut(out)),
            Dtype::F16 => self.read_as(saved, part, out, f16::to_f32),
            Dtype::BF16 => self.read_as(saved, part, out, bf16::to_f32),
            Dtype::F64 => self.read_as(saved, part, out, |value: f64| value as f32),
            other => Err(Error::DType {
                path: self.path().to_owned(),
                name: name.to_owned(),
                dtype: other.to_string(),
            }),
        }
    }

    fn read_as<T: bytemuck::Pod>(
        &self,
        saved: &str,
        part: &Part,
        mut out: &mut [f32],
        to_f32: impl Fn(T) -> f32,
    ) -> Result<()> {
        let mut buffer = vec![T::zeroed(); out.len().min(CHUNK)];
        for chunk in part.chunks(CHUNK) {
            let values = &mut buffer[..chunk.elements()];
            self.format.read_shard(saved, &chunk, bytemuck::cast_slice_mut(values))?;
            let (converted, rest) = out.split_at_mut(values.len());
            for (out, &value) in converted.iter_mut().zip(values.iter()) {
                *out = to_f32(value);
            }
            out = rest;
        }
        Ok(())
    }

    /// The saved name of a tensor of the model, with its dimensions and dtype.
    fn find(&self, name: &str) -> Result<(&str, &SavedTensor)> {
        self.saved_name(name)
            .and_then(|saved| Some((saved, self.format.tensors().get(saved)?)))
            .ok_or_else(|| Error::Missing {
                path: self.path().to_owned(),
                names: vec![name.to_owned()],
            })
    }

    /// The name under which a tensor of the model is saved.
    fn saved_name(&self, name: &str) -> Option<&str> {
        let bare = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix));
        let tied = EMBEDDINGS.contains(&name).then_some(HEAD);
        let names = [Some(name), bare, tied].into_iter().flatten();
        names.filter_map(|name| self.names.get(name)).next().map(String::as_str)
    }
}

/// The name of a tensor without the prefix that some models are saved without.
pub(crate) fn bare_name(name: &str) -> &str {
    PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name)
}

/// Whether a tensor of this name is no weight.
pub(crate) fn is_buffer(name: &str) -> bool {
    BUFFERS.iter().any(|buffer| name.ends_with(buffer))
}
