//! RMS normalization, then a weight.

use super::kernels::norm::{self, Norm};
use super::{dim_names, normalized, row_statistics, upcast, width};
use crate::module::{Initializer, Parameter};
use crate::scope::Scope;
use fullshard_graph::{Error, Result, Tensor, custom_vjp, zeros};

/// Applies the layer with a name and the model's class for it to the last dimension. The statistics
/// are in at least `f32`; the weight is applied to the rounded result, as in Llama.
pub fn apply(
    nn: &Scope<'_>,
    name: &str,
    class: &'static str,
    x: &Tensor,
    epsilon: f64,
) -> Result<Tensor> {
    nn.module(name, class, |nn| {
        let weight = weight(nn, x)?;
        if norm::is_used(nn, x) {
            return kernel(epsilon).apply(x, &[&weight]);
        }
        normalized(nn, rms_norm(x, &weight, epsilon)?)
    })
}

/// Applies the layer to the residual stream. Gives that as well, to go on with: where norms are
/// kernels, its gradient is added to in the same pass.
pub fn apply_residual(
    nn: &Scope<'_>,
    name: &str,
    class: &'static str,
    x: &Tensor,
    epsilon: f64,
) -> Result<[Tensor; 2]> {
    if !norm::is_used(nn, x) {
        return Ok([x.clone(), apply(nn, name, class, x, epsilon)?]);
    }
    let outputs = nn.module_outputs(name, class, |nn| {
        Ok(kernel(epsilon).apply_residual(x, &[&weight(nn, x)?])?.into())
    })?;
    outputs.try_into().map_err(|_| missing("output"))
}

fn weight(nn: &Scope<'_>, x: &Tensor) -> Result<Tensor> {
    let weight = Parameter::new("weight", &[width(x)?], Initializer::Ones);
    nn.get(&weight.with_dim_names(&[dim_names::NORM]))
}

fn kernel(epsilon: f64) -> Norm {
    Norm { centered: false, epsilon }
}

/// The layer by its definition.
pub fn reference(x: &Tensor, weight: &Tensor, epsilon: f64) -> Result<Tensor> {
    upcast(x)?.rms_normalize(epsilon)?.convert(x.dtype())? * weight
}

/// The layer with a gradient that saves only `x` and one number per row.
pub fn rms_norm(x: &Tensor, weight: &Tensor, epsilon: f64) -> Result<Tensor> {
    let last = x.rank() - 1;
    let mean_square = upcast(&x.stop_gradient()?)?.square()?.mean(&[last])?.expand(last)?;
    let scale = row_statistics(&[&(mean_square + epsilon)?.rsqrt()?])?.remove(0);
    let mut results = custom_vjp(
        &[x, weight, &scale],
        |inputs| Ok(vec![forward(&inputs)?]),
        |inputs| Ok((vec![forward(&inputs)?], inputs)),
        |residuals, gradients| backward(&residuals, &gradients[0]),
    )?;
    results.pop().ok_or_else(|| missing("result"))
}

fn forward(inputs: &[Tensor]) -> Result<Tensor> {
    let [x, weight, scale] = inputs else { return Err(missing("input")) };
    (upcast(x)? * scale)?.convert(x.dtype())? * weight
}

/// With `n` the normalized row and `g` its gradient, the gradient of the row is `g - n mean(g n)`,
/// times the scale.
fn backward(residuals: &[Tensor], gradient: &Tensor) -> Result<Vec<Tensor>> {
    let [x, weight, scale] = residuals else { return Err(missing("residual")) };
    let last = x.rank() - 1;
    let rows: Vec<usize> = (0..last).collect();
    let gradient = upcast(gradient)?;
    let normalized = (upcast(x)? * scale)?;
    let normalized_grad = (&gradient * upcast(weight)?)?;
    let mean_product = (&normalized_grad * &normalized)?.mean(&[last])?.expand(last)?;
    let x_grad = ((normalized_grad - (&normalized * mean_product)?)? * scale)?;
    let weight_grad = (&gradient * upcast(&normalized.convert(x.dtype())?)?)?.sum(&rows)?;
    let scale_grad = zeros(scale.dtype(), scale.dims())?;
    Ok(vec![x_grad.convert(x.dtype())?, weight_grad.convert(weight.dtype())?, scale_grad])
}

fn missing(what: &str) -> Error {
    Error::new("rms norm", format!("a {what} is missing"))
}
