//! Layer normalisation: mean zero, variance one, then a gain and a shift.

use super::widened;
use crate::module::{Initializer, Module};
use crate::scope::Scope;
use fullshard_graph::{Result, Tensor};

/// Declares the layer.
pub fn module(width: usize) -> Module {
    Module::new("LayerNorm").parameter("weight", &[width], Initializer::Ones).parameter(
        "bias",
        &[width],
        Initializer::Zeros,
    )
}

/// Applies the layer of a name to the last dimension. All of it is computed in `f32` at least
/// and only the result rounded, as torch does.
pub fn apply(scope: &Scope<'_>, name: &str, x: &Tensor, epsilon: f64) -> Result<Tensor> {
    scope.module(name, |scope| {
        let (weight, bias) = (scope.parameter("weight")?, scope.parameter("bias")?);
        let normal = widened(x)?.normalize(epsilon)?;
        ((normal * widened(&weight)?)? + widened(&bias)?)?.convert(x.dtype())
    })
}
