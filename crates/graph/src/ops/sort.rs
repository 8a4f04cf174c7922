//! Sorting and top-k.

use crate::error::{Error, Result};
use crate::op::Op;
use crate::ops::iota;
use crate::tensor::Tensor;
use crate::trace::emit;
use fullshard_core::DType;

impl Tensor {
    /// The indices that sort a dimension. The sort is stable.
    pub fn argsort(&self, dim: usize, descending: bool) -> Result<Tensor> {
        self.check_dim("argsort", dim)?;
        let keys = self.stop_gradient()?;
        let indices = iota(DType::I32, self.dims(), dim)?;
        let types = vec![keys.ty().clone(), indices.ty().clone()];
        let op = Op::Sort { dim, descending };
        let mut sorted = emit("sort", op, &[&keys, &indices], types)?;
        Ok(sorted.pop().unwrap_or(indices))
    }

    /// Sorted along a dimension.
    pub fn sort(&self, dim: usize, descending: bool) -> Result<Tensor> {
        self.check_dim("sort", dim)?;
        self.take_along(&self.argsort(dim, descending)?, dim)
    }

    /// The `k` largest along the last dimension, in descending order, and their indices.
    pub fn top_k(&self, k: usize) -> Result<(Tensor, Tensor)> {
        let last = self.rank().saturating_sub(1);
        if self.dims().last().is_none_or(|&size| k > size) {
            return Err(Error::new("top_k", format!("{k} of {}", self.ty())));
        }
        let indices = self.argsort(last, true)?.narrow(last, 0, k)?;
        Ok((self.take_along(&indices, last)?, indices))
    }
}
