//! Constants in the text.

use super::types::mlir;
use crate::op::Constant;
use fullshard_core::{DType, NumberClass, TensorType};
use half::{bf16, f16};
use std::fmt::Write as _;

/// Most elements written as a list; more are written as bytes.
const MAX_LISTED: usize = 16;

/// `dense<...> : type`.
pub(super) fn dense(value: &Constant, ty: &TensorType) -> String {
    let text = match value {
        Constant::Splat(bytes) => element(ty.dtype, bytes),
        Constant::Dense(bytes) if ty.rank() == 1 && ty.elements() <= MAX_LISTED => {
            let elements = bytes.chunks(ty.dtype.size()).map(|bytes| element(ty.dtype, bytes));
            format!("[{}]", elements.collect::<Vec<_>>().join(", "))
        }
        // Packed bits would be shorter, but newer compilers reject them.
        Constant::Dense(bytes) if ty.dtype == DType::Bool => nested(bytes, &ty.dims),
        Constant::Dense(bytes) => format!("\"0x{}\"", hex(bytes)),
    };
    format!("dense<{text}> : {}", mlir(ty))
}

/// A number as an element of a constant.
pub(crate) fn number(dtype: DType, value: f64) -> String {
    match dtype {
        DType::Bool => (value != 0.0).to_string(),
        dtype if dtype.is_float() => float(dtype, value),
        _ => format!("{}", value as i128),
    }
}

/// The smallest or largest value of a type: the initial value of a maximum or minimum.
pub(super) fn extreme(dtype: DType, largest: bool) -> String {
    let bits = dtype.size() as u32 * 8;
    match (dtype.class(), largest) {
        (NumberClass::Float, _) => {
            float(dtype, if largest { f64::INFINITY } else { f64::NEG_INFINITY })
        }
        (NumberClass::Bool, largest) => largest.to_string(),
        (NumberClass::Unsigned, false) => "0".into(),
        (NumberClass::Unsigned, true) => ((1_u128 << bits) - 1).to_string(),
        (NumberClass::Signed, false) => (-(1_i128 << (bits - 1))).to_string(),
        (NumberClass::Signed, true) => ((1_i128 << (bits - 1)) - 1).to_string(),
    }
}

fn element(dtype: DType, bytes: &[u8]) -> String {
    fn take<const N: usize>(bytes: &[u8]) -> [u8; N] {
        let mut taken = [0; N];
        taken.copy_from_slice(&bytes[..N]);
        taken
    }
    match dtype {
        DType::Bool => (bytes[0] != 0).to_string(),
        DType::I8 => i8::from_le_bytes(take(bytes)).to_string(),
        DType::I16 => i16::from_le_bytes(take(bytes)).to_string(),
        DType::I32 => i32::from_le_bytes(take(bytes)).to_string(),
        DType::I64 => i64::from_le_bytes(take(bytes)).to_string(),
        DType::U8 => bytes[0].to_string(),
        DType::U16 => u16::from_le_bytes(take(bytes)).to_string(),
        DType::U32 => u32::from_le_bytes(take(bytes)).to_string(),
        DType::U64 => u64::from_le_bytes(take(bytes)).to_string(),
        DType::F16 => float(dtype, f16::from_le_bytes(take(bytes)).to_f64()),
        DType::Bf16 => float(dtype, bf16::from_le_bytes(take(bytes)).to_f64()),
        DType::F32 => {
            let value = f32::from_le_bytes(take(bytes));
            if value.is_finite() {
                decimal(&format!("{value:e}"))
            } else {
                float(dtype, value.into())
            }
        }
        DType::F64 => float(dtype, f64::from_le_bytes(take(bytes))),
        _ => format!("0x{:02X}", bytes[0]),
    }
}

fn float(dtype: DType, value: f64) -> String {
    if value.is_finite() {
        return decimal(&format!("{value:e}"));
    }
    // Infinities and NaN have no decimal form, so their bits are written.
    match dtype {
        DType::F16 => format!("0x{:04X}", f16::from_f64(value).to_bits()),
        DType::Bf16 => format!("0x{:04X}", bf16::from_f64(value).to_bits()),
        DType::F64 => format!("0x{:016X}", value.to_bits()),
        DType::F32 => format!("0x{:08X}", (value as f32).to_bits()),
        _ => format!("0x{:02X}", non_finite_fp8(dtype, value)),
    }
}

/// The bits of NaN or an infinity in an FP8 type. Types without infinities use their largest
/// values.
fn non_finite_fp8(dtype: DType, value: f64) -> u8 {
    let (nan, largest, smallest) = match dtype {
        DType::F8E5M2 => (0x7E, 0x7C, 0xFC),
        DType::F8E4M3FN => (0x7F, 0x7E, 0xFE),
        DType::F8E4M3 => (0x7C, 0x78, 0xF8),
        DType::F8E3M4 => (0x78, 0x70, 0xF0),
        DType::F8E8M0FNU => (0xFF, 0xFE, 0x00),
        _ => (0x80, 0x7F, 0xFF),
    };
    match value {
        value if value.is_nan() => nan,
        value if value > 0.0 => largest,
        _ => smallest,
    }
}

/// A number such as `1e-5` with the decimal point that MLIR requires.
fn decimal(text: &str) -> String {
    match text.split_once('e') {
        Some((mantissa, exponent)) if !mantissa.contains('.') => format!("{mantissa}.0e{exponent}"),
        _ => text.to_owned(),
    }
}

/// Bools in brackets, one pair per dimension; an empty string for no values.
fn nested(values: &[u8], dims: &[usize]) -> String {
    match dims {
        _ if values.is_empty() => String::new(),
        [] => element(DType::Bool, values),
        [count, inner @ ..] => {
            let parts = values.chunks(values.len() / count).map(|part| nested(part, inner));
            format!("[{}]", parts.collect::<Vec<_>>().join(", "))
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(text, "{byte:02X}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bools_are_written_as_lists() {
        let text = |dims: &[usize], values: &[u8]| {
            dense(&Constant::Dense(values.to_vec()), &TensorType::new(DType::Bool, dims))
        };
        assert_eq!(
            text(&[2, 1, 2], &[1, 0, 0, 1]),
            "dense<[[[true, false]], [[false, true]]]> : tensor<2x1x2xi1>"
        );
        assert_eq!(text(&[2, 0], &[]), "dense<> : tensor<2x0xi1>");
        let many = text(&[17], &[[1].as_slice(), &[0; 16]].concat());
        assert_eq!(many, format!("dense<[true{}]> : tensor<17xi1>", ", false".repeat(16)));
    }

    #[test]
    fn non_finite_values_are_written_as_bits() {
        let bits = |dtype| [f64::NAN, f64::INFINITY, -f64::INFINITY].map(|x| number(dtype, x));
        assert_eq!(bits(DType::F8E5M2), ["0x7E", "0x7C", "0xFC"]);
        assert_eq!(bits(DType::F8E4M3FN), ["0x7F", "0x7E", "0xFE"]);
        assert_eq!(bits(DType::F16), ["0x7E00", "0x7C00", "0xFC00"]);
        assert_eq!(bits(DType::Bf16), ["0x7FC0", "0x7F80", "0xFF80"]);
        assert_eq!(bits(DType::F32), ["0x7FC00000", "0x7F800000", "0xFF800000"]);
        let doubles = ["0x7FF8000000000000", "0x7FF0000000000000", "0xFFF0000000000000"];
        assert_eq!(bits(DType::F64), doubles);
    }
}
