//! Linear layers as torch has them: the weight is `[output, input]`.

use super::{biased, fp8};
use crate::module::{Initializer, Module};
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

/// Declares a linear layer whose weight begins with a standard deviation, its bias at zero.
pub fn module(input: usize, output: usize, bias: bool, deviation: f64) -> Module {
    let normal = Initializer::Normal { deviation };
    let module = Module::new("Linear").parameter("weight", &[output, input], normal);
    if bias { module.parameter("bias", &[output], Initializer::Zeros) } else { module }
}

/// Declares a linear layer without bias whose weight is another parameter.
pub fn tied(input: usize, output: usize, other: &str) -> Module {
    Module::new("Linear").tied("weight", &[output, input], other)
}

/// Applies the linear layer of a name to the last dimension.
pub fn apply(scope: &Scope<'_>, name: &str, x: &Tensor, bias: bool) -> Result<Tensor> {
    scope.module(name, |scope| {
        let weight = scope.parameter("weight")?;
        let bias = bias.then(|| scope.parameter("bias")).transpose()?;
        linear(scope, x, &weight, bias.as_ref(), Order::OutputFirst)
    })
}

/// A linear layer over the last dimension: in 8 bits if the scope is for that and the sizes allow
/// it.
pub(super) fn linear(
    scope: &Scope<'_>,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    order: Order,
) -> Result<Tensor> {
    let tokens: usize = x.dims().iter().rev().skip(1).product();
    if scope.has_eight_bit_products()
        && x.dtype() == DType::Bf16
        && fp8::fits(tokens, weight.dims())
    {
        return fp8::eight_bit_linear(x, weight, bias, order);
    }
    let product = match order {
        Order::InputFirst => x.linear(weight)?,
        Order::OutputFirst => x.linear(&weight.t()?)?,
    };
    bias.map_or(Ok(product.clone()), |bias| biased(scope, &product, bias))
}
