//! Element types, and the Rust types that hold them.

use crate::hlo::ElementType;
use half::{bf16, f16};

/// Declares [`DType`] with everything that is known of each type in one table.
macro_rules! dtypes {
    ($($(#[$doc:meta])* $name:ident, $text:literal, $mlir:literal, $raw:literal, $bytes:literal;)*) => {
        /// The element type of a tensor.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum DType {
            $($(#[$doc])* $name,)*
        }

        impl DType {
            /// Every type there is.
            pub const ALL: &[DType] = &[$(DType::$name),*];

            /// The name used in messages and optimized programs, such as `bf16`.
            pub fn name(self) -> &'static str {
                match self { $(DType::$name => $text,)* }
            }

            /// The name used in StableHLO text, such as `ui32`.
            pub fn mlir_name(self) -> &'static str {
                match self { $(DType::$name => $mlir,)* }
            }

            /// The bytes one element takes.
            pub fn size(self) -> usize {
                match self { $(DType::$name => $bytes,)* }
            }

            /// The number of this type in `PJRT_Buffer_Type`.
            pub(crate) fn raw(self) -> i32 {
                match self { $(DType::$name => $raw,)* }
            }
        }
    };
}

dtypes! {
    /// A truth value, one byte.
    Bool, "pred", "i1", 1, 1;
    /// Signed, 8 bits.
    I8, "s8", "i8", 2, 1;
    /// Signed, 16 bits.
    I16, "s16", "i16", 3, 2;
    /// Signed, 32 bits.
    I32, "s32", "i32", 4, 4;
    /// Signed, 64 bits.
    I64, "s64", "i64", 5, 8;
    /// Unsigned, 8 bits.
    U8, "u8", "ui8", 6, 1;
    /// Unsigned, 16 bits.
    U16, "u16", "ui16", 7, 2;
    /// Unsigned, 32 bits.
    U32, "u32", "ui32", 8, 4;
    /// Unsigned, 64 bits.
    U64, "u64", "ui64", 9, 8;
    /// IEEE half precision.
    F16, "f16", "f16", 10, 2;
    /// IEEE single precision.
    F32, "f32", "f32", 11, 4;
    /// IEEE double precision.
    F64, "f64", "f64", 12, 8;
    /// Brain float: single precision's exponent, 8 bits of mantissa.
    Bf16, "bf16", "bf16", 13, 2;
    /// 8 bits, 5 of exponent: the usual type of gradients in fp8 training.
    F8E5M2, "f8e5m2", "f8E5M2", 16, 1;
    /// 8 bits, 4 of exponent, no infinities: the usual type of activations in fp8 training.
    F8E4M3FN, "f8e4m3fn", "f8E4M3FN", 17, 1;
    /// 8 bits, 4 of exponent, bias 11, no negative zero.
    F8E4M3B11FNUZ, "f8e4m3b11fnuz", "f8E4M3B11FNUZ", 18, 1;
    /// 8 bits, 5 of exponent, no negative zero.
    F8E5M2FNUZ, "f8e5m2fnuz", "f8E5M2FNUZ", 19, 1;
    /// 8 bits, 4 of exponent, no negative zero.
    F8E4M3FNUZ, "f8e4m3fnuz", "f8E4M3FNUZ", 20, 1;
    /// 8 bits, 4 of exponent, with infinities.
    F8E4M3, "f8e4m3", "f8E4M3", 26, 1;
    /// 8 bits, 3 of exponent.
    F8E3M4, "f8e3m4", "f8E3M4", 27, 1;
    /// 8 bits of exponent alone: the scales of block-scaled formats.
    F8E8M0FNU, "f8e8m0fnu", "f8E8M0FNU", 28, 1;
}

impl DType {
    /// The type an optimized program means, if buffers here can hold it.
    pub fn from_element_type(element: ElementType) -> Option<DType> {
        let name = element.to_string();
        DType::ALL.iter().copied().find(|dtype| dtype.name() == name)
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A Rust type that is the host form of an element type.
pub trait Element: bytemuck::AnyBitPattern + bytemuck::NoUninit {
    /// The element type it is the form of.
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
