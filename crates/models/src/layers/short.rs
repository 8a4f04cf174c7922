//! Shorthand methods of [`Scope`] for common layers, with common defaults: weights are initialized
//! with a standard deviation of 0.02, biases with zeros, and norms have an epsilon of 1e-5. The
//! layers themselves have more options.

use super::{Activation, DEFAULT_EPSILON, Embedding, Linear, layer_norm, rms_norm};
use crate::scope::Scope;
use fullshard_graph::{Result, Tensor};

impl Scope<'_> {
    /// Looks tokens up in an embedding table; see [`Embedding`].
    pub fn embedding(
        &self,
        name: &str,
        tokens: &Tensor,
        rows: usize,
        width: usize,
    ) -> Result<Tensor> {
        Embedding::new(rows, width).apply(self, name, tokens)
    }

    /// The position embeddings of a sequence: the first rows of a table.
    pub fn positions(
        &self,
        name: &str,
        sequence: usize,
        rows: usize,
        width: usize,
    ) -> Result<Tensor> {
        Embedding::new(rows, width).first_rows(self, name, sequence)
    }

    /// A linear layer with a bias over the last dimension; see [`Linear`].
    pub fn linear(&self, name: &str, x: &Tensor, output: usize) -> Result<Tensor> {
        Linear::new(output).apply(self, name, x)
    }

    /// Layer normalization over the last dimension.
    pub fn layer_norm(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        layer_norm::apply(self, name, x, DEFAULT_EPSILON)
    }

    /// RMS normalization over the last dimension.
    pub fn rms_norm(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        rms_norm::apply(self, name, "RMSNorm", x, DEFAULT_EPSILON)
    }

    /// An activation function as a module.
    pub fn activation(&self, name: &str, x: &Tensor, activation: Activation) -> Result<Tensor> {
        activation.apply(self, name, x)
    }
}
