//! The type of a tensor: its element type and dimensions.

use crate::dtype::DType;

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

    /// A tensor of no dimensions.
    pub fn scalar(dtype: DType) -> TensorType {
        TensorType::new(dtype, &[])
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// The number of elements; it saturates.
    pub fn elements(&self) -> usize {
        self.dims.iter().fold(1, |count, &dim| count.saturating_mul(dim))
    }

    /// The same dimensions with another element type.
    pub fn with_dtype(&self, dtype: DType) -> TensorType {
        TensorType::new(dtype, &self.dims)
    }
}

impl std::fmt::Display for TensorType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("tensor<")?;
        for dim in &self.dims {
            write!(f, "{dim}x")?;
        }
        write!(f, "{}>", self.dtype)
    }
}
