//! Sorting and picking the largest.

use crate::error::{Error, Result};
use crate::op::Op;
use crate::ops::iota;
use crate::tensor::Tensor;
use crate::trace::emit;
use fullshard_core::DType;

impl Tensor {
    /// The indices that sort a dimension; equal elements keep their order.
    pub fn argsort(&self, dim: usize, descending: bool) -> Result<Tensor> {
        self.check_dim("argsort", dim)?;
        let keys = self.stop_gradient()?;
        let places = iota(DType::I32, self.dims(), dim)?;
        let types = vec![keys.ty().clone(), places.ty().clone()];
        let op = Op::Sort { dim, descending };
        let mut sorted = emit("sort", op, &[&keys, &places], types)?;
        Ok(sorted.pop().unwrap_or(places))
    }

    /// Sorted along a dimension.
    pub fn sort(&self, dim: usize, descending: bool) -> Result<Tensor> {
        self.check_dim("sort", dim)?;
        self.take_along(&self.argsort(dim, descending)?, dim)
    }

    /// The largest `k` along the last dimension, largest first, and their indices.
    pub fn top_k(&self, k: usize) -> Result<(Tensor, Tensor)> {
        let last = self.rank().saturating_sub(1);
        if self.dims().last().is_none_or(|&size| k > size) {
            return Err(Error::new("top_k", format!("{k} of {}", self.ty())));
        }
        let indices = self.argsort(last, true)?.narrow(last, 0, k)?;
        Ok((self.take_along(&indices, last)?, indices))
    }
}
