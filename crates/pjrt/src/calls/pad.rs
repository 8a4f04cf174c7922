//! Padding at the end of a vector of `f32` or `bf16`: of a call's operands, the vector and a number.

use super::frame::{Element, Frame};
use crate::sys;
use half::bf16;

/// The custom call target of padding.
pub const PAD: &str = "fullshard.pad";

/// Runs a call.
pub(super) fn run(frame: &Frame<'_>) -> Result<(), String> {
    match frame.any_operand(0)?.dtype {
        sys::TYPE_BF16 => pad::<bf16>(frame),
        _ => pad::<f32>(frame),
    }
}

fn pad<T: Element>(frame: &Frame<'_>) -> Result<(), String> {
    let (vector, number) = (frame.operand::<T>(0)?, frame.operand::<T>(1)?);
    let padded = frame.result::<T>(0)?;
    if vector.elements == 0 || number.elements != 1 {
        return Err("padding takes a vector and one number".into());
    }
    // SAFETY: the call is running, and the plugin allocates results separately.
    let (vector, number, padded) =
        unsafe { (vector.values(), number.values(), padded.values_mut()) };
    let Some((start, end)) = padded.split_at_mut_checked(vector.len()) else {
        let (from, to) = (vector.len(), padded.len());
        return Err(format!("{from} elements do not become {to} by padding"));
    };
    start.copy_from_slice(vector);
    end.fill(number[0]);
    Ok(())
}
