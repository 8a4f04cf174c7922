//! Shape ops: reshape, broadcast, transpose, slice, concatenate, pad, reverse.

use crate::error::{Error, Result};
use crate::op::Op;
use crate::ops::full;
use crate::tensor::Tensor;
use crate::trace::emit_one;
use fullshard_core::TensorType;

impl Tensor {
    /// The same elements with other dimensions.
    pub fn reshape(&self, dims: &[usize]) -> Result<Tensor> {
        if dims == self.dims() {
            return Ok(self.clone());
        }
        let ty = TensorType::new(self.dtype(), dims);
        if ty.elements() != self.ty().elements() {
            return Err(Error::new("reshape", format!("{} cannot be reshaped to {ty}", self.ty())));
        }
        emit_one("reshape", Op::Reshape, &[self], ty)
    }

    /// Broadcasts to `dims`: missing dimensions are prepended, and dimensions of size one are
    /// repeated.
    pub fn broadcast_to(&self, dims: &[usize]) -> Result<Tensor> {
        if dims == self.dims() {
            return Ok(self.clone());
        }
        let fail = || {
            let ty = TensorType::new(self.dtype(), dims);
            Error::new("broadcast", format!("{} does not broadcast to {ty}", self.ty()))
        };
        let missing = dims.len().checked_sub(self.rank()).ok_or_else(fail)?;
        let fits = |(i, &dim): (usize, &usize)| dim == 1 || dim == dims[missing + i];
        if !self.dims().iter().enumerate().all(fits) {
            return Err(fail());
        }
        let positions: Vec<usize> = (missing..dims.len()).collect();
        self.broadcast_dims(dims, &positions)
    }

    /// Broadcasts to `dims`, where dimension `i` becomes dimension `positions[i]`.
    pub(crate) fn broadcast_dims(&self, dims: &[usize], positions: &[usize]) -> Result<Tensor> {
        let op = Op::Broadcast { dims: positions.to_vec() };
        emit_one("broadcast", op, &[self], TensorType::new(self.dtype(), dims))
    }

