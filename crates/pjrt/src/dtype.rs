//! Dtypes: PJRT numbers, host types, and conversion from HLO shapes.

use crate::error::{Error, Result};
use crate::hlo::{self, ElementType};
use fullshard_core::{DType, TensorType};
use half::{bf16, f16};

/// The value of a dtype in `PJRT_Buffer_Type`.
pub(crate) fn raw(dtype: DType) -> i32 {
    match dtype {
        DType::Bool => 1,
        DType::I8 => 2,
        DType::I16 => 3,
        DType::I32 => 4,
        DType::I64 => 5,
        DType::U8 => 6,
        DType::U16 => 7,
        DType::U32 => 8,
        DType::U64 => 9,
        DType::F16 => 10,
        DType::F32 => 11,
        DType::F64 => 12,
        DType::Bf16 => 13,
        DType::F8E5M2 => 16,
        DType::F8E4M3FN => 17,
        DType::F8E4M3B11FNUZ => 18,
        DType::F8E5M2FNUZ => 19,
        DType::F8E4M3FNUZ => 20,
        DType::F8E4M3 => 26,
        DType::F8E3M4 => 27,
        DType::F8E8M0FNU => 28,
    }
}

/// The dtype of an HLO element type, if buffers support it.
pub(crate) fn from_element(element: ElementType) -> Option<DType> {
    let name = element.to_string();
    DType::ALL.iter().copied().find(|dtype| dtype.name() == name)
}

/// The type of an array in an optimized program; `what` names it in the error.
pub(crate) fn from_shape(shape: &hlo::Shape, what: &str) -> Result<TensorType> {
    let unsupported = || Error::UnsupportedType { what: what.to_owned(), found: shape.to_string() };
    let hlo::Shape::Array(array) = shape else { return Err(unsupported()) };
    if array.dynamic {
        return Err(unsupported());
    }
    let dtype = from_element(array.element).ok_or_else(unsupported)?;
    Ok(TensorType::new(dtype, &array.dims))
}

/// The dimension order, minor to major, of dense row-major data.
pub(crate) fn row_major(ty: &TensorType) -> Vec<i64> {
    (0..ty.rank() as i64).rev().collect()
}

/// Checks that `found` is the size of a type in bytes.
pub(crate) fn check_bytes(ty: &TensorType, found: usize) -> Result<()> {
    // Sizes that overflow are rejected even where another dimension is zero.
    let extents = ty.dims.iter().filter(|&&dim| dim > 0);
    let largest = extents.fold(ty.dtype.size(), |bytes, &dim| bytes.saturating_mul(dim));
    match ty.bytes() {
        expected if expected == found && isize::try_from(largest).is_ok() => Ok(()),
        expected => Err(Error::HostSize { expected_type: ty.clone(), expected, found }),
    }
}

/// A Rust type that represents an element type on the host.
pub trait Element: bytemuck::AnyBitPattern + bytemuck::NoUninit {
    /// Its element type.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($ty:ty => $dtype:ident),* $(,)?) => {$(
        impl Element for $ty {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}

elements! {
    i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    u8 => U8, u16 => U16, u32 => U32, u64 => U64,
    f16 => F16, f32 => F32, f64 => F64, bf16 => Bf16,
}
