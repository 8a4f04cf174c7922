//! Tensors: handles to values of a program being traced.

use crate::graph::ValueId;
use crate::trace::{self, GraphId};
use fullshard_core::{DType, TensorType};
use std::rc::Rc;

/// A value of a program being traced. Cheap to clone.
#[derive(Clone)]
pub struct Tensor {
    pub(crate) graph: GraphId,
    pub(crate) value: ValueId,
    ty: Rc<TensorType>,
}

impl Tensor {
    pub(crate) fn new(graph: GraphId, value: ValueId, ty: Rc<TensorType>) -> Tensor {
        Tensor { graph, value, ty }
    }

    /// The element type and dimensions.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    pub(crate) fn shared_type(&self) -> Rc<TensorType> {
        self.ty.clone()
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    /// The dimensions.
    pub fn dims(&self) -> &[usize] {
        &self.ty.dims
    }

    /// Whether this is the very same value of the program as another.
    pub fn is(&self, other: &Tensor) -> bool {
        (self.graph, self.value) == (other.graph, other.value)
    }

    /// Whether ops that are traced now can use it: it is not of a region that has ended.
    pub fn is_usable(&self) -> bool {
        trace::is_open(self.graph)
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.ty.dims.len()
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "%{}: {}", self.value.0, self.ty)
    }
}
