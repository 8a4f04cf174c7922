//! Rematerialisation: regions that the backward pass computes again instead of remembering.

use super::result_types;
use crate::error::Result;
use crate::op::Op;
use crate::tensor::Tensor;
use crate::trace::{emit, emit_one, trace_graph};
use std::rc::Rc;

/// What a rematerialised region remembers for the backward pass.
///
/// A policy looks at the ops of the region itself, not into loops, branches, functions or regions
/// inside it, which are recomputed whole unless they have a policy of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Policy {
    /// Everything: no rematerialisation.
    Everything,
    /// Nothing but what goes in.
    Nothing,
    /// The values that were given one of these names with [`Tensor::named`]: those that are dear to
    /// compute again, say.
    Named(Vec<String>),
}

/// A region of which the backward pass remembers only what `policy` says and computes the rest
/// again. Custom calls with side effects in it happen twice.
///
/// Random numbers in it come out the same both times. Their key should go in as an input: what
/// depends on no input the compiler may make once and keep.
pub fn remat(
    policy: Policy,
    inputs: &[&Tensor],
    trace: impl FnOnce(Vec<Tensor>) -> Result<Vec<Tensor>>,
) -> Result<Vec<Tensor>> {
    let types: Vec<_> = inputs.iter().map(|tensor| tensor.shared_type()).collect();
    let traced = trace_graph("remat", &types, trace)?;
    let mut operands = inputs.to_vec();
    operands.extend(&traced.captured);
    let types = result_types(&traced.graph);
    emit("remat", Op::Remat { body: Rc::new(traced.graph), policy }, &operands, types)
}

/// Values that are let go after their use and made again for the backward pass: weights gathered
/// from all devices, say, of which only the shards are to be kept.
///
/// Other than in [`remat`], it is the results that are not remembered, nor what is made of them
/// alone by casts, slices and the like, where an op around uses them. A region around, such as
/// a loop or another remat, that uses them as a whole remembers them as it does its other inputs.
pub fn transient(
    inputs: &[&Tensor],
    trace: impl FnOnce(Vec<Tensor>) -> Result<Vec<Tensor>>,
) -> Result<Vec<Tensor>> {
    let types: Vec<_> = inputs.iter().map(|tensor| tensor.shared_type()).collect();
    let traced = trace_graph("transient", &types, trace)?;
    let mut operands = inputs.to_vec();
    operands.extend(&traced.captured);
    let types = result_types(&traced.graph);
    emit("transient", Op::Transient { body: Rc::new(traced.graph) }, &operands, types)
}

impl Policy {
    /// Whether the results of an op are remembered.
    pub(crate) fn saves(&self, op: &Op) -> bool {
        match (self, op) {
            (Policy::Everything, _) => true,
            (Policy::Named(names), Op::Name(name)) => names.iter().any(|known| **known == **name),
            _ => false,
        }
    }
}

impl Tensor {
    /// The same value with a name, by which [`Policy::Named`] can remember it.
    pub fn named(&self, name: &str) -> Result<Tensor> {
        emit_one("named", Op::Name(Rc::from(name)), &[self], self.ty().clone())
    }
}
