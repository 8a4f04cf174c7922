//! Reductions over dimensions.

use crate::error::{Error, Result};
use crate::op::{Op, Reduction};
use crate::tensor::Tensor;
use crate::trace::emit_one;
use fullshard_core::{DType, TensorType};

impl Tensor {
    /// Reduced over dimensions, which go. Sums and products of types with fewer bits than `f32`
    /// are made in `f32` and rounded once: some compilers round after every step.
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
        if matches!(kind, Reduction::Sum | Reduction::Product) && self.has_few_bits() {
            return self.convert(DType::F32)?.reduce(kind, &dims)?.convert(self.dtype());
        }
        let kept = (0..self.rank()).filter(|dim| !dims.contains(dim));
        let left: Vec<usize> = kept.map(|dim| self.dims()[dim]).collect();
        let ty = TensorType::new(self.dtype(), &left);
        emit_one("reduce", Op::Reduce { kind, dims }, &[self], ty)
    }

    fn has_few_bits(&self) -> bool {
        self.dtype().is_float() && self.dtype().size() < DType::F32.size()
    }

    /// The sum over dimensions.
    pub fn sum(&self, dims: &[usize]) -> Result<Tensor> {
        self.reduce(Reduction::Sum, dims)
    }

    /// The sum of everything.
    pub fn sum_all(&self) -> Result<Tensor> {
        self.sum(&(0..self.rank()).collect::<Vec<_>>())
    }

    /// The mean over dimensions.
    pub fn mean(&self, dims: &[usize]) -> Result<Tensor> {
        if self.has_few_bits() {
            // Neither the sum nor one over the count is exact in so few bits.
            return self.convert(DType::F32)?.mean(dims)?.convert(self.dtype());
        }
        let sum = self.sum(dims)?;
        if !self.dtype().is_float() {
            return Err(Error::new("mean", format!("{} has no means; convert it", self.ty())));
        }
        let count = self.ty().elements() / sum.ty().elements().max(1);
        sum / count.max(1) as f64
    }

    /// The mean of everything.
    pub fn mean_all(&self) -> Result<Tensor> {
        self.mean(&(0..self.rank()).collect::<Vec<_>>())
    }

    /// The largest over dimensions.
    pub fn max(&self, dims: &[usize]) -> Result<Tensor> {
        self.reduce(Reduction::Max, dims)
    }

    /// The smallest over dimensions.
    pub fn min(&self, dims: &[usize]) -> Result<Tensor> {
        self.reduce(Reduction::Min, dims)
    }

    /// Put back where a reduction over `dims` left it out: dimensions of one, repeated to `full`.
    pub(crate) fn spread(&self, full: &[usize], dims: &[usize]) -> Result<Tensor> {
        let places: Vec<usize> = (0..full.len()).filter(|dim| !dims.contains(dim)).collect();
        self.broadcast_dims(full, &places)
    }
}
