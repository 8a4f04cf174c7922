//! Elementwise operations, with broadcasting, and the operators.

use crate::error::{Error, Result};
use crate::op::{Binary, Comparison, Op, Unary};
use crate::ops::constant::fits;
use crate::ops::full;
use crate::tensor::Tensor;
use crate::trace::emit_one;
use fullshard_core::{DType, NumberClass};
use std::ops::{Add, Div, Mul, Neg, Sub};

impl Unary {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Unary::Negate => "negate",
            Unary::Exp => "exponential",
            Unary::Expm1 => "exponential_minus_one",
            Unary::Log => "log",
            Unary::Log1p => "log_plus_one",
            Unary::Logistic => "logistic",
            Unary::Tanh => "tanh",
            Unary::Sine => "sine",
            Unary::Cosine => "cosine",
            Unary::Sqrt => "sqrt",
            Unary::Rsqrt => "rsqrt",
            Unary::Abs => "abs",
            Unary::Sign => "sign",
            Unary::Floor => "floor",
            Unary::Round => "round_nearest_even",
            Unary::Erf => "erf",
            Unary::Not => "not",
            Unary::IsFinite => "is_finite",
        }
    }

    fn supports(self, dtype: DType) -> bool {
        match self {
            Unary::Negate | Unary::Abs | Unary::Sign => {
                matches!(dtype.class(), NumberClass::Signed | NumberClass::Float)
            }
            Unary::Not => !dtype.is_float(),
            _ => dtype.is_float(),
        }
    }
}

impl Binary {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Binary::Add => "add",
            Binary::Subtract => "subtract",
            Binary::Multiply => "multiply",
            Binary::Divide => "divide",
            Binary::Remainder => "remainder",
            Binary::Maximum => "maximum",
            Binary::Minimum => "minimum",
            Binary::Power => "power",
            Binary::And => "and",
            Binary::Or => "or",
            Binary::Xor => "xor",
            Binary::ShiftLeft => "shift_left",
            Binary::ShiftRight => "shift_right_logical",
        }
    }

    fn supports(self, dtype: DType) -> bool {
        match self {
            Binary::And | Binary::Or | Binary::Xor => !dtype.is_float(),
            Binary::ShiftLeft | Binary::ShiftRight => dtype.is_integer(),
            Binary::Maximum | Binary::Minimum => true,
            _ => dtype != DType::Bool,
        }
    }
}

impl Tensor {
    pub(crate) fn unary(&self, op: Unary) -> Result<Tensor> {
        if !op.supports(self.dtype()) {
            return Err(Error::new(op.name(), format!("does not support {}", self.ty())));
        }
        let dtype = if op == Unary::IsFinite { DType::Bool } else { self.dtype() };
        emit_one(op.name(), Op::Unary(op), &[self], self.ty().with_dtype(dtype))
    }

    pub(crate) fn binary(&self, op: Binary, other: &Tensor) -> Result<Tensor> {
        let (left, right) = broadcast_pair(op.name(), self, other)?;
        if !op.supports(left.dtype()) {
            return Err(Error::new(op.name(), format!("does not support {}", left.ty())));
        }
        emit_one(op.name(), Op::Binary(op), &[&left, &right], left.ty().clone())
    }

    /// A number of this element type, for an op; fractions are not integers.
    fn number(&self, op: Binary, number: f64) -> Result<Tensor> {
        if !fits(self.dtype(), number) {
            let reason = format!("{number} is not representable in {}; convert it", self.ty());
            return Err(Error::new(op.name(), reason));
        }
        full(self.dtype(), &[], number)
    }

    /// The op with a number of the same element type.
    fn with_number(&self, op: Binary, number: f64) -> Result<Tensor> {
        self.binary(op, &self.number(op, number)?)
    }

    /// Elementwise comparison.
    pub fn compare(&self, comparison: Comparison, other: &Tensor) -> Result<Tensor> {
        let (left, right) = broadcast_pair("compare", self, other)?;
        let ty = left.ty().with_dtype(DType::Bool);
        emit_one("compare", Op::Compare(comparison), &[&left, &right], ty)
    }

    /// Converts to another element type.
    pub fn convert(&self, dtype: DType) -> Result<Tensor> {
        if dtype == self.dtype() {
            return Ok(self.clone());
        }
        emit_one("convert", Op::Convert, &[self], self.ty().with_dtype(dtype))
    }

    /// The same bits, as another element type of the same size.
    pub fn bitcast(&self, dtype: DType) -> Result<Tensor> {
        // A bool has one bit, whatever its size in memory.
        let bits = |dtype: DType| if dtype == DType::Bool { 1 } else { 8 * dtype.size() };
        if bits(dtype) != bits(self.dtype()) {
            let reason = format!("{} and {dtype} have different bit widths", self.ty());
            return Err(Error::new("bitcast", reason));
        }
        emit_one("bitcast", Op::Bitcast, &[self], self.ty().with_dtype(dtype))
    }

    /// Elementwise power.
    pub fn pow(&self, exponent: f64) -> Result<Tensor> {
        self.with_number(Binary::Power, exponent)
    }

    /// The square.
    pub fn square(&self) -> Result<Tensor> {
        self * self
    }

    /// Clamps to a range.
    pub fn clamp(&self, low: f64, high: f64) -> Result<Tensor> {
        self.with_number(Binary::Maximum, low)?.with_number(Binary::Minimum, high)
    }
}

