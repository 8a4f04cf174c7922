//! Linear layers as in torch: the weight is `[output, input]`.

use super::dim_names::{DimName, VOCAB};
use super::{DEFAULT_STD, add_bias, fp8, kernels, width};
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
    dim_names: Option<[DimName; 2]>,
}

impl<'a> Linear<'a> {
    /// With an output size.
    pub fn new(output: usize) -> Linear<'a> {
        Linear { output, bias: true, std: DEFAULT_STD, tied: None, dim_names: None }
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
    pub fn dim_names(self, names: [DimName; 2]) -> Linear<'a> {
        Linear { dim_names: Some(names), ..self }
    }

    /// The output size.
    pub(super) fn output(&self) -> usize {
        self.output
    }

    /// Applies the layer with a name to the last dimension.
    pub fn apply(&self, nn: &Scope<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
        nn.module(name, CLASS, |nn| {
            let weight = self.weight(nn, width(x)?)?;
            let bias = || {
                let bias = Parameter::new("bias", &[self.output], Initializer::Zeros);
                nn.get(&bias.with_dim_names(self.names().get(..1).unwrap_or_default()))
            };
            let bias = self.bias.then(bias).transpose()?;
            let output = linear(nn, x, &weight, bias.as_ref(), Order::OutputFirst, self.dim_names)?;
            // Losses from logits need all of them; `loss::apply` does not.
            match nn.tensor_parallel().filter(|it| self.has_logits() && it.slices(&VOCAB)) {
                Some(tensor) => tensor.whole(&output, self.output),
                None => Ok(output),
            }
        })
    }

    /// The weight, `[output, input]`, in the module of the layer.
    fn weight(&self, nn: &Scope<'_>, input: usize) -> Result<Tensor> {
        nn.get(&self.weight_parameter(input))
    }

    /// The declaration of the weight.
    pub(super) fn weight_parameter(&self, input: usize) -> Parameter {
        let dims = [self.output, input];
        let weight = match self.tied {
            Some(other) => Parameter::tied("weight", &dims, other),
            None => Parameter::new("weight", &dims, Initializer::normal(self.std)),
        };
        weight.with_dim_names(self.names())
    }

    /// Whether its outputs are logits of the vocabulary.
    fn has_logits(&self) -> bool {
        self.names().first().is_some_and(|name| name.name == VOCAB.name)
    }

    fn names(&self) -> &[DimName] {
        self.dim_names.as_ref().map_or(&[], |names| &names[..])
    }
}

pub(super) const CLASS: &str = "Linear";

/// A linear layer over the last dimension, tensor-parallel if the names of its weight are sliced.
pub(super) fn linear(
    scope: &Scope<'_>,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    order: Order,
    names: Option<[DimName; 2]>,
) -> Result<Tensor> {
    let Some([first, second]) = names else { return matmul(scope, x, weight, bias, order) };
    let (input, output) = match order {
        Order::InputFirst => (first, second),
        Order::OutputFirst => (second, first),
    };
    let Some(tensor) = scope.tensor_parallel() else {
        return annotated(scope, x, weight, bias, order, [input, output]);
    };
    if tensor.slices(&output) {
        return matmul(scope, &tensor.enter(x)?, weight, bias, order);
    }
    if !tensor.slices(&input) {
        return matmul(scope, x, weight, bias, order);
    }
    // The bias is added once, to the sum.
    let sum = tensor.leave(&matmul(scope, x, weight, None, order)?)?;
    bias.map_or(Ok(sum.clone()), |bias| add_bias(scope, &sum, bias))
}

/// A linear layer over full sizes, whose inputs and outputs are annotated by the names of the
/// weight: along a sharded dim, or, after a sum over one, as the residual stream.
fn annotated(
    scope: &Scope<'_>,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    order: Order,
    [input, output]: [DimName; 2],
) -> Result<Tensor> {
    let is_sharded = |dim| scope.annotations().is_some_and(|it| it.shards(dim) > 1);
    if !is_sharded(&input) || is_sharded(&output) {
        return scope.constrain_last(&matmul(scope, x, weight, bias, order)?, output);
    }
    let x = scope.constrain_last(x, input)?;
    let sum = scope.constrain_residual(&matmul(scope, &x, weight, None, order)?)?;
    bias.map_or(Ok(sum.clone()), |bias| add_bias(scope, &sum, bias))
}

/// The matmul and the bias: in FP8 if the scope enables it and the sizes allow it.
fn matmul(
    scope: &Scope<'_>,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    order: Order,
) -> Result<Tensor> {
    let tokens: usize = x.dims().iter().rev().skip(1).product();
    if scope.uses_fp8() && x.dtype() == DType::Bf16 && fp8::fits(tokens, weight.dims()) {
        let kernels = kernels::are_used(scope, x);
        return fp8::fp8_linear(x, weight, bias, order, kernels);
    }
    let output = match order {
        Order::InputFirst => x.linear(weight)?,
        Order::OutputFirst => x.linear(&weight.t()?)?,
    };
    bias.map_or(Ok(output.clone()), |bias| add_bias(scope, &output, bias))
}
