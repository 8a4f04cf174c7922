//! Where a device's part of a parameter sits in the whole.

use fullshard_graph::{DType, Error, Group, Result, Tensor};

/// Where a device's part of a parameter sits in the whole.
#[derive(Debug, Clone)]
pub struct Shard {
    /// The dimensions of one whole parameter.
    pub dims: Vec<usize>,
    /// This many equal layers are stacked along a first dimension of the local tensor. Each is
    /// a parameter by itself: statistics are taken for each layer.
    pub stack: Option<usize>,
    /// How the parameter is cut.
    pub cut: Cut,
    /// The devices it is cut over; none if it is whole on each.
    pub group: Option<Group>,
}

/// How a parameter is cut over devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Not at all: the same on every device.
    Whole,
    /// The first dimension is padded with rows of zeros to a multiple of the group, and each
    /// device has a block of rows.
    Rows,
    /// Flattened row-major and padded with zeros at the end; each device has a slice of `local`
    /// elements, in the order of the group.
    Flat {
        /// The number of elements on each device.
        local: usize,
    },
}

impl Shard {
    /// The dimensions of the tensor that a device holds, the stack's first.
    pub fn local_dims(&self) -> Vec<usize> {
        let part = match self.cut {
            Cut::Whole => self.dims.clone(),
            Cut::Rows => {
                let rows = self.dims.iter().take(1).map(|rows| rows.div_ceil(self.parts()));
                rows.chain(self.dims.iter().skip(1).copied()).collect()
            }
            Cut::Flat { local } => vec![local],
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
        self.group.as_ref().filter(|group| self.cut != Cut::Whole && group.size() > 1)
    }

    /// Dimensions behind that of the stack, if there is one.
    pub(crate) fn stacked(&self, dims: &[usize]) -> Vec<usize> {
        self.stack.iter().chain(dims).copied().collect()
    }

    /// Whether a tensor can be the part of this parameter that a device holds.
    pub(crate) fn check(&self, op: &str, what: &str, tensor: &Tensor) -> Result<()> {
        let fail = |reason: String| Err(Error::new(op, reason));
        if self.cut == Cut::Rows && self.dims.is_empty() {
            return fail("a scalar has no rows to cut; it must be whole or flat".to_owned());
        }
        if let Cut::Flat { local } = self.cut
            && local * self.parts() < self.elements()
        {
            let (dims, parts) = (&self.dims, self.parts());
            return fail(format!("{dims:?} does not fit into {parts} slices of {local}"));
        }
        let expected = self.local_dims();
        if tensor.dtype() != DType::F32 || tensor.dims() != expected {
            let reason = format!("the {what} is {}, not f32 of {expected:?}", tensor.ty());
            return fail(reason);
        }
        Ok(())
    }
}