macro_rules! unary_methods {
    ($($(#[$doc:meta])* $method:ident => $op:ident),* $(,)?) => {
        impl Tensor {$(
            $(#[$doc])*
            pub fn $method(&self) -> Result<Tensor> {
                self.unary(Unary::$op)
            }
        )*}
    };
}

unary_methods! {
    /// The exponential.
    exp => Exp,
    /// `exp(x) - 1`, accurate near zero.
    expm1 => Expm1,
    /// The natural logarithm.
    log => Log,
    /// `log(1 + x)`, accurate near zero.
    log1p => Log1p,
    /// The logistic function, `1 / (1 + exp(-x))`.
    sigmoid => Logistic,
    /// The hyperbolic tangent.
    tanh => Tanh,
    /// The sine.
    sin => Sine,
    /// The cosine.
    cos => Cosine,
    /// The square root.
    sqrt => Sqrt,
    /// The reciprocal square root.
    rsqrt => Rsqrt,
    /// The absolute value.
    abs => Abs,
    /// -1, 0 or 1.
    sign => Sign,
    /// Rounded down.
    floor => Floor,
    /// Rounded to the nearest integer, ties to even.
    round => Round,
    /// The error function.
    erf => Erf,
    /// Not, logical or bitwise.
    not => Not,
    /// Whether it is neither infinite nor NaN.
    is_finite => IsFinite,
}

macro_rules! binary_methods {
    ($($(#[$doc:meta])* $method:ident => $op:ident),* $(,)?) => {
        impl Tensor {$(
            $(#[$doc])*
            pub fn $method(&self, other: &Tensor) -> Result<Tensor> {
                self.binary(Binary::$op, other)
            }
        )*}
    };
}

binary_methods! {
    /// The larger of two.
    maximum => Maximum,
    /// The smaller of two.
    minimum => Minimum,
    /// The remainder of division, with the sign of `self`.
    remainder => Remainder,
    /// And, logical or bitwise.
    and => And,
    /// Or, logical or bitwise.
    or => Or,
    /// Exclusive or, logical or bitwise.
    xor => Xor,
    /// Left shift.
    shift_left => ShiftLeft,
    /// Logical right shift.
    shift_right => ShiftRight,
}

macro_rules! operators {
    ($($trait:ident $method:ident $op:ident),* $(,)?) => {$(
        impl $trait<&Tensor> for &Tensor {
            type Output = Result<Tensor>;

            fn $method(self, other: &Tensor) -> Result<Tensor> {
                self.binary(Binary::$op, other)
            }
        }

        impl $trait<Tensor> for &Tensor {
            type Output = Result<Tensor>;

            fn $method(self, other: Tensor) -> Result<Tensor> {
                self.binary(Binary::$op, &other)
            }
        }

        impl $trait<&Tensor> for Tensor {
            type Output = Result<Tensor>;

            fn $method(self, other: &Tensor) -> Result<Tensor> {
                self.binary(Binary::$op, other)
            }
        }

        impl $trait<Tensor> for Tensor {
            type Output = Result<Tensor>;

            fn $method(self, other: Tensor) -> Result<Tensor> {
                self.binary(Binary::$op, &other)
            }
        }

        impl $trait<f64> for &Tensor {
            type Output = Result<Tensor>;

            fn $method(self, number: f64) -> Result<Tensor> {
                self.with_number(Binary::$op, number)
            }
        }

        impl $trait<f64> for Tensor {
            type Output = Result<Tensor>;

            fn $method(self, number: f64) -> Result<Tensor> {
                self.with_number(Binary::$op, number)
            }
        }

        impl $trait<&Tensor> for f64 {
            type Output = Result<Tensor>;

            fn $method(self, tensor: &Tensor) -> Result<Tensor> {
                tensor.number(Binary::$op, self)?.binary(Binary::$op, tensor)
            }
        }
    )*};
}

operators!(Add add Add, Sub sub Subtract, Mul mul Multiply, Div div Divide);

impl Neg for &Tensor {
    type Output = Result<Tensor>;

    fn neg(self) -> Result<Tensor> {
        self.unary(Unary::Negate)
    }
}

/// Two tensors broadcast to the same dimensions: missing dimensions are prepended, and dimensions
/// of size one are repeated.
pub(crate) fn broadcast_pair(op: &str, a: &Tensor, b: &Tensor) -> Result<(Tensor, Tensor)> {
    let mismatch =
        |what: &str| Error::new(op, format!("{} and {} have different {what}", a.ty(), b.ty()));
    if a.dtype() != b.dtype() {
        return Err(mismatch("element types; convert one"));
    }
    if a.dims() == b.dims() {
        return Ok((a.clone(), b.clone()));
    }
    let rank = a.rank().max(b.rank());
    let dim = |tensor: &Tensor, i: usize| {
        (i + tensor.rank()).checked_sub(rank).map_or(1, |i| tensor.dims()[i])
    };
    let dims = (0..rank)
        .map(|i| match (dim(a, i), dim(b, i)) {
            (x, y) if x == y => Ok(x),
            (1, y) => Ok(y),
            (x, 1) => Ok(x),
            _ => Err(mismatch("dimensions that do not broadcast")),
        })
        .collect::<Result<Vec<usize>>>()?;
    Ok((a.broadcast_to(&dims)?, b.broadcast_to(&dims)?))
}
