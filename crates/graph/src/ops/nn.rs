//! What neural networks are made of, in terms of the rest.

use crate::error::Result;
use crate::ops::{select, zeros};
use crate::tensor::Tensor;
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, SQRT_2};

/// What [`Tensor::gelu_tanh`] multiplies `x + a x³` by, `sqrt(8 / π)`.
const GELU_STEEPNESS: f64 = SQRT_2 * FRAC_2_SQRT_PI;

impl Tensor {
    /// The logarithm of the sum of exponentials over a dimension, which goes.
    pub fn logsumexp(&self, dim: usize) -> Result<Tensor> {
        self.check_dim("logsumexp", dim)?;
        let largest = self.max(&[dim])?.stop_gradient()?;
        // An infinity less itself is not a number.
        let largest = select(&largest.is_finite()?, &largest, &zeros(self.dtype(), &[])?)?;
        let shifted = (self - largest.spread(self.dims(), &[dim])?)?;
        shifted.exp()?.sum(&[dim])?.log()? + largest
    }

    /// Exponentials divided by their sum over a dimension.
    pub fn softmax(&self, dim: usize) -> Result<Tensor> {
        self.check_dim("softmax", dim)?;
        let largest = self.max(&[dim])?.stop_gradient()?;
        let exponentials = (self - largest.spread(self.dims(), &[dim])?)?.exp()?;
        let sum = exponentials.sum(&[dim])?;
        exponentials / sum.spread(self.dims(), &[dim])?
    }

    /// The logarithm of the softmax.
    pub fn log_softmax(&self, dim: usize) -> Result<Tensor> {
        self.check_dim("log_softmax", dim)?;
        self - self.logsumexp(dim)?.spread(self.dims(), &[dim])?
    }

    /// Mean and variance over a dimension, which stays with size one.
    pub fn moments(&self, dim: usize) -> Result<(Tensor, Tensor)> {
        self.check_dim("moments", dim)?;
        let mean = self.mean(&[dim])?.expand(dim)?;
        let variance = (self - &mean)?.square()?.mean(&[dim])?.expand(dim)?;
        Ok((mean, variance))
    }

    /// Normalised over the last dimension to mean zero and variance one.
    pub fn normalize(&self, epsilon: f64) -> Result<Tensor> {
        let last = self.rank().saturating_sub(1);
        let (mean, variance) = self.moments(last)?;
        (self - mean)? * (variance + epsilon)?.rsqrt()?
    }

    /// Normalised over the last dimension to a mean square of one.
    pub fn rms_normalize(&self, epsilon: f64) -> Result<Tensor> {
        let last = self.rank().saturating_sub(1);
        let mean_square = self.square()?.mean(&[last])?.expand(last)?;
        self * (mean_square + epsilon)?.rsqrt()?
    }

    /// The larger of this and zero.
    pub fn relu(&self) -> Result<Tensor> {
        let zero = zeros(self.dtype(), &[])?;
        // This way around, what is not a number stays what it is.
        select(&self.compare(crate::Comparison::LessEqual, &zero)?, &zero, self)
    }

    /// The Gaussian error linear unit, exactly: `x Φ(x)`.
    pub fn gelu(&self) -> Result<Tensor> {
        let cdf = ((self * FRAC_1_SQRT_2)?.erf()? + 1.0)?;
        (self * cdf)? * 0.5
    }

    /// The Gaussian error linear unit by the hyperbolic tangent, as in GPT-2 (`gelu_new`). Written
    /// with the logistic function, `σ(2u) = (1 + tanh u) / 2`, which takes half the instructions and
    /// does not cancel where `x` is far below zero.
    pub fn gelu_tanh(&self) -> Result<Tensor> {
        self * self.gelu_tanh_inside()?.sigmoid()?
    }

    /// The slope of [`Tensor::gelu_tanh`]. With `z` what the logistic function is taken of, that of
    /// `x σ(z)` is `σ (1 + (1 - σ) x z')`; and since `z = k x + k a x³`, `x z' = 3 z - 2 k x`: half
    /// the instructions that taking the gradient makes.
    pub fn gelu_tanh_slope(&self) -> Result<Tensor> {
        let inside = self.gelu_tanh_inside()?;
        let level = inside.sigmoid()?;
        let rise = ((inside * 3.0)? - (self * (2.0 * GELU_STEEPNESS))?)?;
        &level * (((1.0 - &level)? * rise)? + 1.0)?
    }

    /// `k x + k a x³`.
    fn gelu_tanh_inside(&self) -> Result<Tensor> {
        self * ((self.square()? * (GELU_STEEPNESS * 0.044715))? + GELU_STEEPNESS)?
    }

    /// The Gaussian error linear unit by the logistic function (`quick_gelu`).
    pub fn gelu_sigmoid(&self) -> Result<Tensor> {
        self * (self * 1.702)?.sigmoid()?
    }

    /// The sigmoid linear unit, `x σ(x)`.
    pub fn silu(&self) -> Result<Tensor> {
        self * self.sigmoid()?
    }
}
