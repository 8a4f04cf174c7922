//! Ops without operands.

use crate::error::{Error, Result};
use crate::op::{Constant, Op};
use crate::tensor::Tensor;
use crate::trace::emit_one;
use fullshard_core::{DType, NumberClass, TensorType};
use half::{bf16, f16};
use std::rc::Rc;

/// A Rust number that can be a constant.
pub trait Scalar: Copy {
    /// Its element type.
    const DTYPE: DType;

    /// Its bytes, little-endian.
    fn to_bytes(self) -> Vec<u8>;
}

macro_rules! scalars {
    ($($ty:ty => $dtype:ident),* $(,)?) => {$(
        impl Scalar for $ty {
            const DTYPE: DType = DType::$dtype;

            fn to_bytes(self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }
        }
    )*};
}

scalars! {
    i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    u8 => U8, u16 => U16, u32 => U32, u64 => U64,
    f32 => F32, f64 => F64, f16 => F16, bf16 => Bf16,
}

impl Scalar for bool {
    const DTYPE: DType = DType::Bool;

    fn to_bytes(self) -> Vec<u8> {
        vec![u8::from(self)]
    }
}

/// A tensor of the given values, row-major. Pass large ones as arguments.
pub fn constant<T: Scalar>(dims: &[usize], values: &[T]) -> Result<Tensor> {
    let ty = TensorType::new(T::DTYPE, dims);
    if ty.elements() != values.len() {
        return Err(Error::new("constant", format!("{} values for {ty}", values.len())));
    }
    let bytes = values.iter().flat_map(|value| value.to_bytes()).collect();
    let value = if values.len() == 1 { Constant::Splat(bytes) } else { Constant::Dense(bytes) };
    emit_one("constant", Op::Constant(Rc::new(value)), &[], ty)
}

/// A tensor filled with one value, converted to its element type.
pub fn full(dtype: DType, dims: &[usize], value: f64) -> Result<Tensor> {
    if !fits(dtype, value) {
        let ty = TensorType::new(dtype, dims);
        return Err(Error::new("full", format!("{value} is not representable in {ty}")));
    }
    let bytes = match dtype {
        DType::Bool => (value != 0.0).to_bytes(),
        DType::I8 => (value as i8).to_bytes(),
        DType::I16 => (value as i16).to_bytes(),
        DType::I32 => (value as i32).to_bytes(),
        DType::I64 => (value as i64).to_bytes(),
        DType::U8 => (value as u8).to_bytes(),
        DType::U16 => (value as u16).to_bytes(),
        DType::U32 => (value as u32).to_bytes(),
        DType::U64 => (value as u64).to_bytes(),
        DType::F16 => f16::from_f64(value).to_bytes(),
        DType::F32 => (value as f32).to_bytes(),
        DType::F64 => value.to_bytes(),
        DType::Bf16 => bf16::from_f64(value).to_bytes(),
        // FP8.
        _ => return full(DType::F32, dims, value)?.convert(dtype),
    };
    let op = Op::Constant(Rc::new(Constant::Splat(bytes)));
    emit_one("full", op, &[], TensorType::new(dtype, dims))
}

/// Whether an element type represents a number. Floats round fractions, and any number converts to
/// a bool, false if it is zero.
pub(crate) fn fits(dtype: DType, value: f64) -> bool {
    let bits = dtype.size() as i32 * 8;
    let (low, high) = match dtype.class() {
        NumberClass::Float | NumberClass::Bool => return true,
        NumberClass::Unsigned => (0.0, 2_f64.powi(bits) - 1.0),
        NumberClass::Signed => (-(2_f64.powi(bits - 1)), 2_f64.powi(bits - 1) - 1.0),
    };
    value.fract() == 0.0 && (low..=high).contains(&value)
}

/// A tensor of zeros.
pub fn zeros(dtype: DType, dims: &[usize]) -> Result<Tensor> {
    full(dtype, dims, 0.0)
}

/// A tensor of ones.
pub fn ones(dtype: DType, dims: &[usize]) -> Result<Tensor> {
    full(dtype, dims, 1.0)
}

/// Indices from zero along a dimension.
pub fn iota(dtype: DType, dims: &[usize], dim: usize) -> Result<Tensor> {
    let ty = TensorType::new(dtype, dims);
    if dim >= dims.len() || dtype == DType::Bool {
        return Err(Error::new("iota", format!("no iota along dimension {dim} of {ty}")));
    }
    emit_one("iota", Op::Iota { dim }, &[], ty)
}
