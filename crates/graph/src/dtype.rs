//! Element types.

/// Declares [`DType`] with what is known of each type in one table.
macro_rules! dtypes {
    ($($(#[$doc:meta])* $name:ident, $text:literal, $bytes:literal, $class:ident;)*) => {
        /// The element type of a tensor.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum DType {
            $($(#[$doc])* $name,)*
        }

        impl DType {
            /// Every type there is.
            pub const ALL: &[DType] = &[$(DType::$name),*];

            /// The name used in StableHLO text, such as `ui32`.
            pub fn name(self) -> &'static str {
                match self { $(DType::$name => $text,)* }
            }

            /// The bytes one element takes.
            pub fn size(self) -> usize {
                match self { $(DType::$name => $bytes,)* }
            }

            /// What kind of number it is.
            pub(crate) fn class(self) -> Class {
                match self { $(DType::$name => Class::$class,)* }
            }
        }
    };
}

/// What kind of number an element is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Bool,
    Signed,
    Unsigned,
    Float,
}

dtypes! {
    /// A truth value.
    Bool, "i1", 1, Bool;
    /// Signed, 8 bits.
    I8, "i8", 1, Signed;
    /// Signed, 16 bits.
    I16, "i16", 2, Signed;
    /// Signed, 32 bits.
    I32, "i32", 4, Signed;
    /// Signed, 64 bits.
    I64, "i64", 8, Signed;
    /// Unsigned, 8 bits.
    U8, "ui8", 1, Unsigned;
    /// Unsigned, 16 bits.
    U16, "ui16", 2, Unsigned;
    /// Unsigned, 32 bits.
    U32, "ui32", 4, Unsigned;
    /// Unsigned, 64 bits.
    U64, "ui64", 8, Unsigned;
    /// IEEE half precision.
    F16, "f16", 2, Float;
    /// IEEE single precision.
    F32, "f32", 4, Float;
    /// IEEE double precision.
    F64, "f64", 8, Float;
    /// Brain float: single precision's exponent, 8 bits of mantissa.
    Bf16, "bf16", 2, Float;
    /// 8 bits, 5 of exponent.
    F8E5M2, "f8E5M2", 1, Float;
    /// 8 bits, 4 of exponent, no infinities.
    F8E4M3FN, "f8E4M3FN", 1, Float;
}

impl DType {
    /// Whether it is a floating-point type: the ones that have gradients.
    pub fn is_float(self) -> bool {
        self.class() == Class::Float
    }

    /// Whether it is an integer type.
    pub fn is_integer(self) -> bool {
        matches!(self.class(), Class::Signed | Class::Unsigned)
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
