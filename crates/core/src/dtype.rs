//! Element types, with their names in HLO, MLIR and PyTorch.

use serde::{Deserialize, Serialize};

/// Declares [`DType`] with the properties of each type in one table.
macro_rules! dtypes {
    ($($(#[$doc:meta])* $variant:ident, $name:literal, $mlir:literal, $torch:literal, $bytes:literal,
       $class:ident;)*) => {
        /// The element type of a tensor. In config files it has its PyTorch name.
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
        )]
        pub enum DType {
            $($(#[$doc])* #[serde(rename = $torch)] $variant,)*
        }

        impl DType {
            /// All types.
            pub const ALL: &[DType] = &[$(DType::$variant),*];

            /// The short name, as in HLO: `bf16`, `u32`, `pred`.
            pub fn name(self) -> &'static str {
                match self { $(DType::$variant => $name,)* }
            }

            /// The name in MLIR, and so in StableHLO text: `bf16`, `ui32`, `i1`.
            pub fn mlir_name(self) -> &'static str {
                match self { $(DType::$variant => $mlir,)* }
            }

            /// The name in PyTorch and Hugging Face configs: `bfloat16`, `uint32`, `bool`.
            /// Types that PyTorch lacks have their name in `ml_dtypes`.
            pub fn torch_name(self) -> &'static str {
                match self { $(DType::$variant => $torch,)* }
            }

            /// The bytes of one element.
            pub fn size(self) -> usize {
                match self { $(DType::$variant => $bytes,)* }
            }

            /// The class of its elements.
            pub fn class(self) -> NumberClass {
                match self { $(DType::$variant => NumberClass::$class,)* }
            }
        }
    };
}

/// The class of an element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum NumberClass {
    Bool,
    Signed,
    Unsigned,
    Float,
}

dtypes! {
    /// A boolean, one byte.
    Bool, "pred", "i1", "bool", 1, Bool;
    /// Signed, 8 bits.
    I8, "s8", "i8", "int8", 1, Signed;
    /// Signed, 16 bits.
    I16, "s16", "i16", "int16", 2, Signed;
    /// Signed, 32 bits.
    I32, "s32", "i32", "int32", 4, Signed;
    /// Signed, 64 bits.
    I64, "s64", "i64", "int64", 8, Signed;
    /// Unsigned, 8 bits.
    U8, "u8", "ui8", "uint8", 1, Unsigned;
    /// Unsigned, 16 bits.
    U16, "u16", "ui16", "uint16", 2, Unsigned;
    /// Unsigned, 32 bits.
    U32, "u32", "ui32", "uint32", 4, Unsigned;
    /// Unsigned, 64 bits.
    U64, "u64", "ui64", "uint64", 8, Unsigned;
    /// IEEE half precision.
    F16, "f16", "f16", "float16", 2, Float;
    /// IEEE single precision.
    F32, "f32", "f32", "float32", 4, Float;
    /// IEEE double precision.
    F64, "f64", "f64", "float64", 8, Float;
    /// Brain float: single precision's exponent, 8 bits of mantissa.
    Bf16, "bf16", "bf16", "bfloat16", 2, Float;
    /// 8 bits, 5 of exponent: the usual type of gradients in FP8 training.
    F8E5M2, "f8e5m2", "f8E5M2", "float8_e5m2", 1, Float;
    /// 8 bits, 4 of exponent, no infinities: the usual type of activations in FP8 training.
    F8E4M3FN, "f8e4m3fn", "f8E4M3FN", "float8_e4m3fn", 1, Float;
    /// 8 bits, 4 of exponent, bias 11, no negative zero.
    F8E4M3B11FNUZ, "f8e4m3b11fnuz", "f8E4M3B11FNUZ", "float8_e4m3b11fnuz", 1, Float;
    /// 8 bits, 5 of exponent, no negative zero.
    F8E5M2FNUZ, "f8e5m2fnuz", "f8E5M2FNUZ", "float8_e5m2fnuz", 1, Float;
    /// 8 bits, 4 of exponent, no negative zero.
    F8E4M3FNUZ, "f8e4m3fnuz", "f8E4M3FNUZ", "float8_e4m3fnuz", 1, Float;
    /// 8 bits, 4 of exponent, with infinities.
    F8E4M3, "f8e4m3", "f8E4M3", "float8_e4m3", 1, Float;
    /// 8 bits, 3 of exponent.
    F8E3M4, "f8e3m4", "f8E3M4", "float8_e3m4", 1, Float;
    /// 8 bits of exponent only: the scales of block-scaled formats.
    F8E8M0FNU, "f8e8m0fnu", "f8E8M0FNU", "float8_e8m0fnu", 1, Float;
}

/// A name that is not a PyTorch dtype.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a dtype; write it as PyTorch does: float32, bfloat16, float16, ...")]
pub struct UnknownDType(pub String);

impl DType {
    /// Whether it is a floating-point type, which has gradients.
    pub fn is_float(self) -> bool {
        self.class() == NumberClass::Float
    }

    /// Whether it is an integer type.
    pub fn is_integer(self) -> bool {
        matches!(self.class(), NumberClass::Signed | NumberClass::Unsigned)
    }

    /// The type with this name in PyTorch or Hugging Face configs: `bfloat16`, or `torch.bfloat16`.
    pub fn from_torch_name(name: &str) -> Result<DType, UnknownDType> {
        let short = name.strip_prefix("torch.").unwrap_or(name);
        let named = DType::ALL.iter().find(|dtype| dtype.torch_name() == short);
        named.copied().ok_or_else(|| UnknownDType(name.to_owned()))
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn torch_names_round_trip() {
        for &dtype in DType::ALL {
            assert_eq!(DType::from_torch_name(dtype.torch_name()), Ok(dtype));
            let json = serde_json::to_string(&dtype).unwrap();
            assert_eq!(json, format!("\"{}\"", dtype.torch_name()));
            assert_eq!(serde_json::from_str::<DType>(&json).unwrap(), dtype);
        }
        assert_eq!(DType::from_torch_name("torch.float16"), Ok(DType::F16));
        assert!(DType::from_torch_name("bf16").is_err());
    }

    #[test]
    fn names_are_unique() {
        for name in [DType::name, DType::mlir_name, DType::torch_name] {
            let mut names: Vec<&str> = DType::ALL.iter().map(|&dtype| name(dtype)).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), DType::ALL.len());
        }
    }
}
