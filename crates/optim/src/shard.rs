//! Where a device's part of a parameter sits in the whole.

use fullshard_core::Layout;
use fullshard_graph::{DType, Error, Group, Result, Tensor};

/// Where a device's part of a parameter sits in the whole.
#[derive(Debug, Clone)]
pub struct Shard {
    /// The dimensions of one whole parameter.
    pub dims: Vec<usize>,
    /// This many equal layers are stacked along a first dimension of the local tensor. Each is
    /// a parameter by itself: statistics are taken for each layer.
    pub stack: Option<usize>,
    /// How the parameter is stored over devices.
    pub layout: Layout,
    /// The elements of each device's slice of one parameter, padding included, if it is flat.
    pub slice: usize,
    /// The devices it is sharded over; none if it is replicated.
    pub group: Option<Group>,
}

impl Shard {
    /// A parameter that every device holds in full.
    pub fn replicated(dims: &[usize], stack: Option<usize>) -> Shard {
        Shard { dims: dims.to_vec(), stack, layout: Layout::Replicated, slice: 0, group: None }
    }

    /// The dimensions of the tensor that a device holds, the stack's first.
    pub fn local_dims(&self) -> Vec<usize> {
        let part = match self.layout {
            Layout::Replicated => self.dims.clone(),
            Layout::Dim0 => {
                let rows = self.dims.iter().take(1).map(|rows| rows.div_ceil(self.parts()));
                rows.chain(self.dims.iter().skip(1).copied()).collect()
            }
            Layout::Flat => vec![self.slice],
        };
        self.stacked(&part)
    }

    /// The number of elements of one whole parameter, without padding.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// The number of parts it is cut into.
    pub fn parts(&self) -> usize {
        self.shared().map_or(1, Group::size)
    }

    /// The devices that have different parts of it.
    pub(crate) fn shared(&self) -> Option<&Group> {
        self.group.as_ref().filter(|group| self.layout != Layout::Replicated && group.size() > 1)
    }

    /// Dimensions behind that of the stack, if there is one.
    pub(crate) fn stacked(&self, dims: &[usize]) -> Vec<usize> {
        self.stack.iter().chain(dims).copied().collect()
    }

    /// Whether a tensor can be the part of this parameter that a device holds.
    pub(crate) fn check(&self, op: &str, what: &str, tensor: &Tensor) -> Result<()> {
        let fail = |reason: String| Err(Error::new(op, reason));
        if self.layout == Layout::Dim0 && self.dims.is_empty() {
            return fail(
                "a scalar has no dimension 0 to shard; it must be replicated or flat".to_owned(),
            );
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
