//! Convolution and pooling over images: `[batch, height, width, features]`.

use crate::error::{Error, Result};
use crate::op::{ConvolutionDims, Op, Reduction, Window};
use crate::tensor::Tensor;
use crate::trace::emit_one;
use fullshard_core::TensorType;

/// A convolution of `[batch, spatial.., features]` by a kernel `[spatial.., in, out]`.
#[derive(Debug, Clone)]
pub struct Convolution {
    stride: Vec<usize>,
    padding: Vec<(usize, usize)>,
    dilation: Vec<usize>,
    groups: usize,
}

impl Convolution {
    /// A convolution over `spatial` dimensions, with stride one and no padding.
    pub fn new(spatial: usize) -> Convolution {
        Convolution {
            stride: vec![1; spatial],
            padding: vec![(0, 0); spatial],
            dilation: vec![1; spatial],
            groups: 1,
        }
    }

    /// Window strides.
    pub fn stride(mut self, stride: &[usize]) -> Self {
        self.stride = stride.to_vec();
        self
    }

    /// Zero padding before and after each spatial dimension.
    pub fn padding(mut self, padding: &[(usize, usize)]) -> Self {
        self.padding = padding.to_vec();
        self
    }

    /// Window dilation.
    pub fn dilation(mut self, dilation: &[usize]) -> Self {
        self.dilation = dilation.to_vec();
        self
    }

    /// Number of independent feature groups.
    pub fn groups(mut self, groups: usize) -> Self {
        self.groups = groups;
        self
    }

    /// Applies the convolution.
    pub fn apply(&self, images: &Tensor, kernel: &Tensor) -> Result<Tensor> {
        let spatial = self.stride.len();
        let rank = spatial + 2;
        let fail = || {
            let reason = format!("{} by {} ({self:?})", images.ty(), kernel.ty());
            Error::new("convolution", reason)
        };
        let compatible = images.rank() == rank
            && kernel.rank() == rank
            && images.dtype() == kernel.dtype()
            && self.padding.len() == spatial
            && self.dilation.len() == spatial
            && self.stride.iter().chain(&self.dilation).all(|&step| step > 0)
            && self.groups > 0;
        let fits = compatible
            && images.dims()[rank - 1] == kernel.dims()[rank - 2] * self.groups
            && kernel.dims()[rank - 1].is_multiple_of(self.groups);
        if !fits {
            return Err(fail());
        }
        let dims = ConvolutionDims {
            stride: self.stride.clone(),
            padding: self.padding.iter().map(|&(low, high)| (low as i64, high as i64)).collect(),
            lhs_dilation: vec![1; spatial],
            rhs_dilation: self.dilation.clone(),
            reverse: vec![false; spatial],
            feature_groups: self.groups,
            batch_groups: 1,
            lhs: (0, rank - 1),
            rhs: (rank - 2, rank - 1),
            out: (0, rank - 1),
        };
        images.convolve(kernel, dims).map_err(|_| fail())
    }
}

impl ConvolutionDims {
    /// The spatial dimensions of a tensor whose batch and features are at these positions.
    pub(crate) fn spatial(&self, positions: (usize, usize)) -> Vec<usize> {
        (0..self.stride.len() + 2).filter(|&dim| dim != positions.0 && dim != positions.1).collect()
    }
}

impl Tensor {
    pub(crate) fn convolve(&self, kernel: &Tensor, dims: ConvolutionDims) -> Result<Tensor> {
        let fail = || Error::new("convolution", format!("{} by {}", self.ty(), kernel.ty()));
        let (lhs, rhs, out) =
            (dims.spatial(dims.lhs), dims.spatial(dims.rhs), dims.spatial(dims.out));
        let mut result = vec![0; self.rank()];
        result[dims.out.0] = self.dims()[dims.lhs.0] / dims.batch_groups;
        result[dims.out.1] = kernel.dims()[dims.rhs.1];
        for i in 0..dims.stride.len() {
            let dilated = |size: usize, step: usize| {
                if size == 0 { 0 } else { (size - 1) * step + 1 }
            };
            let (low, high) = dims.padding[i];
            let image = dilated(self.dims()[lhs[i]], dims.lhs_dilation[i]) as i64 + low + high;
            let window = dilated(kernel.dims()[rhs[i]], dims.rhs_dilation[i]) as i64;
            let room = usize::try_from(image - window).map_err(|_| fail())?;
            result[out[i]] = room / dims.stride[i] + 1;
        }
        let ty = TensorType::new(self.dtype(), &result);
        emit_one("convolution", Op::Convolution(Box::new(dims)), &[self, kernel], ty)
    }

