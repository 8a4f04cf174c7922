//! FP8 matmuls, twice as fast as 16-bit ones where the hardware supports them.
//!
//! A tensor is quantized with one scale per tensor, the least power of two for which its largest
//! element fits. Scaling by a power of two is exact, so the conversion to FP8 is the only rounding.
//! Scaling is dynamic: the scale is that of the current tensor, not of earlier steps, so there is
//! no state. Activations and weights are `f8E4M3FN`, with three bits of mantissa; gradients are
//! `f8E5M2`, with two bits and more range. Accumulation and results are as in 16 bits.
//!
//! The matmul saves its input in FP8 for the backward pass. GPU compilers fuse "convert, scale,
//! matmul" into one kernel; others compute it unchanged.

use super::kernels;
use super::linear::Order;
use crate::module::{Module, Parameter};
use fullshard_graph::{
    DType, Error, Result, Tensor, barrier, constant, custom_vjp, einsum, full, precise_einsum,
    select,
};

/// The sizes of an FP8 matmul must be multiples of this.
pub const MULTIPLE: usize = 16;

/// An FP8 tensor: it represents its values times the scale.
#[derive(Debug, Clone)]
pub struct Quantized {
    /// The values, of an FP8 type.
    pub values: Tensor,
    /// The scale, one `f32`: a power of two, or NaN if an element was infinite.
    pub scale: Tensor,
}

/// The matmuls of a model that run in FP8, and those that cannot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Matmuls {
    /// The number that run in FP8.
    pub fp8: usize,
    /// The modules of those that do not, since a size is not a multiple of [`MULTIPLE`].
    pub others: Vec<String>,
}

/// Whether a matmul of `tokens` rows with a weight can run in FP8.
pub(super) fn fits(tokens: usize, weight: &[usize]) -> bool {
    weight.iter().chain([&tokens]).all(|size| size.is_multiple_of(MULTIPLE))
}

/// Which matmuls of a model's layers run in FP8, on a number of tokens per device, which computes
/// with weights of these dims.
pub fn matmuls(
    tree: &Module,
    tokens: usize,
    local_dims: impl Fn(&Parameter) -> Vec<usize>,
) -> Matmuls {
    let mut matmuls = Matmuls::default();
    tree.visit(&mut |path, module| {
        let in_layer = path.split('.').any(|name| name.parse::<usize>().is_ok());
        let weight = module.parameters.iter().find(|parameter| parameter.name == "weight");
        let Some(weight) = weight.filter(|weight| in_layer && weight.dims.len() == 2) else {
            return;
        };
        match fits(tokens, &local_dims(weight)) {
            true => matmuls.fp8 += 1,
            false => matmuls.others.push(path.to_owned()),
        }
    });
    matmuls
}

/// A linear layer over the last dimension of `x` whose forward and backward matmuls are in FP8. With
/// kernels, the input and the gradient are rounded together with their transposes, which the
/// matmul of the weight's gradient reads.
pub fn fp8_linear(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    order: Order,
    kernels: bool,
) -> Result<Tensor> {
    let Some((&width, batch)) = x.dims().split_last() else {
        return Err(Error::new("fp8_linear", format!("{} has no dimensions", x.ty())));
    };
    let rows = x.reshape(&[batch.iter().product(), width])?;
    let inputs: Vec<&Tensor> = [&rows, weight].into_iter().chain(bias).collect();
    let result = custom_vjp(
        &inputs,
        |inputs| {
            let x = Rounded::of(&inputs[0], ACTIVATION, kernels)?;
            Ok(vec![forward(order, &x.rows, &inputs[1..], kernels)?])
        },
        |inputs| {
            let x = Rounded::of(&inputs[0], ACTIVATION, kernels)?;
            let result = forward(order, &x.rows, &inputs[1..], kernels)?;
            Ok((vec![result], vec![x.along_tokens().values, x.rows.scale, inputs[1].clone()]))
        },
        |residuals, gradients| {
            let [values, scale, weight] = &residuals[..] else {
                return Err(Error::new("fp8_linear", "unexpected residuals"));
            };
            let x = Quantized { values: values.clone(), scale: scale.clone() };
            backward(order, &x, weight, &gradients[0], bias.is_some(), kernels)
        },
    )?;
    let width = result[0].dims().last().copied();
    result[0].reshape(&batch.iter().copied().chain(width).collect::<Vec<_>>())
}

