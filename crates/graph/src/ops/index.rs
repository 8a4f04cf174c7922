//! Indexing: gathers, scatters and dynamic slices.

use crate::error::{Error, Result};
use crate::op::{GatherDims, Op};
use crate::ops::full;
use crate::tensor::Tensor;
use crate::trace::emit_one;
use fullshard_core::TensorType;

impl Tensor {
    /// Rows of a table, one per index: an embedding lookup. The result has the indices' dimensions
    /// and then the row's. Indices past the end are clamped to the last row.
    pub fn take(&self, indices: &Tensor) -> Result<Tensor> {
        if self.rank() == 0 || !indices.dtype().is_integer() {
            let reason = format!("{} indexed by {}", self.ty(), indices.ty());
            return Err(Error::new("take", reason));
        }
        let dims = self.row_dims(indices.rank());
        let result: Vec<usize> = indices.dims().iter().chain(&self.dims()[1..]).copied().collect();
        self.gather(&indices.expand(indices.rank())?, dims, &result)
    }

    /// Elements along a dimension, selected by indices that match this tensor in all other
    /// dimensions.
    pub fn take_along(&self, indices: &Tensor, dim: usize) -> Result<Tensor> {
        let fits = self.rank() == indices.rank()
            && dim < self.rank()
            && indices.dtype().is_integer()
            && (0..self.rank()).all(|i| i == dim || self.dims()[i] == indices.dims()[i]);
        if !fits {
            let reason = format!("{} indexed by {} along {dim}", self.ty(), indices.ty());
            return Err(Error::new("take_along", reason));
        }
        self.gather(&indices.expand(self.rank())?, self.element_dims(dim), indices.dims())
    }

    /// Scatter-adds elements along a dimension, by index: the transpose of [`Tensor::take_along`].
    /// Indices past the end are clamped to the last element.
    pub fn add_along(&self, indices: &Tensor, dim: usize, elements: &Tensor) -> Result<Tensor> {
        let fits = self.rank() == indices.rank()
            && dim < self.rank()
            && indices.dtype().is_integer()
            && (0..self.rank()).all(|i| i == dim || self.dims()[i] == indices.dims()[i])
            && elements.dims() == indices.dims()
            && elements.dtype() == self.dtype();
        if !fits {
            let (to, at) = (self.ty(), indices.ty());
            let reason = format!("{} to {to} at {at} along {dim}", elements.ty());
            return Err(Error::new("add_along", reason));
        }
        self.scatter_add(&indices.expand(self.rank())?, elements, self.element_dims(dim))
    }

    /// The gather of elements along a dimension by indices of the same rank.
    fn element_dims(&self, dim: usize) -> GatherDims {
        let others: Vec<usize> = (0..self.rank()).filter(|&i| i != dim).collect();
        GatherDims {
            offset: vec![],
            collapsed: vec![dim],
            operand_batch: others.clone(),
            index_batch: others,
            start_map: vec![dim],
            index_vector: self.rank(),
            sizes: vec![1; self.rank()],
        }
    }

    /// The gather of rows by indices of a rank.
    fn row_dims(&self, index_rank: usize) -> GatherDims {
        let mut sizes = self.dims().to_vec();
        sizes[0] = 1;
        GatherDims {
            offset: (index_rank..index_rank + self.rank() - 1).collect(),
            collapsed: vec![0],
            operand_batch: vec![],
            index_batch: vec![],
            start_map: vec![0],
            index_vector: index_rank,
            sizes,
        }
    }

    pub(crate) fn gather(
        &self,
        indices: &Tensor,
        dims: GatherDims,
        result: &[usize],
    ) -> Result<Tensor> {
        let ty = TensorType::new(self.dtype(), result);
        emit_one("gather", Op::Gather(dims), &[self, indices], ty)
    }

