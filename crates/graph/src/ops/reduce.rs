//! Reductions over dimensions.

use crate::error::{Error, Result};
use crate::op::{Op, Reduction};
use crate::tensor::Tensor;
use crate::trace::emit_one;
use fullshard_core::{DType, TensorType};

impl Tensor {
    /// Reduces over dimensions, which are removed. Sums and products of types with fewer bits than
    /// `f32` are computed in `f32` and rounded once: some compilers round after every step.
    pub fn reduce(&self, kind: Reduction, dims: &[usize]) -> Result<Tensor> {
        let mut dims = dims.to_vec();
        dims.sort_unstable();
        dims.dedup();
        for &dim in &dims {
            self.check_dim("reduce", dim)?;
        }
        if dims.is_empty() {
            return Ok(self.clone());
        }
        if matches!(kind, Reduction::Sum | Reduction::Product) && self.is_low_precision() {
            return self.convert(DType::F32)?.reduce(kind, &dims)?.convert(self.dtype());
        }
        let kept = (0..self.rank()).filter(|dim| !dims.contains(dim));
        let remaining: Vec<usize> = kept.map(|dim| self.dims()[dim]).collect();
        let ty = TensorType::new(self.dtype(), &remaining);
        emit_one("reduce", Op::Reduce { kind, dims }, &[self], ty)
    }

    fn is_low_precision(&self) -> bool {
        self.dtype().is_float() && self.dtype().size() < DType::F32.size()
    }

    /// The sum over dimensions.
    pub fn sum(&self, dims: &[usize]) -> Result<Tensor> {
        self.reduce(Reduction::Sum, dims)
    }

    /// The sum of all elements.
    pub fn sum_all(&self) -> Result<Tensor> {
        self.sum(&(0..self.rank()).collect::<Vec<_>>())
    }

    /// The mean over dimensions.
    pub fn mean(&self, dims: &[usize]) -> Result<Tensor> {
        if self.is_low_precision() {
            // Neither the sum nor the reciprocal of the count is exact in so few bits.
            return self.convert(DType::F32)?.mean(dims)?.convert(self.dtype());
        }
        let sum = self.sum(dims)?;
        if !self.dtype().is_float() {
            return Err(Error::new("mean", format!("{} is not a float; convert it", self.ty())));
        }
        let count = self.ty().elements() / sum.ty().elements().max(1);
        sum / count.max(1) as f64
    }

    /// The mean of all elements.
    pub fn mean_all(&self) -> Result<Tensor> {
        self.mean(&(0..self.rank()).collect::<Vec<_>>())
    }

    /// The maximum over dimensions.
    pub fn max(&self, dims: &[usize]) -> Result<Tensor> {
        self.reduce(Reduction::Max, dims)
    }

    /// The minimum over dimensions.
    pub fn min(&self, dims: &[usize]) -> Result<Tensor> {
        self.reduce(Reduction::Min, dims)
    }

    /// Broadcasts the result of a reduction over `dims` back to the `full` dimensions.
    pub(crate) fn broadcast_reduced(&self, full: &[usize], dims: &[usize]) -> Result<Tensor> {
        let positions: Vec<usize> = (0..full.len()).filter(|dim| !dims.contains(dim)).collect();
        self.broadcast_dims(full, &positions)
    }
}
