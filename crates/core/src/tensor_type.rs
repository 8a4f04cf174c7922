//! The type of a tensor: its element type and dimensions.

use crate::DType;

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

    /// The bytes of a dense tensor of this type; it saturates.
    pub fn bytes(&self) -> usize {
        self.elements().saturating_mul(self.dtype.size())
    }

    /// The same dimensions with another element type.
    pub fn with_dtype(&self, dtype: DType) -> TensorType {
        TensorType::new(dtype, &self.dims)
    }
}

impl std::fmt::Display for TensorType {
    /// As in HLO: `f32[2,3]`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, dim) in self.dims.iter().enumerate() {
            write!(f, "{}{dim}", if i == 0 { "" } else { "," })?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displays_as_in_hlo() {
        assert_eq!(TensorType::new(DType::Bf16, &[2, 3]).to_string(), "bf16[2,3]");
        assert_eq!(TensorType::scalar(DType::Bool).to_string(), "pred[]");
    }

    #[test]
    fn sizes_saturate() {
        let huge = TensorType::new(DType::F64, &[usize::MAX, 2]);
        assert_eq!((huge.elements(), huge.bytes()), (usize::MAX, usize::MAX));
        assert_eq!(TensorType::new(DType::F64, &[3, 2]).bytes(), 48);
    }
}
