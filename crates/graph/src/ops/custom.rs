//! Optimization barriers and custom calls.

use crate::error::Result;
use crate::op::{CustomCall, Op};
use crate::tensor::Tensor;
use crate::trace::emit;
use fullshard_core::TensorType;

/// An attribute of a custom call.
#[derive(Debug, Clone, PartialEq)]
pub enum Attribute {
    /// A bool.
    Bool(bool),
    /// A 32-bit integer.
    Int32(i32),
    /// A 64-bit integer.
    Int(i64),
    /// A 32-bit float.
    Float(f32),
    /// A string.
    Text(String),
    /// 64-bit integers.
    Ints(Vec<i64>),
}

/// The same values behind an optimization barrier: the compiler cannot fuse or merge ops across it,
/// and all of them are computed before any is used.
pub fn barrier(tensors: &[&Tensor]) -> Result<Vec<Tensor>> {
    let types = tensors.iter().map(|tensor| tensor.ty().clone()).collect();
    emit("barrier", Op::Barrier, tensors, types)
}

/// Starts a custom call, by its target name on the platform.
pub fn custom_call(target: &str) -> CustomCallBuilder {
    CustomCallBuilder {
        call: CustomCall {
            target: target.to_owned(),
            attributes: Vec::new(),
            backend_config: None,
            api_version: 4,
            has_side_effect: false,
            operand_layouts: Vec::new(),
            result_layouts: Vec::new(),
            longer_operands: false,
        },
    }
}

/// A builder of a custom call.
pub struct CustomCallBuilder {
    call: CustomCall,
}

impl CustomCallBuilder {
    /// Adds a typed attribute (API version 4).
    pub fn attribute(mut self, name: &str, value: Attribute) -> Self {
        self.call.attributes.push((name.to_owned(), value));
        self
    }

    /// Sets an opaque configuration and its API version.
    pub fn backend_config(mut self, config: &str, api_version: i32) -> Self {
        self.call.backend_config = Some(config.to_owned());
        self.call.api_version = api_version;
        self
    }

    /// Keeps the call even if its results are unused; in a loop, branch or function it is live as
    /// long as that is.
    pub fn side_effect(mut self) -> Self {
        self.call.has_side_effect = true;
        self
    }

    /// Sets the dimension order, minor to major, of every operand and result.
    pub fn layouts(mut self, operands: &[&[usize]], results: &[&[usize]]) -> Self {
        self.call.operand_layouts = operands.iter().map(|layout| layout.to_vec()).collect();
        self.call.result_layouts = results.iter().map(|layout| layout.to_vec()).collect();
        self
    }

    /// Allows operands that are the beginning of longer tensors to be passed as those tensors,
    /// without a slice. It is for calls that know how much to read.
    pub fn longer_operands(mut self) -> Self {
        self.call.longer_operands = true;
        self
    }

    /// Emits the call.
    pub fn call(self, operands: &[&Tensor], results: &[TensorType]) -> Result<Vec<Tensor>> {
        let name = self.call.target.clone();
        emit(&name, Op::CustomCall(Box::new(self.call)), operands, results.to_vec())
    }
}
