//! GPT-2's linear layers, which Hugging Face calls `Conv1D`: the weight is `[input, output]`.

use super::linear::{Order, linear};
use crate::module::{Initializer, Module};
use crate::scope::Scope;
use fullshard_graph::{Result, Tensor};

/// Declares the layer. Its weight begins with a standard deviation, its bias at zero.
pub fn module(input: usize, output: usize, deviation: f64) -> Module {
    Module::new("Conv1D")
        .parameter("weight", &[input, output], Initializer::Normal { deviation })
        .parameter("bias", &[output], Initializer::Zeros)
}

/// Applies the layer of a name to the last dimension.
pub fn apply(scope: &Scope<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
    scope.module(name, |scope| {
        let (weight, bias) = (scope.parameter("weight")?, scope.parameter("bias")?);
        linear(scope, x, &weight, Some(&bias), Order::InputFirst)
    })
}

/// Applies the layer of a name as so many layers side by side, and gives the result of each.
pub fn apply_parts(scope: &Scope<'_>, name: &str, x: &Tensor, parts: usize) -> Result<Vec<Tensor>> {
    if !scope.forms().split_projections {
        return apply(scope, name, x)?.split(x.rank() - 1, parts);
    }
    scope.module_of_many(name, |scope| {
        let weights = scope.parameter("weight")?.split(1, parts)?;
        let biases = scope.parameter("bias")?.split(0, parts)?;
        let part = |(weight, bias)| linear(scope, x, weight, Some(bias), Order::InputFirst);
        weights.iter().zip(&biases).map(part).collect()
    })
}
