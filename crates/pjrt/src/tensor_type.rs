//! The type of a tensor: its element type and dimensions.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::hlo;

/// An element type with dimensions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// The element type.
    pub dtype: DType,
    /// The dimensions, the slowest-varying first.
    pub dims: Vec<usize>,
}

impl TensorType {
    /// A tensor type.
    pub fn new(dtype: DType, dims: &[usize]) -> TensorType {
        TensorType { dtype, dims: dims.to_vec() }
    }

    /// The order of dimensions, the fastest-varying first, of dense row-major data.
    pub(crate) fn row_major(&self) -> Vec<i64> {
        (0..self.dims.len() as i64).rev().collect()
    }

    /// The number of elements; it saturates.
    pub fn elements(&self) -> usize {
        self.dims.iter().fold(1, |count, &dim| count.saturating_mul(dim))
    }

    /// The bytes of a dense tensor of this type; it saturates.
    pub fn bytes(&self) -> usize {
        self.elements().saturating_mul(self.dtype.size())
    }

    /// Checks that `found` bytes of host data are what this type takes.
    pub(crate) fn check_bytes(&self, found: usize) -> Result<()> {
        // Sizes that overflow are refused even where another dimension is zero.
        let extents = self.dims.iter().filter(|&&dim| dim > 0);
        let largest = extents.fold(self.dtype.size(), |bytes, &dim| bytes.saturating_mul(dim));
        match self.bytes() {
            expected if expected == found && isize::try_from(largest).is_ok() => Ok(()),
            expected => Err(Error::HostSize { expected_type: self.clone(), expected, found }),
        }
    }

    /// The type of an array in an optimized program; `what` names it in the error.
    pub(crate) fn from_hlo(shape: &hlo::Shape, what: &str) -> Result<TensorType> {
        let unsupported =
            || Error::UnsupportedType { what: what.to_owned(), found: shape.to_string() };
        let hlo::Shape::Array(array) = shape else { return Err(unsupported()) };
        if array.dynamic {
            return Err(unsupported());
        }
        let dtype = DType::from_element_type(array.element).ok_or_else(unsupported)?;
        Ok(TensorType::new(dtype, &array.dims))
    }
}

impl std::fmt::Display for TensorType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, dim) in self.dims.iter().enumerate() {
            write!(f, "{}{dim}", if i == 0 { "" } else { "," })?;
        }
        f.write_str("]")
    }
}
