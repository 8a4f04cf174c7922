//! Kernels of our own for NVIDIA GPUs, where XLA's fusions take more passes over memory than a layer
//! needs. Each has another form, in the layer that uses it, for what it does not support and for
//! other platforms.

pub mod norm;
pub mod quantize;
pub mod tiles;

use crate::scope::Scope;
use fullshard_graph::triton::MOST_ELEMENTS;
use fullshard_graph::{DType, Tensor, TensorType};

/// Why kernels do not take rows `[..., width]`, if so.
pub fn unsupported_reason(x: &TensorType) -> Option<String> {
    let width = x.dims.last().copied().unwrap_or_default();
    match () {
        () if !matches!(x.dtype, DType::Bf16 | DType::F16) => {
            Some(format!("they take bf16 and f16, not {}", x.dtype.name()))
        }
        () if width == 0 || !width.is_multiple_of(8) => {
            Some(format!("rows of {width} elements are not aligned"))
        }
        () if x.elements() == 0 => Some("there are no rows".into()),
        () if x.elements() > MOST_ELEMENTS => Some("there are more than 2^31 elements".into()),
        () => None,
    }
}

/// Whether kernels take `x` here. Over automatic axes they do not: the compiler does not shard them.
pub(super) fn are_used(nn: &Scope<'_>, x: &Tensor) -> bool {
    nn.lowering().kernels && nn.annotations().is_none() && unsupported_reason(x.ty()).is_none()
}