    /// Permutes dimensions: dimension `i` of the result is dimension `permutation[i]` of this.
    pub fn transpose(&self, permutation: &[usize]) -> Result<Tensor> {
        let mut sorted = permutation.to_vec();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..self.rank()) {
            let reason = format!("{permutation:?} is not a permutation for {}", self.ty());
            return Err(Error::new("transpose", reason));
        }
        if permutation.iter().copied().eq(0..self.rank()) {
            return Ok(self.clone());
        }
        let dims: Vec<usize> = permutation.iter().map(|&dim| self.dims()[dim]).collect();
        let op = Op::Transpose { permutation: permutation.to_vec() };
        emit_one("transpose", op, &[self], TensorType::new(self.dtype(), &dims))
    }

    /// Swaps the last two dimensions.
    pub fn t(&self) -> Result<Tensor> {
        let mut order: Vec<usize> = (0..self.rank()).collect();
        if self.rank() < 2 {
            return Err(Error::new("t", format!("{} has fewer than two dimensions", self.ty())));
        }
        order.swap(self.rank() - 2, self.rank() - 1);
        self.transpose(&order)
    }

    /// Inserts a dimension of size one at `dim`.
    pub fn expand(&self, dim: usize) -> Result<Tensor> {
        if dim > self.rank() {
            return Err(Error::new("expand", format!("no position {dim} in {}", self.ty())));
        }
        let mut dims = self.dims().to_vec();
        dims.insert(dim, 1);
        self.reshape(&dims)
    }

    /// The slice `start..limit` of each dimension.
    pub fn slice(&self, start: &[usize], limit: &[usize]) -> Result<Tensor> {
        self.slice_strided(start, limit, &vec![1; self.rank()])
    }

    /// Every `stride`th element of the slice `start..limit` of each dimension.
    pub fn slice_strided(
        &self,
        start: &[usize],
        limit: &[usize],
        stride: &[usize],
    ) -> Result<Tensor> {
        let rank = self.rank();
        let counts = start.len() == rank && limit.len() == rank && stride.len() == rank;
        let fits = |i: usize| start[i] <= limit[i] && limit[i] <= self.dims()[i] && stride[i] > 0;
        if !counts || !(0..rank).all(fits) {
            let reason = format!("{start:?} to {limit:?} by {stride:?} of {}", self.ty());
            return Err(Error::new("slice", reason));
        }
        let dims: Vec<usize> =
            (0..rank).map(|i| (limit[i] - start[i]).div_ceil(stride[i])).collect();
        let op =
            Op::Slice { start: start.to_vec(), limit: limit.to_vec(), stride: stride.to_vec() };
        emit_one("slice", op, &[self], TensorType::new(self.dtype(), &dims))
    }

    /// The slice `start..limit` of one dimension.
    pub fn narrow(&self, dim: usize, start: usize, limit: usize) -> Result<Tensor> {
        self.check_dim("narrow", dim)?;
        let mut starts = vec![0; self.rank()];
        let mut limits = self.dims().to_vec();
        (starts[dim], limits[dim]) = (start, limit);
        self.slice(&starts, &limits)
    }

    /// Splits into equal parts along a dimension.
    pub fn split(&self, dim: usize, parts: usize) -> Result<Vec<Tensor>> {
        self.check_dim("split", dim)?;
        let size = self.dims()[dim];
        if parts == 0 || !size.is_multiple_of(parts) {
            let reason = format!("dimension {dim} of {} does not divide into {parts}", self.ty());
            return Err(Error::new("split", reason));
        }
        let part = size / parts;
        (0..parts).map(|i| self.narrow(dim, i * part, (i + 1) * part)).collect()
    }

    /// Pads with a number before, after and between the elements of each dimension; negative
    /// padding before and after crops.
    pub fn pad(&self, value: f64, low: &[i64], high: &[i64], interior: &[usize]) -> Result<Tensor> {
        let rank = self.rank();
        let fail = || {
            let reason = format!("{low:?}, {high:?}, {interior:?} around {}", self.ty());
            Error::new("pad", reason)
        };
        if low.len() != rank || high.len() != rank || interior.len() != rank {
            return Err(fail());
        }
        let padded = |i: usize| {
            let inner = self.dims()[i] + self.dims()[i].saturating_sub(1) * interior[i];
            usize::try_from(inner as i64 + low[i] + high[i]).map_err(|_| fail())
        };
        let dims = (0..rank).map(padded).collect::<Result<Vec<usize>>>()?;
        let value = full(self.dtype(), &[], value)?;
        let op = Op::Pad { low: low.to_vec(), high: high.to_vec(), interior: interior.to_vec() };
        emit_one("pad", op, &[self, &value], TensorType::new(self.dtype(), &dims))
    }

    /// Reverses the elements along dimensions.
    pub fn reverse(&self, dims: &[usize]) -> Result<Tensor> {
        for (i, &dim) in dims.iter().enumerate() {
            self.check_dim("reverse", dim)?;
            if dims[..i].contains(&dim) {
                let reason = format!("dimension {dim} of {} appears twice", self.ty());
                return Err(Error::new("reverse", reason));
            }
        }
        let op = Op::Reverse { dims: dims.to_vec() };
        emit_one("reverse", op, &[self], self.ty().clone())
    }

    pub(crate) fn check_dim(&self, op: &str, dim: usize) -> Result<()> {
        if dim < self.rank() {
            return Ok(());
        }
        Err(Error::new(op, format!("{} has no dimension {dim}", self.ty())))
    }
}

/// Concatenates tensors along a dimension.
pub fn concatenate(tensors: &[&Tensor], dim: usize) -> Result<Tensor> {
    let fail = |reason: String| Err(Error::new("concatenate", reason));
    let Some(first) = tensors.first() else {
        return fail("nothing to concatenate".into());
    };
    first.check_dim("concatenate", dim)?;
    let mut dims = first.dims().to_vec();
    for tensor in &tensors[1..] {
        let mut other = tensor.dims().to_vec();
        let compatible = other.len() == dims.len() && tensor.dtype() == first.dtype();
        if compatible {
            other[dim] = dims[dim];
        }
        if !compatible || other != dims {
            return fail(format!("{} and {} along dimension {dim}", first.ty(), tensor.ty()));
        }
        dims[dim] += tensor.dims()[dim];
    }
    let ty = TensorType::new(first.dtype(), &dims);
    emit_one("concatenate", Op::Concatenate { dim }, tensors, ty)
}
