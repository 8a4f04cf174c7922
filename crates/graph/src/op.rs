//! The operations of a program.

use crate::graph::Graph;
use fullshard_core::{Mesh, Sharding};
use std::rc::Rc;

/// An operation, with everything but its operands.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    /// The bytes of all elements, or of one element for all.
    Constant(Rc<Constant>),
    Iota {
        dim: usize,
    },
    Unary(Unary),
    Binary(Binary),
    Compare(Comparison),
    Select,
    Convert,
    Bitcast,
    /// `dims[i]` is the result's dimension for dimension `i` of the operand.
    Broadcast {
        dims: Vec<usize>,
    },
    Reshape,
    Transpose {
        permutation: Vec<usize>,
    },
    Reduce {
        kind: Reduction,
        dims: Vec<usize>,
    },
    Dot(DotDims),
    Slice {
        start: Vec<usize>,
        limit: Vec<usize>,
        stride: Vec<usize>,
    },
    DynamicSlice {
        sizes: Vec<usize>,
    },
    DynamicUpdateSlice,
    Concatenate {
        dim: usize,
    },
    Reverse {
        dims: Vec<usize>,
    },
    Pad {
        low: Vec<i64>,
        high: Vec<i64>,
        interior: Vec<usize>,
    },
    Gather(GatherDims),
    ScatterAdd(GatherDims),
    /// Sorts all operands along a dimension by the first.
    Sort {
        dim: usize,
        descending: bool,
    },
    Convolution(Box<ConvolutionDims>),
    ReduceWindow {
        kind: Reduction,
        window: Window,
    },
    /// Scatters each source value to the position of the window's maximum in the operand.
    SelectAndScatter {
        window: Window,
    },
    Barrier,
    CustomCall(Box<CustomCall>),
    While {
        condition: Rc<Graph>,
        body: Rc<Graph>,
    },
    Cond {
        branches: Vec<Rc<Graph>>,
    },
    Scan(Rc<Scan>),
    Call {
        function: Rc<Graph>,
    },
    Remat {
        body: Rc<Graph>,
        policy: crate::control::Policy,
    },
    /// Values that the backward pass recomputes instead of saving.
    Transient {
        body: Rc<Graph>,
    },
    CustomVjp(Rc<CustomVjp>),
    /// Names a value, so that a remat policy can save it.
    Name(Rc<str>),
    /// The same value in a memory.
    Move(crate::control::Memory),
    /// The same value, without its gradient.
    StopGradient,
    Collective(Collective, Axes),
    /// The position of this device along axes.
    AxisIndex {
        axes: Axes,
    },
    Manual(Rc<Manual>),
    Constrain(Constraint),
}

impl Op {
    /// The graphs inside the op that are part of the program.
    pub(crate) fn regions(&self) -> Vec<&Graph> {
        match self {
            Op::While { condition, body } => vec![condition, body],
            Op::Cond { branches } => branches.iter().map(|branch| &**branch).collect(),
            Op::Scan(scan) => [&scan.body].into_iter().chain(&scan.prepare).map(|g| &**g).collect(),
            Op::Call { function } => vec![function],
            Op::Remat { body, .. } | Op::Transient { body } => vec![body],
            Op::CustomVjp(rule) => vec![&rule.primal],
            Op::Manual(manual) => vec![&manual.body],
            _ => Vec::new(),
        }
    }

    /// The mesh of the op, if any.
    pub(crate) fn mesh(&self) -> Option<&Mesh> {
        match self {
            Op::Collective(_, axes) | Op::AxisIndex { axes } => Some(&axes.mesh),
            Op::Manual(manual) => Some(&manual.mesh),
            Op::Constrain(constraint) => Some(constraint.sharding.mesh()),
            _ => None,
        }
    }
}

/// A collective over the devices of a group.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Collective {
    AllGather { dim: usize },
    ReduceScatter { dim: usize },
    AllReduce { kind: Reduction },
    AllToAll { split: usize, concat: usize },
    Permute { pairs: Vec<(usize, usize)> },
}

/// The value of a constant.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Constant {
    /// Every element has these bytes.
    Splat(Vec<u8>),
    /// The elements, row-major, little-endian.
    Dense(Vec<u8>),
}

