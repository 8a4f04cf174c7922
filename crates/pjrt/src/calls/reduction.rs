//! Reductions of MPI, by element type.
//!
//! The standard ABI has no 16-bit floats, and sums should not be rounded at every process: they are
//! widened to `f32`, reduced, and rounded once.

use super::frame::{Address, Tensor};
use crate::mpi::{Handle, Operation};
use fullshard_core::DType;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::slice;

/// A datatype and an operation of MPI.
pub(super) struct Reduction {
    pub ty: Handle,
    pub operation: Operation,
}

impl Reduction {
    /// The reduction of the attribute `reduction`: 0 sum, 1 maximum, 2 minimum.
    pub(super) fn new(dtype: DType, number: i64) -> Result<Reduction, String> {
        let operation = match number {
            // A sum of booleans is their disjunction.
            0 if dtype == DType::Bool => Operation::Max,
            0 => Operation::Sum,
            1 => Operation::Max,
            2 => Operation::Min,
            other => return Err(format!("there is no reduction {other}")),
        };
        let ty = match dtype {
            DType::Bool | DType::U8 => Handle::UINT8,
            DType::I8 => Handle::INT8,
            DType::I16 => Handle::INT16,
            DType::I32 => Handle::INT32,
            DType::I64 => Handle::INT64,
            DType::U16 => Handle::UINT16,
            DType::U32 => Handle::UINT32,
            DType::U64 => Handle::UINT64,
            DType::F16 | DType::Bf16 | DType::F32 => Handle::FLOAT,
            DType::F64 => Handle::DOUBLE,
            other => return Err(format!("{} cannot be reduced over MPI", other.name())),
        };
        Ok(Reduction { ty, operation })
    }

    /// A sum.
    pub(super) fn sum(dtype: DType) -> Result<Reduction, String> {
        Reduction::new(dtype, 0)
    }
}

/// 16-bit floats as `f32`.
pub(super) struct Widened {
    values: Vec<f32>,
    dtype: DType,
}

impl Widened {
    /// Room for results.
    pub(super) fn zeros(elements: usize, dtype: DType) -> Widened {
        Widened { values: vec![0.0; elements], dtype }
    }

    /// The numbers of a tensor, if it has 16-bit floats.
    ///
    /// # Safety
    /// The tensor is live and has elements of this type.
    pub(super) unsafe fn read(tensor: Tensor, dtype: DType) -> Option<Widened> {
        let count = tensor.elements;
        // SAFETY: as the caller promises.
        let values = unsafe {
            match dtype {
                DType::F16 => widen(tensor.data.cast::<f16>(), count),
                DType::Bf16 => widen(tensor.data.cast::<bf16>(), count),
                _ => return None,
            }
        };
        Some(Widened { values, dtype })
    }

    /// Rounds to a tensor of the same size.
    ///
    /// # Safety
    /// The tensor is live, has elements of this type, and nothing else uses it.
    pub(super) unsafe fn write(&self, tensor: Tensor) {
        // SAFETY: as the caller promises.
        unsafe {
            match self.dtype {
                DType::F16 => round(&self.values, tensor.data.cast::<f16>()),
                _ => round(&self.values, tensor.data.cast::<bf16>()),
            }
        }
    }

    /// The address of the numbers, which stays the same when this is moved.
    pub(super) fn address(&mut self) -> Address {
        Address::new(self.values.as_mut_ptr().cast())
    }
}

/// # Safety
/// `data` points to `count` live elements.
unsafe fn widen<T>(data: *const T, count: usize) -> Vec<f32>
where
    [T]: HalfFloatSliceExt,
{
    let mut values = vec![0.0; count];
    // There may be no data to point to.
    if count > 0 {
        // SAFETY: as the caller promises.
        unsafe { slice::from_raw_parts(data, count) }.convert_to_f32_slice(&mut values);
    }
    values
}

/// # Safety
/// `data` points to as many live elements, and there is no other reference to them.
unsafe fn round<T>(values: &[f32], data: *mut T)
where
    [T]: HalfFloatSliceExt,
{
    if !values.is_empty() {
        // SAFETY: as the caller promises.
        unsafe { slice::from_raw_parts_mut(data, values.len()) }.convert_from_f32_slice(values);
    }
}