/// A dim of a weight.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dim {
    Input,
    Output,
}

/// A matrix in FP8.
struct Rounded {
    rows: Quantized,
    /// The values of the transpose, by kernels.
    transposed: Option<Tensor>,
    /// The matrix before it was rounded.
    materialized: Tensor,
}

impl Rounded {
    /// Materializes the matrix once, in its own dtype, while its amax is computed. Otherwise the
    /// compiler may compute it twice or keep it in `f32`, which costs more than reading it again.
    fn of(x: &Tensor, dtype: DType, kernels: bool) -> Result<Rounded> {
        let amax = amax(x)?;
        let x = barrier(&[x])?.remove(0);
        if !kernels {
            return Ok(Rounded {
                rows: round(&x, &amax, dtype)?,
                transposed: None,
                materialized: x,
            });
        }
        let (scale, inverse) = scales(&amax, dtype)?;
        let [values, transposed] = kernels::quantize::quantize(&x, &inverse, dtype)?;
        let rows = Quantized { values, scale };
        Ok(Rounded { rows, transposed: Some(transposed), materialized: x })
    }

    /// A weight, which is not materialized without kernels: compilers round it where it is read.
    fn weight(weight: &Tensor, kernels: bool) -> Result<Rounded> {
        if kernels {
            return Rounded::of(weight, ACTIVATION, kernels);
        }
        let rows = quantize(weight, ACTIVATION)?;
        Ok(Rounded { rows, transposed: None, materialized: weight.clone() })
    }

    /// A weight with a dim last, along which a matmul reads it, and whether that is its transpose.
    /// Without one it is as it is.
    fn with_last(self, dim: Dim, order: Order) -> (Quantized, bool) {
        let is_last = (dim == Dim::Output) == (order == Order::InputFirst);
        match self.transposed {
            Some(values) if !is_last => (Quantized { values, scale: self.rows.scale }, true),
            _ => (self.rows, false),
        }
    }

    /// What the gradient of the weight is computed from: the transpose, if there is one.
    fn along_tokens(&self) -> Quantized {
        let values = self.transposed.as_ref().unwrap_or(&self.rows.values);
        Quantized { values: values.clone(), scale: self.rows.scale.clone() }
    }
}

/// The dtype of activations and weights.
const ACTIVATION: DType = DType::F8E4M3FN;
/// The dtype of gradients.
const GRADIENT: DType = DType::F8E5M2;

/// A quantized input times a weight, plus the bias if any.
fn forward(order: Order, x: &Quantized, parameters: &[Tensor], kernels: bool) -> Result<Tensor> {
    let (weight, bias) = (&parameters[0], parameters.get(1));
    let (quantized, is_transposed) = Rounded::weight(weight, kernels)?.with_last(Dim::Input, order);
    let [x, quantized] = operands(x, &quantized, weight.dtype())?;
    let output = match (order, is_transposed) {
        (Order::InputFirst, false) => einsum("ti,io->to", &x, &quantized)?,
        _ => einsum("ti,oi->to", &x, &quantized)?,
    };
    bias.map_or(Ok(output.clone()), |bias| output + bias)
}

/// The gradients of input, weight and bias, given the input [`Rounded::along_tokens`]. That of the
/// bias is summed before quantization.
fn backward(
    order: Order,
    x: &Quantized,
    weight: &Tensor,
    gradient: &Tensor,
    has_bias: bool,
    kernels: bool,
) -> Result<Vec<Tensor>> {
    let dtype = weight.dtype();
    let (weight, is_transposed) = Rounded::weight(weight, kernels)?.with_last(Dim::Output, order);
    let gradient = Rounded::of(gradient, GRADIENT, kernels)?;
    let mut gradients = Vec::new();
    let [lhs, rhs] = operands(&gradient.rows, &weight, dtype)?;
    gradients.push(match (order, is_transposed) {
        (Order::OutputFirst, false) => precise_einsum("to,oi->ti", &lhs, &rhs)?,
        _ => precise_einsum("to,io->ti", &lhs, &rhs)?,
    });
    let [lhs, rhs] = operands(x, &gradient.along_tokens(), dtype)?;
    gradients.push(match (order, kernels) {
        (Order::InputFirst, false) => precise_einsum("ti,to->io", &lhs, &rhs)?,
        (Order::OutputFirst, false) => precise_einsum("to,ti->oi", &rhs, &lhs)?,
        (Order::InputFirst, true) => precise_einsum("it,ot->io", &lhs, &rhs)?,
        (Order::OutputFirst, true) => precise_einsum("ot,it->oi", &rhs, &lhs)?,
    });
    if has_bias {
        let sum = match kernels {
            true => kernels::tiles::column_sums(&gradient.materialized)?,
            false => gradient.materialized.convert(DType::F32)?.sum(&[0])?,
        };
        gradients.push(sum.convert(dtype)?);
    }
    Ok(gradients)
}

