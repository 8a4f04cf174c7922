//! Tensors in host memory: dense, row-major bytes with a type and a shape.

use crate::dtype::{self, Element};
use crate::error::{Error, Result};
use fullshard_core::{DType, TensorType};
use std::borrow::Borrow;
use std::ops::{Deref, DerefMut};

/// A dense row-major tensor on the host.
#[derive(Debug, Clone, PartialEq)]
pub struct HostTensor {
    ty: TensorType,
    bytes: Vec<u8>,
}

/// Zeroed bytes with the alignment at which CPU devices use them without a copy.
#[derive(Debug)]
pub struct AlignedBytes {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl AlignedBytes {
    const ALIGNMENT: usize = 64;

    /// This many zeros.
    pub fn zeroed(length: usize) -> AlignedBytes {
        // Pages of zeros come from the system when they are first used.
        let memory = vec![0; length + Self::ALIGNMENT];
        let start = memory.as_ptr().align_offset(Self::ALIGNMENT).min(Self::ALIGNMENT);
        AlignedBytes { memory, start, length }
    }
}

impl Deref for AlignedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.length]
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }
}

impl HostTensor {
    /// A tensor over bytes already in row-major order.
    pub fn from_bytes(dtype: DType, dims: &[usize], bytes: Vec<u8>) -> Result<HostTensor> {
        HostTensor::new(TensorType::new(dtype, dims), bytes)
    }

    /// A tensor of a type over bytes already in row-major order.
    pub fn new(ty: TensorType, bytes: Vec<u8>) -> Result<HostTensor> {
        dtype::check_bytes(&ty, bytes.len())?;
        if ty.dtype == DType::Bool && bytes.iter().any(|&byte| byte > 1) {
            return Err(Error::Array(format!("a byte of {ty} is neither 0 nor 1")));
        }
        Ok(HostTensor { ty, bytes })
    }

    /// A tensor of the given values.
    pub fn from_values<T: Element>(dims: &[usize], values: &[T]) -> Result<HostTensor> {
        HostTensor::from_bytes(T::DTYPE, dims, bytemuck::cast_slice(values).to_vec())
    }

    /// A boolean tensor.
    pub fn from_bools(dims: &[usize], values: &[bool]) -> Result<HostTensor> {
        let bytes = values.iter().map(|&value| u8::from(value)).collect();
        HostTensor::from_bytes(DType::Bool, dims, bytes)
    }

    /// Tensors of one type, stacked along a new first dimension.
    pub fn stack<T: Borrow<HostTensor>>(tensors: &[T]) -> Result<HostTensor> {
        let first = tensors.first().map(|first| first.borrow().ty.clone());
        let first = first.ok_or_else(|| Error::Array("no tensors to stack".to_owned()))?;
        if let Some(other) = tensors.iter().map(Borrow::borrow).find(|other| other.ty != first) {
            return Err(Error::Array(format!("cannot stack {first} and {}", other.ty)));
        }
        let dims = [&[tensors.len()], &first.dims[..]].concat();
        let bytes: Vec<&[u8]> = tensors.iter().map(|tensor| tensor.borrow().bytes()).collect();
        HostTensor::from_bytes(first.dtype, &dims, bytes.concat())
    }

    /// The element type and dimensions.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    /// The dimensions.
    pub fn dims(&self) -> &[usize] {
        &self.ty.dims
    }

    /// The bytes, row-major.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes, row-major, without a copy.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The values, if `T` is their type.
    pub fn values<T: Element>(&self) -> Result<Vec<T>> {
        if T::DTYPE != self.dtype() {
            return Err(Error::Array(format!(
                "requested {} values of a {} tensor",
                T::DTYPE,
                self.dtype()
            )));
        }
        let mut values = vec![T::zeroed(); self.ty.elements()];
        bytemuck::cast_slice_mut(&mut values).copy_from_slice(&self.bytes);
        Ok(values)
    }

    /// The values, if they are booleans.
    pub fn bools(&self) -> Result<Vec<bool>> {
        if self.dtype() != DType::Bool {
            return Err(Error::Array(format!("requested booleans of {}", self.ty)));
        }
        Ok(self.bytes.iter().map(|&byte| byte == 1).collect())
    }

    /// The elements as `f64`, for printing; none for FP8 types.
    pub fn to_f64(&self) -> Option<Vec<f64>> {
        fn widen<T: Element>(bytes: &[u8], to_f64: impl Fn(T) -> f64) -> Vec<f64> {
            elements::<T>(bytes).map(to_f64).collect()
        }
        let bytes = &self.bytes;
        Some(match self.dtype() {
            DType::Bool | DType::U8 => widen::<u8>(bytes, f64::from),
            DType::I8 => widen::<i8>(bytes, f64::from),
            DType::I16 => widen::<i16>(bytes, f64::from),
            DType::I32 => widen::<i32>(bytes, f64::from),
            DType::I64 => widen::<i64>(bytes, |x| x as f64),
            DType::U16 => widen::<u16>(bytes, f64::from),
            DType::U32 => widen::<u32>(bytes, f64::from),
            DType::U64 => widen::<u64>(bytes, |x| x as f64),
            DType::F16 => widen::<half::f16>(bytes, f64::from),
            DType::Bf16 => widen::<half::bf16>(bytes, f64::from),
            DType::F32 => widen::<f32>(bytes, f64::from),
            DType::F64 => widen::<f64>(bytes, |x| x),
            _ => return None,
        })
    }
}

/// The elements of row-major bytes, which need not be aligned.
fn elements<T: Element>(bytes: &[u8]) -> impl Iterator<Item = T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned)
}
