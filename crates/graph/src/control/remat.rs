//! Rematerialization: regions that the backward pass recomputes instead of saving.

use super::result_types;
use crate::error::Result;
use crate::op::Op;
use crate::tensor::Tensor;
use crate::trace::{emit, emit_one, trace_graph};
use std::rc::Rc;

/// What a rematerialized region saves for the backward pass.
///
/// A policy applies to the ops of the region itself, not to nested loops, branches, functions or
/// regions, which are fully recomputed unless they have their own policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Policy {
    /// Saves everything: no rematerialization.
    Everything,
    /// Saves only the inputs.
    Nothing,
    /// Saves the values with one of these names, set by [`Tensor::named`]: for example those that
    /// are expensive to recompute. Of those, what the backward pass does not use is not saved.
    Named {
        /// Saved where they are.
        saved: Vec<String>,
        /// Moved to host memory until the backward pass uses them, on platforms that have it.
        offloaded: Vec<String>,
    },
}

/// The memory that a value is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    Device,
    Host,
}

/// A region of which only the values selected by `policy` are saved for the backward pass; the rest
/// is recomputed. Custom calls with side effects in it run twice.
///
/// Random numbers in it are the same both times. Pass their key as an input: the compiler may
/// compute values that depend on no input once and save them.
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

/// Values that are freed after use and recomputed for the backward pass: for example all-gathered
/// weights, of which only the shards should be saved.
///
/// Unlike in [`remat`], it is the results that are not saved when an outer op uses them, nor the
/// values computed from them alone by casts, slices and similar ops. An outer region, such as a
/// loop or another remat, that takes them as inputs saves them like its other inputs.
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
    /// Saves the values with these names on the device.
    pub fn saving(names: &[&str]) -> Policy {
        let saved = names.iter().map(|&name| name.to_owned()).collect();
        Policy::Named { saved, offloaded: Vec::new() }
    }

    /// Where the results of an op are saved, if they are.
    pub(crate) fn saves(&self, op: &Op) -> Option<Memory> {
        let (Policy::Named { saved, offloaded }, Op::Name(name)) = (self, op) else {
            return None;
        };
        let has = |names: &[String]| names.iter().any(|known| **known == **name);
        match has(offloaded) {
            true => Some(Memory::Host),
            false => has(saved).then_some(Memory::Device),
        }
    }
}

impl Tensor {
    /// The same value with a name, so that [`Policy::Named`] can save it.
    pub fn named(&self, name: &str) -> Result<Tensor> {
        emit_one("named", Op::Name(Rc::from(name)), &[self], self.ty().clone())
    }

    /// The same value in a memory.
    pub(crate) fn in_memory(&self, memory: Memory) -> Result<Tensor> {
        emit_one("in_memory", Op::Move(memory), &[self], self.ty().clone())
    }
}
