//! Element types, by their number in XLA's `PrimitiveType`.

use std::fmt;

macro_rules! element_types {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $bits:expr, $name:literal;)*) => {
        /// The type of an array's elements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ElementType {
            $($(#[$doc])* $variant,)*
            /// A type newer than this reader, by its XLA number.
            Unknown(i32),
        }

        impl ElementType {
            /// The type with this XLA number.
            pub fn from_number(number: i32) -> Self {
                match number {
                    $($number => Self::$variant,)*
                    other => Self::Unknown(other),
                }
            }

            /// The XLA number of this type.
            pub fn number(self) -> i32 {
                match self {
                    $(Self::$variant => $number,)*
                    Self::Unknown(number) => number,
                }
            }

            /// The width of one value; `None` for unknown types and those without a fixed width.
            pub fn bits(self) -> Option<u32> {
                match self {
                    $(Self::$variant => $bits,)*
                    Self::Unknown(_) => None,
                }
            }

            fn known_name(self) -> Option<&'static str> {
                match self {
                    $(Self::$variant => Some($name),)*
                    Self::Unknown(_) => None,
                }
            }
        }
    };
}

element_types! {
    /// No type: a shape that was never set.
    Invalid = 0, None, "invalid";
    /// A boolean, stored in one byte.
    Pred = 1, Some(1), "pred";
    /// Signed, 1 bit.
    S1 = 30, Some(1), "s1";
    /// Signed, 2 bits.
    S2 = 26, Some(2), "s2";
    /// Signed, 4 bits.
    S4 = 21, Some(4), "s4";
    /// Signed, 8 bits.
    S8 = 2, Some(8), "s8";
    /// Signed, 16 bits.
    S16 = 3, Some(16), "s16";
    /// Signed, 32 bits.
    S32 = 4, Some(32), "s32";
    /// Signed, 64 bits.
    S64 = 5, Some(64), "s64";
    /// Unsigned, 1 bit.
    U1 = 31, Some(1), "u1";
    /// Unsigned, 2 bits.
    U2 = 27, Some(2), "u2";
    /// Unsigned, 4 bits.
    U4 = 22, Some(4), "u4";
    /// Unsigned, 8 bits.
    U8 = 6, Some(8), "u8";
    /// Unsigned, 16 bits.
    U16 = 7, Some(16), "u16";
    /// Unsigned, 32 bits.
    U32 = 8, Some(32), "u32";
    /// Unsigned, 64 bits.
    U64 = 9, Some(64), "u64";
    /// IEEE half precision.
    F16 = 10, Some(16), "f16";
    /// IEEE single precision.
    F32 = 11, Some(32), "f32";
    /// IEEE double precision.
    F64 = 12, Some(64), "f64";
    /// bfloat16: the upper half of a single.
    Bf16 = 16, Some(16), "bf16";
    /// Eight bits: 5 of exponent, 2 of mantissa.
    F8E5M2 = 19, Some(8), "f8e5m2";
    /// Eight bits: 4 of exponent, 3 of mantissa.
    F8E4M3 = 28, Some(8), "f8e4m3";
    /// As `F8E4M3`, finite.
    F8E4M3Fn = 20, Some(8), "f8e4m3fn";
    /// As `F8E4M3`, finite, with bias 11 and no negative zero.
    F8E4M3B11Fnuz = 23, Some(8), "f8e4m3b11fnuz";
    /// Eight bits: 3 of exponent, 4 of mantissa.
    F8E3M4 = 29, Some(8), "f8e3m4";
    /// As `F8E5M2`, finite, no negative zero.
    F8E5M2Fnuz = 24, Some(8), "f8e5m2fnuz";
    /// As `F8E4M3`, finite, no negative zero.
    F8E4M3Fnuz = 25, Some(8), "f8e4m3fnuz";
    /// Four bits: 2 of exponent, 1 of mantissa, finite.
    F4E2M1Fn = 32, Some(4), "f4e2m1fn";
    /// An eight-bit power of two, used as a block scale.
    F8E8M0Fnu = 33, Some(8), "f8e8m0fnu";
    /// Six bits: 3 of exponent, 2 of mantissa, finite.
    F6E3M2Fn = 35, Some(6), "f6e3m2fn";
    /// Six bits: 2 of exponent, 3 of mantissa, finite.
    F6E2M3Fn = 36, Some(6), "f6e2m3fn";
    /// A pair of singles.
    C64 = 15, Some(64), "c64";
    /// A pair of doubles.
    C128 = 18, Some(128), "c128";
    /// A tuple; only used inside the reader.
    Tuple = 13, None, "tuple";
    /// A backend-specific value.
    Opaque = 14, None, "opaque";
    /// An ordering between instructions, without data.
    Token = 17, Some(0), "token";
    /// A mutable buffer around a shape.
    Buffer = 34, None, "b";
}

impl ElementType {
    /// Whether values are signed or unsigned integers.
    pub fn is_integer(self) -> bool {
        self.is_signed() || self.is_unsigned()
    }

    /// The least and greatest value of an integer type.
    pub(super) fn integer_range(self) -> Option<(i128, i128)> {
        let bits = self.bits()?;
        if self.is_signed() {
            Some((-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1))
        } else if self.is_unsigned() {
            Some((0, (1i128 << bits) - 1))
        } else {
            None
        }
    }

    fn is_signed(self) -> bool {
        matches!(
            self,
            Self::S1 | Self::S2 | Self::S4 | Self::S8 | Self::S16 | Self::S32 | Self::S64
        )
    }

    fn is_unsigned(self) -> bool {
        matches!(
            self,
            Self::U1 | Self::U2 | Self::U4 | Self::U8 | Self::U16 | Self::U32 | Self::U64
        )
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known_name() {
            Some(name) => f.write_str(name),
            None => write!(f, "type{}", self.number()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip() {
        for number in -3..200 {
            assert_eq!(ElementType::from_number(number).number(), number);
        }
        assert_eq!(ElementType::from_number(16), ElementType::Bf16);
        assert_eq!(ElementType::from_number(99).to_string(), "type99");
    }

    #[test]
    fn integer_ranges() {
        assert_eq!(ElementType::S32.integer_range(), Some((i32::MIN.into(), i32::MAX.into())));
        assert_eq!(ElementType::U64.integer_range(), Some((0, u64::MAX.into())));
        assert_eq!(ElementType::F32.integer_range(), None);
    }
}
