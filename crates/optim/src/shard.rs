//! The position of a shard in its full parameter.

use fullshard_core::Layout;
use fullshard_graph::{DType, Error, Group, Result, Tensor};

/// The position of a shard in its full parameter.
#[derive(Debug, Clone)]
pub struct Shard {
    /// The dimensions of one full parameter.
    pub dims: Vec<usize>,
    /// The number of layers stacked along the first dimension of the local tensor, if any. Each is
    /// a separate parameter: statistics are per layer.
    pub stack: Option<usize>,
    /// How the parameter is sharded over devices.
    pub layout: Layout,
    /// The number of elements per device of one parameter, padding included, if it is flat.
    pub slice: usize,
    /// The devices it is sharded over; none if it is replicated.
    pub group: Option<Group>,
}

impl Shard {
    /// A replicated parameter.
    pub fn replicated(dims: &[usize], stack: Option<usize>) -> Shard {
        Shard { dims: dims.to_vec(), stack, layout: Layout::Replicated, slice: 0, group: None }
    }

    /// The dimensions of the local tensor, that of the stack first.
    pub fn local_dims(&self) -> Vec<usize> {
        let part = match self.layout {
            Layout::Replicated => self.dims.clone(),
            Layout::Dim(dim) => {
                let mut dims = self.dims.clone();
                if let Some(size) = dims.get_mut(dim) {
                    *size = size.div_ceil(self.parts());
                }
                dims
            }
            Layout::Flat => vec![self.slice],
        };
        self.stacked(&part)
    }

    /// The number of elements of one full parameter, without padding.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// The number of shards.
    pub fn parts(&self) -> usize {
        self.shard_group().map_or(1, Group::size)
    }

    /// The devices that it is sharded over, if more than one.
    pub(crate) fn shard_group(&self) -> Option<&Group> {
        self.group.as_ref().filter(|group| self.layout != Layout::Replicated && group.size() > 1)
    }

    /// Dimensions after that of the stack, if any.
    pub(crate) fn stacked(&self, dims: &[usize]) -> Vec<usize> {
        self.stack.iter().chain(dims).copied().collect()
    }

    /// Checks that a tensor can be the local shard of this parameter.
    pub(crate) fn check(&self, op: &str, what: &str, tensor: &Tensor) -> Result<()> {
        let fail = |reason: String| Err(Error::new(op, reason));
        if let Layout::Dim(dim) = self.layout
            && dim >= self.dims.len()
        {
            return fail(format!("{:?} has no dimension {dim} to shard", self.dims));
        }
        if self.layout == Layout::Flat && self.slice * self.parts() < self.elements() {
            let (dims, parts, slice) = (&self.dims, self.parts(), self.slice);
            return fail(format!("{dims:?} does not fit into {parts} slices of {slice}"));
        }
        let expected = self.local_dims();
        if tensor.dtype() != DType::F32 || tensor.dims() != expected {
            let reason = format!("the {what} is {}, not f32 of {expected:?}", tensor.ty());
            return fail(reason);
        }
        Ok(())
    }
}
