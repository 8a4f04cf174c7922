//! Formats of tensors on disk, behind one trait: everything that reads weights (training,
//! evaluation, `fullshard checkpoint`) reads any of them.

use crate::error::Result;
use safetensors::Dtype;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Range;
use std::path::Path;

/// The dimensions and dtype of a saved tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedTensor {
    /// Its dimensions.
    pub dims: Vec<usize>,
    /// Its dtype.
    pub dtype: Dtype,
}

/// Tensors on disk, read in part.
pub trait Format: Debug + Send + Sync {
    /// The name of the format, as printed.
    fn name(&self) -> &'static str;

    /// The file or folder, for messages.
    fn path(&self) -> &Path;

    /// All tensors by their saved names.
    fn tensors(&self) -> &BTreeMap<String, SavedTensor>;

    /// Reads a range of a tensor's elements, in row-major order, into `out`: little-endian bytes
    /// of its dtype, as many as the range has.
    fn read(&self, name: &str, elements: Range<usize>, out: &mut [u8]) -> Result<()>;
}
