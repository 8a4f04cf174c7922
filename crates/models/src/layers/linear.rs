//! Linear layers as torch has them: the weight is `[output, input]`.

use super::fp8::{self, Order};
use crate::module::{Initializer, Module};
use crate::scope::Scope;
use fullshard_graph::{Result, Tensor};

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
        fp8::linear(scope, x, &weight, bias.as_ref(), Order::OutputFirst)
    })
}
