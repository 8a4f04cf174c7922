//! Arithmetic on values of kernels.

use super::value::{Type, Value};
use fullshard_core::DType;
use std::ops::{Add, Div, Mul, Sub};

/// Names of an op on floats and on integers.
type Names = (&'static str, &'static str);

impl Value {
    /// An op on two values, of which one or both are repeated to the same dims.
    fn binary(&self, other: &Value, (float, integer): Names) -> Value {
        let (left, right) = self.alike(other);
        let op = if left.is_float() { float } else { integer };
        left.emit(&format!("{op} {left}, {right} : {}", left.ty.text()), left.ty.clone())
    }

    /// Both values in the same dims.
    fn alike(&self, other: &Value) -> (Value, Value) {
        if self.ty.element != other.ty.element {
            self.body.fail(format!("{} and {} differ", self.ty.text(), other.ty.text()));
        }
        let (a, b) = (&self.ty.dims, &other.ty.dims);
        let dims: Vec<usize> = match (a.len(), b.len()) {
            (0, _) => b.clone(),
            (_, 0) => a.clone(),
            _ => a.iter().zip(b).map(|(a, b)| *a.max(b)).collect(),
        };
        let fits = |own: &[usize]| {
            own.is_empty()
                || own.len() == dims.len()
                    && own.iter().zip(&dims).all(|(own, dim)| own == dim || *own == 1)
        };
        if !fits(a) || !fits(b) {
            self.body.fail(format!("{} does not fit {}", self.ty.text(), other.ty.text()));
        }
        (self.expanded(&dims), other.expanded(&dims))
    }

    fn unary(&self, op: &str) -> Value {
        self.emit(&format!("{op} {self} : {}", self.ty.text()), self.ty.clone())
    }

    /// Two to the power of it.
    pub fn exp2(&self) -> Value {
        self.unary("math.exp2")
    }

    /// The reciprocal of its square root.
    pub fn rsqrt(&self) -> Value {
        self.unary("math.rsqrt")
    }

    /// The smaller of two values.
    pub fn min(&self, other: &Value) -> Value {
        self.binary(other, ("arith.minimumf", "arith.minsi"))
    }

    /// Where it is less than an integer.
    pub fn less_than(&self, limit: usize) -> Value {
        let limit = self.builder().int(limit as i64);
        let (left, right) = self.alike(&limit);
        let ty = Type { element: DType::Bool, ..left.ty.clone() };
        left.emit(&format!("arith.cmpi slt, {left}, {right} : {}", left.ty.text()), ty)
    }

    /// This where a condition holds, elsewhere zero.
    pub fn or_zero(&self, condition: Option<&Value>) -> Value {
        let Some(condition) = condition else { return self.clone() };
        let dims = &self.ty.dims;
        let zero = self.builder().zeros(dims).convert(self.ty.element);
        let condition = condition.expanded(dims);
        let op = format!("arith.select {condition}, {self}, {zero}");
        let types = format!("{}, {}", condition.ty.text(), self.ty.text());
        self.emit(&format!("{op} : {types}"), self.ty.clone())
    }

    /// Where both hold.
    pub fn and(&self, other: &Value) -> Value {
        let (left, right) = self.alike(other);
        left.emit(&format!("arith.andi {left}, {right} : {}", left.ty.text()), left.ty.clone())
    }
}

/// What stands on the right of an operator: a value, or a number of the type of the other side.
pub trait Operand {
    /// It as a value beside another.
    fn beside(self, other: &Value) -> Value;
}

impl Operand for Value {
    fn beside(self, _: &Value) -> Value {
        self
    }
}

impl Operand for &Value {
    fn beside(self, _: &Value) -> Value {
        self.clone()
    }
}

impl Operand for f64 {
    fn beside(self, other: &Value) -> Value {
        other.builder().float(self)
    }
}

impl Operand for usize {
    fn beside(self, other: &Value) -> Value {
        other.builder().int(self as i64)
    }
}

macro_rules! operators {
    ($($name:ident, $method:ident, $names:expr;)*) => { $(
        impl<T: Operand> $name<T> for &Value {
            type Output = Value;
            fn $method(self, other: T) -> Value {
                self.binary(&other.beside(self), $names)
            }
        }
        impl<T: Operand> $name<T> for Value {
            type Output = Value;
            fn $method(self, other: T) -> Value {
                self.binary(&other.beside(&self), $names)
            }
        }
    )* };
}

operators! {
    Add, add, ("arith.addf", "arith.addi");
    Sub, sub, ("arith.subf", "arith.subi");
    Mul, mul, ("arith.mulf", "arith.muli");
    Div, div, ("arith.divf", "arith.divsi");
}
