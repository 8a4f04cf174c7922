//! Short methods of [`Scope`] for the layers of common models, with common defaults: weights begin
//! with a standard deviation of 0.02, biases at zero, and norms add 1e-5 to variances. The layers
//! themselves take more.

use super::{Activation, DEFAULT_EPSILON, Embedding, Linear, layer_norm, rms_norm};
use crate::scope::Scope;
use fullshard_graph::{Result, Tensor};

impl Scope<'_> {
    /// The rows that tokens pick in a table; see [`Embedding`].
    pub fn embedding(
        &self,
        name: &str,
        tokens: &Tensor,
        rows: usize,
        width: usize,
    ) -> Result<Tensor> {
        Embedding::new(rows, width).apply(self, name, tokens)
    }

    /// The first rows of a table, those of the positions of a sequence.
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

    /// Layer normalisation of the last dimension.
    pub fn layer_norm(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        layer_norm::apply(self, name, x, DEFAULT_EPSILON)
    }

    /// Normalisation of the last dimension by its root mean square.
    pub fn rms_norm(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        rms_norm::apply(self, name, "RMSNorm", x, DEFAULT_EPSILON)
    }

    /// An activation function as a module.
    pub fn activation(&self, name: &str, x: &Tensor, activation: Activation) -> Result<Tensor> {
        activation.apply(self, name, x)
    }
}
