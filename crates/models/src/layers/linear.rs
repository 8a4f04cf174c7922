//! Linear layers as in torch: the weight is `[output, input]`.

use super::{DEFAULT_STD, add_bias, fp8, width};
use crate::module::{Initializer, Parameter};
use crate::scope::Scope;
use fullshard_graph::{DType, Result, Tensor};

/// The order of a weight's dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// `[input, output]`, as in `Conv1D`.
    InputFirst,
    /// `[output, input]`, as in `Linear`.
    OutputFirst,
}

/// A linear layer, with a bias by default.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Linear<'a> {
    output: usize,
    bias: bool,
    std: f64,
    tied: Option<&'a str>,
    dim_names: &'static [&'static str],
}

impl<'a> Linear<'a> {
    /// With an output size.
    pub fn new(output: usize) -> Linear<'a> {
        Linear { output, bias: true, std: DEFAULT_STD, tied: None, dim_names: &[] }
    }

    /// With or without a bias.
    pub fn bias(self, bias: bool) -> Linear<'a> {
        Linear { bias, ..self }
    }

    /// With a standard deviation for the initializer of the weight.
    pub fn std(self, std: f64) -> Linear<'a> {
        Linear { std, ..self }
    }

    /// With a weight that is tied to the parameter with this full name, if any.
    pub fn tied(self, other: Option<&'a str>) -> Linear<'a> {
        Linear { tied: other, ..self }
    }

    /// With logical names for the dimensions of the weight, `[output, input]`.
    pub fn dim_names(self, names: &'static [&'static str; 2]) -> Linear<'a> {
        Linear { dim_names: names, ..self }
    }

    /// Applies the layer with a name to the last dimension.
    pub fn apply(&self, nn: &Scope<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
        nn.module(name, CLASS, |nn| {
            let weight = self.weight(nn, width(x)?)?;
            let bias = || {
                let bias = Parameter::new("bias", &[self.output], Initializer::Zeros);
                nn.get(&bias.with_dim_names(self.dim_names.get(..1).unwrap_or_default()))
            };
            let bias = self.bias.then(bias).transpose()?;
            linear(nn, x, &weight, bias.as_ref(), Order::OutputFirst)
        })
    }

    /// The weight, `[output, input]`, in the module of the layer.
    pub(super) fn weight(&self, nn: &Scope<'_>, input: usize) -> Result<Tensor> {
        let dims = [self.output, input];
        let weight = match self.tied {
            Some(other) => Parameter::tied("weight", &dims, other),
            None => Parameter::new("weight", &dims, Initializer::normal(self.std)),
        };
        nn.get(&weight.with_dim_names(self.dim_names))
    }
}

pub(super) const CLASS: &str = "Linear";

/// A linear layer over the last dimension: in FP8 if the scope enables it and the sizes allow it.
pub(super) fn linear(
    scope: &Scope<'_>,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    order: Order,
) -> Result<Tensor> {
    let tokens: usize = x.dims().iter().rev().skip(1).product();
    if scope.uses_fp8() && x.dtype() == DType::Bf16 && fp8::fits(tokens, weight.dims()) {
        return fp8::fp8_linear(x, weight, bias, order);
    }
    let output = match order {
        Order::InputFirst => x.linear(weight)?,
        Order::OutputFirst => x.linear(&weight.t()?)?,
    };
    bias.map_or(Ok(output.clone()), |bias| add_bias(scope, &output, bias))
}