/// Operations on each element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unary {
    Negate,
    Exp,
    Expm1,
    Log,
    Log1p,
    Logistic,
    Tanh,
    Sine,
    Cosine,
    Sqrt,
    Rsqrt,
    Abs,
    Sign,
    Floor,
    Round,
    Erf,
    Not,
    IsFinite,
}

/// Operations on pairs of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Maximum,
    Minimum,
    Power,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
}

/// Comparisons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

/// Reductions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Reduction {
    Sum,
    Max,
    Min,
    Product,
}

/// The batch and contracting dimensions of a matmul.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DotDims {
    pub lhs_batch: Vec<usize>,
    pub rhs_batch: Vec<usize>,
    pub lhs_contract: Vec<usize>,
    pub rhs_contract: Vec<usize>,
    /// Whether to accumulate in `f32` throughout, where a faster sum of fewer bits exists.
    pub precise: bool,
}

/// How indices select slices, for gathers and their transposed scatters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GatherDims {
    /// Dimensions of the result (of the updates) within a slice.
    pub offset: Vec<usize>,
    /// Dimensions of the operand in which a slice has size one, dropped from the result.
    pub collapsed: Vec<usize>,
    /// Batch dimensions of operand and indices.
    pub operand_batch: Vec<usize>,
    pub index_batch: Vec<usize>,
    /// The operand's dimension for each component of an index.
    pub start_map: Vec<usize>,
    /// The indices' dimension that holds the components.
    pub index_vector: usize,
    pub sizes: Vec<usize>,
}

/// A sliding window over the dimensions of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Window {
    pub size: Vec<usize>,
    pub stride: Vec<usize>,
    pub padding: Vec<(i64, i64)>,
}

/// A convolution of `[batch, spatial.., features]` by `[spatial.., in, out]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConvolutionDims {
    pub stride: Vec<usize>,
    pub padding: Vec<(i64, i64)>,
    pub lhs_dilation: Vec<usize>,
    pub rhs_dilation: Vec<usize>,
    pub reverse: Vec<bool>,
    pub feature_groups: usize,
    pub batch_groups: usize,
    /// Positions of batch and features in the operand, kernel and result; the rest are spatial.
    pub lhs: (usize, usize),
    pub rhs: (usize, usize),
    pub out: (usize, usize),
}

/// A custom call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CustomCall {
    pub target: String,
    pub attributes: Vec<(String, crate::ops::Attribute)>,
    pub backend_config: Option<String>,
    pub api_version: i32,
    pub has_side_effect: bool,
    pub operand_layouts: Vec<Vec<usize>>,
    pub result_layouts: Vec<Vec<usize>>,
    /// Whether operands may be passed with extra trailing elements.
    pub longer_operands: bool,
}

/// A scan over the first dimension of its inputs.
///
/// The body takes constants, carries, prepared values and this step's slices, in that order, and
/// returns the next carries and this step's results. The operands are constants, carries and
/// stacked inputs.
#[derive(Debug, Clone)]
pub(crate) struct Scan {
    pub length: usize,
    pub reverse: bool,
    pub constants: usize,
    pub carries: usize,
    pub body: Rc<Graph>,
    /// Computes the prepared values of a step, one step ahead, from constants and slices.
    pub prepare: Option<Rc<Graph>>,
}

/// A function with a custom gradient.
#[derive(Debug)]
pub(crate) struct CustomVjp {
    pub primal: Rc<Graph>,
    /// Returns the results and then the residuals for `backward`.
    pub forward: Rc<Graph>,
    /// Takes the residuals and the results' gradients; returns the gradients of the operands.
    pub backward: Rc<Graph>,
}

/// A region in which each device runs on its own shards.
#[derive(Debug, Clone)]
pub(crate) struct Manual {
    pub mesh: Mesh,
    pub axes: Vec<usize>,
    pub inputs: Vec<Sharding>,
    pub outputs: Vec<Sharding>,
    pub body: Rc<Graph>,
}

/// How the compiler is to shard a value over automatic axes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Constraint {
    pub sharding: Sharding,
    /// Whether the compiler chooses for dimensions that the sharding does not name.
    pub open: bool,
}

/// The axes of a mesh that a collective runs over.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Axes {
    pub mesh: Mesh,
    /// Positions in the mesh, major to minor.
    pub axes: Vec<usize>,
}
