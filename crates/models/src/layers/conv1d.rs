//! GPT-2's linear layers, which Hugging Face calls `Conv1D`: the weight is `[input, output]`.

use super::dim_names::DimName;
use super::linear::{Order, linear};
use super::{DEFAULT_STD, width};
use crate::module::{Initializer, Parameter};
use crate::scope::Scope;
use fullshard_graph::{Result, Tensor};

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
            let [weight, bias] = self.declarations(width(x)?);
            let weights = split_parts(&nn.stored(&weight)?, weight.dims.len(), parts)?;
            let biases = split_parts(&nn.stored(&bias)?, bias.dims.len(), parts)?;
            let part = |(weight, bias)| {
                linear(nn, x, weight, Some(bias), Order::InputFirst, self.dim_names)
            };
            weights.iter().zip(&biases).map(part).collect()
        })
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

/// The parts of a parameter of this rank along its last dim: over automatic axes they are a dim of
/// their own, so that each is sharded.
fn split_parts(stored: &Tensor, rank: usize, parts: usize) -> Result<Vec<Tensor>> {
    if stored.rank() == rank {
        return stored.split(rank - 1, parts);
    }
    let part = |part: Tensor| {
        let [before, last] = [&part.dims()[..rank - 1], &part.dims()[rank..]];
        part.reshape(&[before, last].concat())
    };
    stored.split(rank - 1, parts)?.into_iter().map(part).collect()
}

const CLASS: &str = "Conv1D";
