//! Normalisation by the root mean square, then a gain.

use super::{computed_once, widened, width};
use crate::module::Initializer;
use crate::scope::Scope;
use fullshard_graph::{Error, Result, Tensor, custom_vjp};

/// Applies the layer of a name, and of the class that a model has for it, to the last dimension. The statistics are in `f32` at least; the
/// gain is applied to the rounded result, as Llama does.
pub fn apply(
    nn: &Scope<'_>,
    name: &str,
    class: &'static str,
    x: &Tensor,
    epsilon: f64,
) -> Result<Tensor> {
    nn.module(name, class, |nn| {
        let weight = nn.parameter("weight", &[width(x)?], Initializer::Ones)?;
        rms_norm(x, &weight, epsilon)
    })
}

/// The layer as its definition says.
pub fn reference(x: &Tensor, weight: &Tensor, epsilon: f64) -> Result<Tensor> {
    widened(x)?.rms_normalize(epsilon)?.convert(x.dtype())? * weight
}

/// The layer with a gradient that keeps no more than `x` and a number for each of its rows.
pub fn rms_norm(x: &Tensor, weight: &Tensor, epsilon: f64) -> Result<Tensor> {
    let mut results = custom_vjp(
        &[x, weight],
        |inputs| Ok(vec![reference(&inputs[0], &inputs[1], epsilon)?]),
        |inputs| forward(inputs, epsilon),
        |kept, gradients| backward(&kept, &gradients[0]),
    )?;
    results.pop().ok_or_else(|| lost("result"))
}

fn forward(inputs: Vec<Tensor>, epsilon: f64) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
    let [x, weight] = inputs.try_into().map_err(|_| lost("input"))?;
    let last = x.rank() - 1;
    let mean_square = widened(&x)?.square()?.mean(&[last])?.expand(last)?;
    let scale = computed_once(&[&(mean_square + epsilon)?.rsqrt()?])?.remove(0);
    let result = ((widened(&x)? * &scale)?.convert(x.dtype())? * &weight)?;
    Ok((vec![result], vec![x, scale, weight]))
}

/// With `n` the normalised row and `g` its gradient, that of the row is `g - n mean(g n)`, scaled as
/// the row was.
fn backward(kept: &[Tensor], gradient: &Tensor) -> Result<Vec<Tensor>> {
    let [x, scale, weight] = kept else { return Err(lost("kept value")) };
    let last = x.rank() - 1;
    let rows: Vec<usize> = (0..last).collect();
    let gradient = widened(gradient)?;
    let normal = (widened(x)? * scale)?;
    let of_normal = (&gradient * widened(weight)?)?;
    let slope = (&of_normal * &normal)?.mean(&[last])?.expand(last)?;
    let of_x = ((of_normal - (&normal * slope)?)? * scale)?;
    let of_weight = (&gradient * widened(&normal.convert(x.dtype())?)?)?.sum(&rows)?;
    Ok(vec![of_x.convert(x.dtype())?, of_weight.convert(weight.dtype())?])
}

fn lost(what: &str) -> Error {
    Error::new("rms norm", format!("a {what} is missing"))
}
