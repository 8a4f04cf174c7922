//! Gradients of convolutions and pooling.

use super::{Context, Cotangent};
use crate::error::{Error, Result};
use crate::op::{ConvolutionDims, Reduction, Window};
use crate::tensor::Tensor;

/// The gradients of images and kernel: each a convolution of the gradient with the other.
pub(super) fn through_convolution(
    dims: &ConvolutionDims,
    ctx: &Context<'_>,
    ct: &Tensor,
) -> Result<Vec<Cotangent>> {
    if dims.batch_groups != 1 || dims.reverse.contains(&true) {
        return Err(Error::new("grad", "no second-order gradient of a convolution"));
    }
    let (images, kernel) = (&ctx.inputs[0], &ctx.inputs[1]);
    let left = ctx.needs_grad[0].then(|| image_gradient(dims, images, kernel, ct)).transpose()?;
    let right = ctx.needs_grad[1].then(|| kernel_gradient(dims, images, kernel, ct)).transpose()?;
    Ok(vec![left, right])
}

/// The gradient, dilated by the stride, convolved with the reversed kernel.
fn image_gradient(
    dims: &ConvolutionDims,
    images: &Tensor,
    kernel: &Tensor,
    ct: &Tensor,
) -> Result<Tensor> {
    let spatial = dims.stride.len();
    let groups = dims.feature_groups;
    let mut padding = Vec::new();
    let (lhs, rhs, out) = (dims.spatial(dims.lhs), dims.spatial(dims.rhs), dims.spatial(dims.out));
    for i in 0..spatial {
        let window = (kernel.dims()[rhs[i]] as i64 - 1) * dims.rhs_dilation[i] as i64;
        let low = window - dims.padding[i].0;
        let dilated = (ct.dims()[out[i]] as i64 - 1) * dims.stride[i] as i64 + 1;
        let high = images.dims()[lhs[i]] as i64 + window - dilated - low;
        padding.push((low, high));
    }
    let (input, output) = dims.rhs;
    // With groups, the inputs of a group connect only to the outputs of that group.
    let kernel = swap_groups(kernel, input, output, groups)?;
    let transposed = ConvolutionDims {
        stride: vec![1; spatial],
        padding,
        lhs_dilation: dims.stride.clone(),
        rhs_dilation: dims.rhs_dilation.clone(),
        reverse: vec![true; spatial],
        feature_groups: groups,
        batch_groups: 1,
        lhs: dims.out,
        rhs: (output, input),
        out: dims.lhs,
    };
    ct.convolve(&kernel, transposed)
}

/// A kernel with inputs and outputs swapped, per group.
fn swap_groups(kernel: &Tensor, input: usize, output: usize, groups: usize) -> Result<Tensor> {
    if groups == 1 {
        return Ok(kernel.clone());
    }
    let parts = kernel.split(output, groups)?;
    crate::ops::concatenate(&parts.iter().collect::<Vec<_>>(), input)
}

/// The images, batch and features swapped, convolved with the gradient dilated by the stride.
fn kernel_gradient(
    dims: &ConvolutionDims,
    images: &Tensor,
    kernel: &Tensor,
    ct: &Tensor,
) -> Result<Tensor> {
    let spatial = dims.stride.len();
    let (lhs, rhs, out) = (dims.spatial(dims.lhs), dims.spatial(dims.rhs), dims.spatial(dims.out));
    let mut padding = Vec::new();
    for i in 0..spatial {
        let low = dims.padding[i].0;
        let dilated = (ct.dims()[out[i]] as i64 - 1) * dims.stride[i] as i64 + 1;
        let window = (kernel.dims()[rhs[i]] as i64 - 1) * dims.rhs_dilation[i] as i64 + 1;
        let high = dilated + window - 1 - images.dims()[lhs[i]] as i64 - low;
        padding.push((low, high));
    }
    let transposed = ConvolutionDims {
        stride: dims.rhs_dilation.clone(),
        padding,
        lhs_dilation: vec![1; spatial],
        rhs_dilation: dims.stride.clone(),
        reverse: vec![false; spatial],
        feature_groups: 1,
        batch_groups: dims.feature_groups,
        lhs: (dims.lhs.1, dims.lhs.0),
        rhs: (dims.out.0, dims.out.1),
        out: dims.rhs,
    };
    images.convolve(ct, transposed)
}

/// The gradient of pooling: to each window's maximum, or spread over each window.
pub(super) fn through_window(
    kind: Reduction,
    window: &Window,
    x: &Tensor,
    ct: &Tensor,
) -> Result<Tensor> {
    match kind {
        Reduction::Max => x.select_and_scatter(ct, window.clone()),
        Reduction::Sum => {
            let rank = x.rank();
            let interior: Vec<usize> = window.stride.iter().map(|&stride| stride - 1).collect();
            let low: Vec<i64> =
                (0..rank).map(|i| window.size[i] as i64 - 1 - window.padding[i].0).collect();
            let high: Vec<i64> = (0..rank)
                .map(|i| {
                    let dilated = (ct.dims()[i] as i64 - 1) * window.stride[i] as i64 + 1;
                    x.dims()[i] as i64 + window.size[i] as i64 - 1 - dilated - low[i]
                })
                .collect();
            let dilated = ct.pad(0.0, &low, &high, &interior)?;
            let each = Window {
                size: window.size.clone(),
                stride: vec![1; rank],
                padding: vec![(0, 0); rank],
            };
            dilated.reduce_window(Reduction::Sum, each)
        }
        _ => Err(Error::new("grad", format!("no gradient of a window's {kind:?}"))),
    }
}
