//! GPT-2's linear layers, which Hugging Face calls `Conv1D`: the weight is `[input, output]`.

use super::dim_names::DimName;
use super::linear::{Order, linear};
use super::{Activation, DEFAULT_STD, add_bias, checkpoint, width};
use crate::module::{Initializer, Parameter};
use crate::scope::Scope;
use fullshard_graph::{Result, Tensor, einsum};

/// A linear layer with a bias whose weight is `[input, output]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Conv1d {
    output: usize,
    std: f64,
    dim_names: Option<[DimName; 2]>,
}

impl Conv1d {
    /// With an output size.
    pub fn new(output: usize) -> Conv1d {
        Conv1d { output, std: DEFAULT_STD, dim_names: None }
    }

    /// With a standard deviation for the initializer of the weight.
    pub fn std(self, std: f64) -> Conv1d {
        Conv1d { std, ..self }
    }

    /// With logical names for the dimensions of the weight, `[input, output]`.
    pub fn dim_names(self, names: [DimName; 2]) -> Conv1d {
        Conv1d { dim_names: Some(names), ..self }
    }

    /// Applies the layer with a name to the last dimension.
    pub fn apply(&self, nn: &Scope<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
        nn.module(name, CLASS, |nn| {
            let [weight, bias] = self.declarations(width(x)?);
            let (weight, bias) = (nn.get(&weight)?, nn.get(&bias)?);
            linear(nn, x, &weight, Some(&bias), Order::InputFirst, self.dim_names)
        })
    }

    /// Applies the layer with a name, then an activation function with another. What is between
    /// them is the input of an MLP. Where both are kernels, the gradient of the bias is summed in the
    /// pass that computes that of the sum.
    pub fn apply_activated(
        &self,
        nn: &Scope<'_>,
        name: &str,
        x: &Tensor,
        activation: Activation,
        activation_name: &str,
    ) -> Result<Tensor> {
        if !activation.has_kernel(nn, x) {
            let inner = self.apply(nn, name, x)?.named(checkpoint::MLP_IN)?;
            return activation.apply(nn, activation_name, &inner);
        }
        let outputs = nn.module_outputs(name, CLASS, |nn| {
            let [weight, bias] = self.declarations(width(x)?);
            let (weight, bias) = (nn.get(&weight)?, nn.get(&bias)?);
            let product = linear(nn, x, &weight, None, Order::InputFirst, self.dim_names)?;
            let inner = (product.stop_gradient()? + bias.stop_gradient()?)?;
            Ok(vec![product, bias, inner.named(checkpoint::MLP_IN)?])
        })?;
        activation.apply_biased(nn, activation_name, &outputs)
    }

    /// Applies the layer with a name and splits the output into `parts`.
    pub fn apply_parts(
        &self,
        nn: &Scope<'_>,
        name: &str,
        x: &Tensor,
        parts: usize,
    ) -> Result<Vec<Tensor>> {
        if !nn.lowering().split_projections && nn.annotations().is_none() {
            return self.apply(nn, name, x)?.split(x.rank() - 1, parts);
        }
        nn.module_outputs(name, CLASS, |nn| {
            let [weight, bias] = self.declarations(width(x)?).map(|it| nn.stored(&it));
            let (weight, bias) = (weight?, bias?);
            let is_split = weight.rank() > 2;
            if is_split && !nn.lowering().split_projections {
                return self.all_parts(nn, x, &weight, &bias);
            }
            let (weights, biases) = match is_split {
                true => (unstack(&weight, 1)?, unstack(&bias, 0)?),
                false => (weight.split(1, parts)?, bias.split(0, parts)?),
            };
            let part = |(weight, bias)| {
                linear(nn, x, weight, Some(bias), Order::InputFirst, self.dim_names)
            };
            weights.iter().zip(&biases).map(part).collect()
        })
    }

    /// All parts by one matmul with a weight `[input, parts, output]`, so that the gradient of `x`
    /// is summed over devices once.
    fn all_parts(
        &self,
        nn: &Scope<'_>,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
    ) -> Result<Vec<Tensor>> {
        let output = match x.rank() {
            2 => einsum("ti,ipo->tpo", x, weight)?,
            _ => einsum("bsi,ipo->bspo", x, weight)?,
        };
        let output = match self.dim_names {
            Some([_, output_name]) => nn.constrain_last(&output, output_name)?,
            None => output,
        };
        unstack(&add_bias(nn, &output, bias)?, x.rank() - 1)
    }

    /// The weight and the bias.
    fn declarations(&self, input: usize) -> [Parameter; 2] {
        let normal = Initializer::normal(self.std);
        let weight = Parameter::new("weight", &[input, self.output], normal);
        let names = self.dim_names.as_ref().map_or(&[][..], |names| &names[..]);
        let bias = Parameter::new("bias", &[self.output], Initializer::Zeros);
        let bias = bias.with_dim_names(names.get(1..).unwrap_or_default());
        [weight.with_dim_names(names), bias]
    }
}

/// The slices of a tensor along a dim, without it.
fn unstack(stacked: &Tensor, dim: usize) -> Result<Vec<Tensor>> {
    let mut dims = stacked.dims().to_vec();
    let parts = stacked.split(dim, dims.remove(dim))?;
    parts.iter().map(|part| part.reshape(&dims)).collect()
}

const CLASS: &str = "Conv1D";
