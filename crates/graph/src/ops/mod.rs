//! The operations on tensors, by kind.

mod constant;
mod contract;
mod convolution;
mod custom;
mod elementwise;
mod index;
mod nn;
mod reduce;
mod select;
mod shape;
mod sort;

pub use constant::{Scalar, constant, full, iota, ones, zeros};
pub use contract::{einsum, precise_einsum};
pub use convolution::Convolution;
pub use custom::{Attribute, CustomCallBuilder, barrier, custom_call};
pub use select::select;
pub use shape::concatenate;
