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
    /// The devices it is sharded over by its layout; none if it is replicated.
    pub group: Option<Group>,
    /// The slice of it that tensor parallelism leaves to each device. The layout is then that of
    /// the slice, on another dim.
    pub tensor: Option<TensorSlice>,
}

/// The slices of a parameter along a dim.
#[derive(Debug, Clone)]
pub struct TensorSlice {
    /// The dim.
    pub dim: usize,
    /// The equal parts that are fused along it. Each is sliced.
    pub parts: usize,
    /// The devices.
    pub group: Group,
}

/// A dimension of a parameter of which a device holds a block.
#[derive(Debug, Clone)]
pub(crate) struct GridDim {
    /// Its size, without padding.
    pub size: usize,
    /// Its size on each device.
    pub local: usize,
    /// The devices it is sharded over.
    pub group: Option<Group>,
}

impl GridDim {
    fn over(size: usize, group: Option<Group>) -> GridDim {
        GridDim { size, local: size.div_ceil(group.as_ref().map_or(1, Group::size)), group }
    }

    /// The number of shards.
    pub fn shards(&self) -> usize {
        self.group.as_ref().map_or(1, Group::size)
    }
}

impl Shard {
    /// A replicated parameter.
    pub fn replicated(dims: &[usize], stack: Option<usize>) -> Shard {
        let (dims, layout) = (dims.to_vec(), Layout::Replicated);
        Shard { dims, stack, layout, slice: 0, group: None, tensor: None }
    }

    /// The dimensions of the local tensor, that of the stack first.
    pub fn local_dims(&self) -> Vec<usize> {
        let part = match self.layout {
            Layout::Replicated | Layout::Dim(_) => {
                self.grid().into_iter().map(|dim| dim.local).collect()
            }
            Layout::Flat => vec![self.slice],
        };
        self.stacked(&part)
    }

    /// The dimensions of a parameter that is not flat. One of several parts that is sliced is two,
    /// so that the local tensor is a block.
    pub(crate) fn grid(&self) -> Vec<GridDim> {
        let mut grid = Vec::new();
        for (dim, &size) in self.dims.iter().enumerate() {
            match &self.tensor {
                Some(slice) if slice.dim == dim => {
                    grid.extend((slice.parts > 1).then(|| GridDim::over(slice.parts, None)));
                    grid.push(GridDim::over(size / slice.parts, Some(slice.group.clone())));
                }
                _ if self.layout == Layout::Dim(dim) => {
                    grid.push(GridDim::over(size, self.layout_group().cloned()));
                }
                _ => grid.push(GridDim::over(size, None)),
            }
        }
        grid
    }

    /// The dim that is two dimensions of the grid.
    pub(crate) fn split_dim(&self) -> Option<usize> {
        self.tensor.as_ref().filter(|slice| slice.parts > 1).map(|slice| slice.dim)
    }

    /// The number of elements of one full parameter, without padding.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// The number of shards of its layout.
    pub fn parts(&self) -> usize {
        self.layout_group().map_or(1, Group::size)
    }

    /// The devices that its layout shards it over, if more than one.
    pub(crate) fn layout_group(&self) -> Option<&Group> {
        self.group.as_ref().filter(|group| self.layout != Layout::Replicated && group.size() > 1)
    }

    /// All devices that it is sharded over, if more than one.
    pub(crate) fn shard_group(&self) -> Option<Group> {
        match (&self.tensor, self.layout_group()) {
            (Some(slice), Some(group)) => Some(slice.group.joined(group)),
            (Some(slice), None) => Some(slice.group.clone()),
            (None, group) => group.cloned(),
        }
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
