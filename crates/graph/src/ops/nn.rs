//! Neural network ops, composed of the other ops.

use crate::error::Result;
use crate::ops::{select, zeros};
use crate::tensor::Tensor;
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, SQRT_2};

/// The factor of `x + a x³` in [`Tensor::gelu_tanh`], `sqrt(8 / π)`.
const GELU_FACTOR: f64 = SQRT_2 * FRAC_2_SQRT_PI;

impl Tensor {
    /// The log of the sum of exponentials over a dimension, which is removed.
    pub fn logsumexp(&self, dim: usize) -> Result<Tensor> {
        self.check_dim("logsumexp", dim)?;
        let max = self.max(&[dim])?.stop_gradient()?;
        // Infinity minus infinity is NaN.
        let max = select(&max.is_finite()?, &max, &zeros(self.dtype(), &[])?)?;
        let shifted = (self - max.broadcast_reduced(self.dims(), &[dim])?)?;
        shifted.exp()?.sum(&[dim])?.log()? + max
    }

    /// Softmax over a dimension.
    pub fn softmax(&self, dim: usize) -> Result<Tensor> {
        self.check_dim("softmax", dim)?;
        let max = self.max(&[dim])?.stop_gradient()?;
        let exponentials = (self - max.broadcast_reduced(self.dims(), &[dim])?)?.exp()?;
        let sum = exponentials.sum(&[dim])?;
        exponentials / sum.broadcast_reduced(self.dims(), &[dim])?
    }

    /// Log-softmax over a dimension.
    pub fn log_softmax(&self, dim: usize) -> Result<Tensor> {
        self.check_dim("log_softmax", dim)?;
        self - self.logsumexp(dim)?.broadcast_reduced(self.dims(), &[dim])?
    }

    /// Mean and variance over a dimension, which is kept with size one.
    pub fn moments(&self, dim: usize) -> Result<(Tensor, Tensor)> {
        self.check_dim("moments", dim)?;
        let mean = self.mean(&[dim])?.expand(dim)?;
        let variance = (self - &mean)?.square()?.mean(&[dim])?.expand(dim)?;
        Ok((mean, variance))
    }

    /// Normalizes the last dimension to mean zero and variance one.
    pub fn normalize(&self, epsilon: f64) -> Result<Tensor> {
        let last = self.rank().saturating_sub(1);
        let (mean, variance) = self.moments(last)?;
        (self - mean)? * (variance + epsilon)?.rsqrt()?
    }

    /// Normalizes the last dimension to a mean square of one.
    pub fn rms_normalize(&self, epsilon: f64) -> Result<Tensor> {
        let last = self.rank().saturating_sub(1);
        let mean_square = self.square()?.mean(&[last])?.expand(last)?;
        self * (mean_square + epsilon)?.rsqrt()?
    }

    /// The rectified linear unit, `max(x, 0)`.
    pub fn relu(&self) -> Result<Tensor> {
        let zero = zeros(self.dtype(), &[])?;
        // In this order NaN stays NaN.
        select(&self.compare(crate::Comparison::LessEqual, &zero)?, &zero, self)
    }

    /// Exact GELU, `x Φ(x)`.
    pub fn gelu(&self) -> Result<Tensor> {
        let cdf = ((self * FRAC_1_SQRT_2)?.erf()? + 1.0)?;
        (self * cdf)? * 0.5
    }

    /// GELU with the tanh approximation, as in GPT-2 (`gelu_new`). Computed with the logistic
    /// function, `σ(2u) = (1 + tanh u) / 2`, which takes half the instructions and does not cancel
    /// where `x` is far below zero.
    pub fn gelu_tanh(&self) -> Result<Tensor> {
        self * self.gelu_tanh_argument()?.sigmoid()?
    }

    /// The derivative of [`Tensor::gelu_tanh`]. With `z` the argument of the logistic function,
    /// that of `x σ(z)` is `σ (1 + (1 - σ) x z')`; since `z = k x + k a x³`, `x z' = 3 z - 2 k x`:
    /// half the instructions of the derived gradient.
    pub fn gelu_tanh_grad(&self) -> Result<Tensor> {
        let z = self.gelu_tanh_argument()?;
        let sigma = z.sigmoid()?;
        let x_dz = ((z * 3.0)? - (self * (2.0 * GELU_FACTOR))?)?;
        &sigma * (((1.0 - &sigma)? * x_dz)? + 1.0)?
    }

    /// `k x + k a x³`.
    fn gelu_tanh_argument(&self) -> Result<Tensor> {
        self * ((self.square()? * (GELU_FACTOR * 0.044715))? + GELU_FACTOR)?
    }

    /// GELU with the sigmoid approximation (`quick_gelu`).
    pub fn gelu_sigmoid(&self) -> Result<Tensor> {
        self * (self * 1.702)?.sigmoid()?
    }

    /// The sigmoid linear unit, `x σ(x)`.
    pub fn silu(&self) -> Result<Tensor> {
        self * self.sigmoid()?
    }
}
