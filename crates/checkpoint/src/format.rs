//! Formats of tensors on disk, behind one trait: everything that reads weights (training,
//! evaluation, `fullshard checkpoint`) reads any of them.

use crate::error::{Error, Result};
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

    /// Checks a request to [`read`](Format::read): the tensor has these elements, and `out` has
    /// their bytes.
    fn check_request(&self, name: &str, elements: &Range<usize>, out: &[u8]) -> Result<()> {
        let path = || self.path().to_owned();
        let tensor = self.tensors().get(name);
        let tensor =
            tensor.ok_or_else(|| Error::Missing { path: path(), names: vec![name.to_owned()] })?;
        let bytes = elements.len().checked_mul(tensor.dtype.bitsize()).map(|bits| bits / 8);
        if elements.start > elements.end
            || elements.end > tensor.elements()
            || bytes != Some(out.len())
        {
            return Err(Error::Range {
                path: path(),
                name: name.to_owned(),
                elements: elements.clone(),
                of: tensor.elements(),
            });
        }
        Ok(())
    }
}