/// Two dequantized tensors, as the operands of one matmul.
///
/// The barrier keeps the operands separate: XLA merges matmuls that share an operand and then no
/// longer recognizes them as FP8.
fn operands(lhs: &Quantized, rhs: &Quantized, dtype: DType) -> Result<[Tensor; 2]> {
    let scales = barrier(&[&lhs.scale, &rhs.scale])?;
    let scaled = |values: &Tensor, scale: &Tensor| {
        Quantized { values: values.clone(), scale: scale.clone() }.dequantize(dtype)
    };
    Ok([scaled(&lhs.values, &scales[0])?, scaled(&rhs.values, &scales[1])?])
}

/// Quantizes a tensor to an FP8 type, with the scale of its largest element.
pub fn quantize(x: &Tensor, dtype: DType) -> Result<Quantized> {
    round(x, &amax(x)?, dtype)
}

fn amax(x: &Tensor) -> Result<Tensor> {
    let all_dims: Vec<usize> = (0..x.rank()).collect();
    x.abs()?.max(&all_dims)?.convert(DType::F32)
}

fn round(x: &Tensor, amax: &Tensor, dtype: DType) -> Result<Quantized> {
    let (scale, inverse) = scales(amax, dtype)?;
    let values = (x.convert(DType::F32)? * inverse)?.convert(dtype)?;
    Ok(Quantized { values, scale })
}

impl Quantized {
    /// The tensor it represents, in a dtype that is wide enough.
    pub fn dequantize(&self, dtype: DType) -> Result<Tensor> {
        self.values.convert(dtype)? * self.scale.convert(dtype)?
    }
}

/// The least power of two that scales a largest element to fit an FP8 type, and its inverse.
/// Computed from the bits of the number, so that both are exact on all platforms.
fn scales(amax: &Tensor, dtype: DType) -> Result<(Tensor, Tensor)> {
    // The largest number of either type is 1.75 times a power of two.
    let exponent: u32 = match dtype {
        DType::F8E4M3FN => 8,
        DType::F8E5M2 => 15,
        _ => return Err(Error::new("quantize", format!("{dtype} is not an FP8 type"))),
    };
    const MANTISSA_BITS: u32 = 23;
    const EXPONENT: u32 = 0xff << MANTISSA_BITS;
    // Carries into the exponent if the mantissa is above 1.75.
    const ABOVE: u32 = (1 << MANTISSA_BITS) - 1 - (3 << (MANTISSA_BITS - 2));
    // The exponents of a number and its reciprocal have this sum.
    const SUM: u32 = 254 << MANTISSA_BITS;

    let number = |number: u32| constant(&[], &[number]);
    // Smaller tensors become zero: their scale would be out of range for division in `f32`.
    let bits = amax.maximum(&full(DType::F32, &[], MIN_AMAX)?)?.bitcast(DType::U32)?;
    let power = (bits + number(ABOVE)?)?.and(&number(EXPONENT)?)?;
    let power = (power - number(exponent << MANTISSA_BITS)?)?;
    let inverse = (number(SUM)? - &power)?.bitcast(DType::F32)?;
    let nan = full(DType::F32, &[], f64::NAN)?;
    let scale = select(&amax.is_finite()?, &power.bitcast(DType::F32)?, &nan)?;
    Ok((scale, inverse))
}

/// The lower bound of amax, about 8e-31.
const MIN_AMAX: f64 = 1.0 / (1_u128 << 100) as f64;
