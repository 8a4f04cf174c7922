//! Normalisation by the root mean square, then a gain.

use super::widened;
use crate::module::{Initializer, Module};
use crate::scope::Scope;
use fullshard_graph::{Result, Tensor};

/// Declares the layer under the name that a model's own class for it has.
pub fn module(class: &'static str, width: usize) -> Module {
    Module::new(class).parameter("weight", &[width], Initializer::Ones)
}

/// Applies the layer of a name to the last dimension. The statistics are in `f32` at least; the
/// gain is applied to the rounded result, as Llama does.
pub fn apply(scope: &Scope<'_>, name: &str, x: &Tensor, epsilon: f64) -> Result<Tensor> {
    scope.module(name, |scope| {
        let normal = widened(x)?.rms_normalize(epsilon)?.convert(x.dtype())?;
        normal * scope.parameter("weight")?
    })
}
