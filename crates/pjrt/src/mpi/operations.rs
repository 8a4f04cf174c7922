//! Reductions.
//!
//! What MPI's own maximum and minimum make of NaN depends on the order of their operands, so that
//! processes could get different results of one reduction. Ours are NaN if any operand is, as in
//! XLA.

use super::MpiError;
use super::library::{Handle, Library};
use std::ffi::c_void;
use std::slice;

/// A reduction of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Sum,
    Max,
    Min,
}

/// The operations that MPI does not have.
#[derive(Debug)]
pub(super) struct FloatOperations {
    max: [Handle; 2],
    min: [Handle; 2],
}

/// An operation on `*count` numbers, into the second.
pub(super) type UserFunction =
    unsafe extern "C" fn(*mut c_void, *mut c_void, *mut i64, *mut Handle);

impl FloatOperations {
    /// Creates them, after MPI was started.
    pub(super) fn new(library: &Library) -> Result<FloatOperations, MpiError> {
        let create = |function: UserFunction| {
            const COMMUTES: i32 = 1;
            let mut operation = Handle::SUM;
            // SAFETY: MPI is started, and the function is static.
            let code =
                unsafe { (library.functions.op_create)(function, COMMUTES, &raw mut operation) };
            library.check_code(code, || "MPI_Op_create".to_owned())?;
            Ok(operation)
        };
        Ok(FloatOperations {
            max: [create(max_f32)?, create(max_f64)?],
            min: [create(min_f32)?, create(min_f64)?],
        })
    }

    /// The operation for a datatype.
    pub(super) fn get(&self, operation: Operation, ty: Handle) -> Handle {
        let [single, double] = match operation {
            Operation::Sum => return Handle::SUM,
            Operation::Max => self.max,
            Operation::Min => self.min,
        };
        match ty {
            Handle::FLOAT => single,
            Handle::DOUBLE => double,
            _ if operation == Operation::Max => Handle::MAX,
            _ => Handle::MIN,
        }
    }
}

/// Declares user functions: `name: type, whether the first operand wins`.
macro_rules! user_functions {
    ($($name:ident: $ty:ty, $wins:tt;)*) => {$(
        unsafe extern "C" fn $name(
            from: *mut c_void,
            into: *mut c_void,
            count: *mut i64,
            _ty: *mut Handle,
        ) {
            // SAFETY: MPI passes two distinct vectors of this many numbers of the type for which
            // the operation is used.
            let (from, into) = unsafe {
                let count = usize::try_from(*count).unwrap_or(0);
                let from = slice::from_raw_parts(from.cast::<$ty>(), count);
                (from, slice::from_raw_parts_mut(into.cast::<$ty>(), count))
            };
            for (into, &x) in into.iter_mut().zip(from) {
                if x $wins *into || x.is_nan() {
                    *into = x;
                }
            }
        }
    )*};
}

user_functions! {
    max_f32: f32, >;
    max_f64: f64, >;
    min_f32: f32, <;
    min_f64: f64, <;
}