    /// Max pooling over the spatial dimensions of images.
    pub fn max_pool(
        &self,
        size: &[usize],
        stride: &[usize],
        padding: &[(usize, usize)],
    ) -> Result<Tensor> {
        self.reduce_window(Reduction::Max, self.pool_window("max_pool", size, stride, padding)?)
    }

    /// Sum pooling over the spatial dimensions of images.
    pub fn sum_pool(
        &self,
        size: &[usize],
        stride: &[usize],
        padding: &[(usize, usize)],
    ) -> Result<Tensor> {
        self.reduce_window(Reduction::Sum, self.pool_window("sum_pool", size, stride, padding)?)
    }

    /// Average pooling over the spatial dimensions of images, padding included in the count.
    pub fn mean_pool(
        &self,
        size: &[usize],
        stride: &[usize],
        padding: &[(usize, usize)],
    ) -> Result<Tensor> {
        let count = size.iter().product::<usize>().max(1);
        let window = self.pool_window("mean_pool", size, stride, padding)?;
        self.reduce_window(Reduction::Sum, window)? / count as f64
    }

    fn pool_window(
        &self,
        op: &str,
        size: &[usize],
        stride: &[usize],
        padding: &[(usize, usize)],
    ) -> Result<Window> {
        let spatial = self.rank().saturating_sub(2);
        let fits = self.rank() > 2
            && size.len() == spatial
            && stride.len() == spatial
            && padding.len() == spatial
            && size.iter().chain(stride).all(|&step| step > 0);
        let fail = || {
            let reason = format!("{size:?} by {stride:?} with {padding:?} over {}", self.ty());
            Error::new(op, reason)
        };
        if !fits {
            return Err(fail());
        }
        let around = |values: &[usize]| [&[1], values, &[1]].concat();
        let padding = padding.iter().map(|&(low, high)| (low as i64, high as i64));
        let padding = [(0, 0)].into_iter().chain(padding).chain([(0, 0)]).collect();
        let window = Window { size: around(size), stride: around(stride), padding };
        window_dims(self.dims(), &window).ok_or_else(fail)?;
        Ok(window)
    }

    pub(crate) fn reduce_window(&self, kind: Reduction, window: Window) -> Result<Tensor> {
        let dims = window_dims(self.dims(), &window)
            .ok_or_else(|| Error::new("reduce_window", format!("{window:?} over {}", self.ty())))?;
        let ty = TensorType::new(self.dtype(), &dims);
        emit_one("reduce_window", Op::ReduceWindow { kind, window }, &[self], ty)
    }

    /// Scatters `source` to the position of each window's maximum in this tensor, the rest zero.
    pub(crate) fn select_and_scatter(&self, source: &Tensor, window: Window) -> Result<Tensor> {
        let op = Op::SelectAndScatter { window };
        emit_one("select_and_scatter", op, &[self, source], self.ty().clone())
    }
}

/// Number of window positions in each dimension; `None` if it is larger than the tensor.
fn window_dims(dims: &[usize], window: &Window) -> Option<Vec<usize>> {
    let count = |i: usize| {
        let (low, high) = window.padding[i];
        let room = dims[i] as i64 + low + high - window.size[i] as i64;
        Some(usize::try_from(room).ok()? / window.stride[i] + 1)
    };
    (0..dims.len()).map(count).collect()
}
