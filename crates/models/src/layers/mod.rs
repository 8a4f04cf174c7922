//! What models are made of. Each kind of layer is a function that declares its [`Module`] and one
//! that applies it through a [`Scope`].
//!
//! [`Module`]: crate::Module
//! [`Scope`]: crate::Scope

pub mod activation;
pub mod attention;
pub mod conv1d;
pub mod embedding;
pub mod fp8;
pub mod layer_norm;
pub mod linear;
pub mod loss;
pub mod rms_norm;
pub mod rotary;

pub use activation::Activation;

use fullshard_graph::{DType, Error, Result, Tensor};

/// The type for what few bits would spoil: sums, means, exponentials.
pub(crate) fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// A tensor in the type that [`wide`] says.
pub(crate) fn widened(x: &Tensor) -> Result<Tensor> {
    x.convert(wide(x.dtype()))
}

/// The dimensions of a tensor that must have so many of them.
pub(crate) fn dims<const RANK: usize>(what: &str, x: &Tensor) -> Result<[usize; RANK]> {
    x.dims().try_into().map_err(|_| {
        Error::new(what, format!("{} was given, but {RANK} dimensions are needed", x.ty()))
    })
}

/// The lowest finite number of a wide type, which takes a score out of a softmax.
pub(crate) fn lowest(dtype: DType) -> f64 {
    if dtype == DType::F64 { f64::MIN } else { f64::from(f32::MIN) }
}
