//! Padding as a custom call instead of being left to the compiler.

use super::types::mlir;
use super::{Context, Writer};
use fullshard_core::DType;
use std::rc::Rc;

/// The custom call target of padding.
pub const PAD: &str = "fullshard.pad";

/// Elements from which on a call pays.
const LONG: usize = 1 << 16;

impl Writer {
    /// Writes padding at the end of a long vector as a custom call, if that is supported.
    pub(super) fn pad_of(
        &mut self,
        (low, high, interior): (&[i64], &[i64], &[usize]),
        context: &Context<'_>,
    ) -> Option<Rc<str>> {
        let to = &context.output_types[0];
        let is_at_end = low == [0] && interior == [0] && high.iter().all(|&high| high > 0);
        let is_supported = matches!(to.dtype, DType::F32 | DType::Bf16) && self.is_local();
        let is_long = to.elements() >= LONG && context.input_types[0].elements() > 0;
        if !(self.dialect.pad_custom_calls && is_supported && is_at_end && is_long) {
            return None;
        }
        let [vector, number] = [0, 1].map(|i| mlir(&context.input_types[i]));
        let types = format!("({vector}, {number}) -> {}", mlir(to));
        let operands = context.inputs.join(", ");
        let text = format!("stablehlo.custom_call @{PAD}({operands}) {{api_version = 4 : i32}}");
        Some(self.op_one(&text, &types, context.path))
    }
}