    /// Adds `updates` where a gather with the same dimensions would read them. Out-of-range
    /// indices, which a plain scatter would drop, are clamped.
    pub(crate) fn scatter_add(
        &self,
        indices: &Tensor,
        updates: &Tensor,
        dims: GatherDims,
    ) -> Result<Tensor> {
        // Every gather emitted here is along a single dimension.
        let last =
            dims.start_map.iter().map(|&dim| self.dims()[dim].saturating_sub(dims.sizes[dim]));
        let indices = indices.clamp(0.0, last.min().unwrap_or(0) as f64)?;
        let operands = [self, &indices, updates];
        emit_one("scatter", Op::ScatterAdd(dims), &operands, self.ty().clone())
    }

    /// Scatter-adds rows to a table, by index: the transpose of [`Tensor::take`]. Indices past the
    /// end are clamped to the last row.
    pub fn add_rows(&self, indices: &Tensor, rows: &Tensor) -> Result<Tensor> {
        let expected: Vec<usize> =
            indices.dims().iter().chain(self.dims().iter().skip(1)).copied().collect();
        let fits = self.rank() > 0
            && rows.dims() == expected
            && rows.dtype() == self.dtype()
            && indices.dtype().is_integer();
        if !fits {
            let reason = format!("{} to {} at {}", rows.ty(), self.ty(), indices.ty());
            return Err(Error::new("add_rows", reason));
        }
        let dims = self.row_dims(indices.rank());
        self.scatter_add(&indices.expand(indices.rank())?, rows, dims)
    }

    /// A slice of static size whose start is known only at run time; starts are clamped.
    pub fn dynamic_slice(&self, starts: &[&Tensor], sizes: &[usize]) -> Result<Tensor> {
        self.check_starts("dynamic_slice", starts, sizes)?;
        let mut operands = vec![self];
        operands.extend_from_slice(starts);
        let op = Op::DynamicSlice { sizes: sizes.to_vec() };
        emit_one("dynamic_slice", op, &operands, TensorType::new(self.dtype(), sizes))
    }

    /// This tensor with a slice replaced, whose start is known only at run time.
    pub fn dynamic_update_slice(&self, update: &Tensor, starts: &[&Tensor]) -> Result<Tensor> {
        self.check_starts("dynamic_update_slice", starts, update.dims())?;
        if update.dtype() != self.dtype() {
            let reason = format!("{} into {}", update.ty(), self.ty());
            return Err(Error::new("dynamic_update_slice", reason));
        }
        let mut operands = vec![self, update];
        operands.extend_from_slice(starts);
        let ty = self.ty().clone();
        emit_one("dynamic_update_slice", Op::DynamicUpdateSlice, &operands, ty)
    }

    /// The slice at `index` of a dimension, which is removed.
    pub fn at(&self, dim: usize, index: &Tensor) -> Result<Tensor> {
        self.check_dim("at", dim)?;
        let zero = full(index.dtype(), &[], 0.0)?;
        let starts: Vec<&Tensor> =
            (0..self.rank()).map(|i| if i == dim { index } else { &zero }).collect();
        let mut sizes = self.dims().to_vec();
        sizes[dim] = 1;
        let slice = self.dynamic_slice(&starts, &sizes)?;
        sizes.remove(dim);
        slice.reshape(&sizes)
    }

    fn check_starts(&self, op: &str, starts: &[&Tensor], sizes: &[usize]) -> Result<()> {
        let scalars = starts.iter().all(|start| {
            start.rank() == 0 && start.dtype().is_integer() && start.dtype() == starts[0].dtype()
        });
        let fits = starts.len() == self.rank()
            && sizes.len() == self.rank()
            && sizes.iter().zip(self.dims()).all(|(size, dim)| size <= dim);
        if scalars && fits {
            return Ok(());
        }
        let starts: Vec<String> = starts.iter().map(|start| start.ty().to_string()).collect();
        let reason = format!("{sizes:?} of {} at [{}]", self.ty(), starts.join(", "));
        Err(Error::new(op, reason))
    }
}
