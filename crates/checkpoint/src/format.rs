//! Formats of tensors on disk, behind one trait: everything that reads weights (training,
//! evaluation, `fullshard checkpoint`) reads any of them.

use crate::error::{Error, Result};
use crate::runs::read_runs;
use fullshard_core::Part;
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

impl SavedTensor {
    /// A tensor of these dimensions and dtype.
    pub fn new(dims: &[usize], dtype: Dtype) -> SavedTensor {
        SavedTensor { dims: dims.to_vec(), dtype }
    }

    /// Its number of elements. Formats are opened only if it is not too large to count.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// Its number of bytes.
    pub fn bytes(&self) -> u64 {
        self.elements() as u64 * self.dtype.bitsize() as u64 / 8
    }
}

/// The number of elements of these dimensions, unless it overflows.
pub(crate) fn checked_elements(dims: &[usize]) -> Option<usize> {
    dims.iter().try_fold(1_usize, |product, &dim| product.checked_mul(dim))
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

    /// Reads a part of a tensor, whose elements need not be contiguous, into `out`.
    fn read_shard(&self, name: &str, shard: &Part, out: &mut [u8]) -> Result<()> {
        let tensor = self.check_request(name, shard, out)?;
        if !shard.is_box() {
            return self.read(name, shard.span(&tensor.dims), out);
        }
        let bits = tensor.dtype.bitsize();
        if !bits.is_multiple_of(8) {
            let (name, dtype) = (name.to_owned(), tensor.dtype.to_string());
            return Err(Error::DType { path: self.path().to_owned(), name, dtype });
        }
        let runs = shard.runs(&tensor.dims);
        read_runs(runs, bits / 8, out, |elements, out| self.read(name, elements, out))
    }

    /// Checks a request for a part: the tensor, which is returned, has it, and `out` its bytes.
    fn check_request(&self, name: &str, part: &Part, out: &[u8]) -> Result<&SavedTensor> {
        let path = || self.path().to_owned();
        let tensor = self.tensors().get(name);
        let tensor =
            tensor.ok_or_else(|| Error::Missing { path: path(), names: vec![name.to_owned()] })?;
        let fits = part.fits(&tensor.dims);
        let bits = fits.then(|| part.elements().checked_mul(tensor.dtype.bitsize())).flatten();
        if bits.map(|bits| bits / 8) != Some(out.len()) {
            return Err(Error::Range {
                path: path(),
                name: name.to_owned(),
                part: part.clone(),
                dims: tensor.dims.clone(),
            });
        }
        Ok(tensor)
    }
}
