//! Types and lists in the text.

use fullshard_core::{DType, TensorType};
use std::fmt::Write as _;
use std::rc::Rc;

/// A type as MLIR writes it: `tensor<2x3xf32>`.
pub(super) fn mlir(ty: &TensorType) -> String {
    let mut text = String::from("tensor<");
    for dim in &ty.dims {
        // Writing to a string does not fail.
        let _ = write!(text, "{dim}x");
    }
    text += ty.dtype.mlir_name();
    text + ">"
}

/// The type of a scalar.
pub(super) fn scalar(dtype: DType) -> String {
    mlir(&TensorType::scalar(dtype))
}

pub(super) fn types_of(types: &[Rc<TensorType>]) -> Vec<String> {
    types.iter().map(|ty| mlir(ty)).collect()
}

/// `[1, 2]`.
pub(super) fn list<T: std::fmt::Display>(values: &[T]) -> String {
    let values: Vec<String> = values.iter().map(ToString::to_string).collect();
    format!("[{}]", values.join(", "))
}

/// `array<i64: 1, 2>`.
pub(super) fn array<T: std::fmt::Display>(values: &[T]) -> String {
    if values.is_empty() {
        return "array<i64>".into();
    }
    let values: Vec<String> = values.iter().map(ToString::to_string).collect();
    format!("array<i64: {}>", values.join(", "))
}
