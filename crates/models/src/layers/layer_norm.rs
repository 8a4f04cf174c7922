//! Layer normalisation: mean zero, variance one, then a gain and a shift.

use super::{computed_once, widened, width};
use crate::module::Initializer;
use crate::scope::Scope;
use fullshard_graph::{Error, Result, Tensor, custom_vjp, zeros};

/// Applies the layer of a name to the last dimension. All of it is computed in `f32` at least
/// and only the result rounded, as torch does.
pub fn apply(nn: &Scope<'_>, name: &str, x: &Tensor, epsilon: f64) -> Result<Tensor> {
    nn.module(name, "LayerNorm", |nn| {
        let width = width(x)?;
        let weight = nn.parameter("weight", &[width], Initializer::Ones)?;
        let bias = nn.parameter("bias", &[width], Initializer::Zeros)?;
        layer_norm(x, &weight, &bias, epsilon)
    })
}

/// The layer as its definition says.
pub fn reference(x: &Tensor, weight: &Tensor, bias: &Tensor, epsilon: f64) -> Result<Tensor> {
    let normal = widened(x)?.normalize(epsilon)?;
    ((normal * widened(weight)?)? + widened(bias)?)?.convert(x.dtype())
}

/// The layer with a gradient that keeps no more than `x` and two numbers for each of its rows, and
/// reads them as few times as can be.
pub fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor, epsilon: f64) -> Result<Tensor> {
    let mut results = custom_vjp(
        &[x, weight, bias],
        |inputs| Ok(vec![reference(&inputs[0], &inputs[1], &inputs[2], epsilon)?]),
        |inputs| forward(inputs, epsilon),
        |kept, gradients| backward(&kept, &gradients[0]),
    )?;
    results.pop().ok_or_else(|| lost("result"))
}

fn forward(inputs: Vec<Tensor>, epsilon: f64) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
    let [x, weight, bias] = inputs.try_into().map_err(|_| lost("input"))?;
    let (mean, variance) = moments(&widened(&x)?)?;
    let scale = (variance + epsilon)?.rsqrt()?;
    let moments = computed_once(&[&mean, &scale])?;
    let [mean, scale] = moments.try_into().map_err(|_| lost("moment"))?;
    let normal = ((widened(&x)? - &mean)? * &scale)?;
    let result = ((normal * widened(&weight)?)? + widened(&bias)?)?.convert(x.dtype())?;
    Ok((vec![result], vec![x, mean, scale, weight, bias]))
}

/// The mean and the variance of each row, which is read once for both: as those of its differences
/// from its first element. That is no further from the mean than a variance that it is part of
/// allows, so that no more than the length of a row is lost of the precision, and mostly nothing.
fn moments(x: &Tensor) -> Result<(Tensor, Tensor)> {
    let last = x.rank() - 1;
    let first = x.narrow(last, 0, 1)?;
    let apart = (x - &first)?;
    let mean = apart.mean(&[last])?.expand(last)?;
    let square = apart.square()?.mean(&[last])?.expand(last)?;
    let variance = (square - mean.square()?)?.maximum(&zeros(x.dtype(), &[])?)?;
    Ok(((mean + first)?, variance))
}

/// With `n` the normalised row and `g` its gradient, that of the row is `g - mean(g) - n mean(g n)`,
/// scaled as the row was.
fn backward(kept: &[Tensor], gradient: &Tensor) -> Result<Vec<Tensor>> {
    let [x, mean, scale, weight, bias] = kept else { return Err(lost("kept value")) };
    let last = x.rank() - 1;
    let rows: Vec<usize> = (0..last).collect();
    let gradient = widened(gradient)?;
    let normal = ((widened(x)? - mean)? * scale)?;
    let of_normal = (&gradient * widened(weight)?)?;
    let level = of_normal.mean(&[last])?.expand(last)?;
    let slope = (&of_normal * &normal)?.mean(&[last])?.expand(last)?;
    let of_x = (((of_normal - level)? - (&normal * slope)?)? * scale)?;
    let of_weight = (&gradient * &normal)?.sum(&rows)?;
    let of_bias = gradient.sum(&rows)?;
    Ok(vec![
        of_x.convert(x.dtype())?,
        of_weight.convert(weight.dtype())?,
        of_bias.convert(bias.dtype())?,
    ])
}

fn lost(what: &str) -> Error {
    Error::new("layer norm", format!("a {what} is missing"))
}
