//! Ways around the compiler: barriers, and calls of what only a platform knows.

use crate::error::Result;
use crate::op::{CustomCall, Op};
use crate::tensor::Tensor;
use crate::trace::emit;
use fullshard_core::TensorType;

/// An attribute of a custom call.
#[derive(Debug, Clone, PartialEq)]
pub enum Attribute {
    /// A truth value.
    Bool(bool),
    /// An integer of 64 bits.
    Int(i64),
    /// A number of 32 bits.
    Float(f32),
    /// A string.
    Text(String),
    /// Integers of 64 bits.
    Ints(Vec<i64>),
}

/// The same values, which the compiler may neither look through nor compute together with others
/// across this point: all of them are made before any is used.
pub fn barrier(tensors: &[&Tensor]) -> Result<Vec<Tensor>> {
    let types = tensors.iter().map(|tensor| tensor.ty().clone()).collect();
    emit("barrier", Op::Barrier, tensors, types)
}

/// Starts a call of something that only the platform knows, by its name there.
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

/// A custom call being put together.
pub struct CustomCallBuilder {
    call: CustomCall,
}

impl CustomCallBuilder {
    /// Adds a typed attribute (API version 4).
    pub fn attribute(mut self, name: &str, value: Attribute) -> Self {
        self.call.attributes.push((name.to_owned(), value));
        self
    }

    /// Sets an opaque configuration and the API version that goes with it.
    pub fn backend_config(mut self, config: &str, api_version: i32) -> Self {
        self.call.backend_config = Some(config.to_owned());
        self.call.api_version = api_version;
        self
    }

    /// Keeps the call even if nothing uses its results; in a loop, branch or function it stays as
    /// long as that does.
    pub fn side_effect(mut self) -> Self {
        self.call.has_side_effect = true;
        self
    }

    /// Sets the dimension order, the fastest first, of every operand and result.
    pub fn layouts(mut self, operands: &[&[usize]], results: &[&[usize]]) -> Self {
        self.call.operand_layouts = operands.iter().map(|layout| layout.to_vec()).collect();
        self.call.result_layouts = results.iter().map(|layout| layout.to_vec()).collect();
        self
    }

    /// Lets operands that are the beginning of longer tensors be given as those, so that they need
    /// not be cut out. It is for calls that know how much they are to read.
    pub fn longer_operands(mut self) -> Self {
        self.call.longer_operands = true;
        self
    }

    /// Makes the call.
    pub fn call(self, operands: &[&Tensor], results: &[TensorType]) -> Result<Vec<Tensor>> {
        let name = self.call.target.clone();
        emit(&name, Op::CustomCall(Box::new(self.call)), operands, results.to_vec())
    }
}
