//! FP8 matmuls, twice as fast as those of 16 bits where the hardware has them.
//!
//! A tensor is rounded to 8 bits after division by one scale, a power of two, chosen so that its
//! largest element just fits: with a power of two neither the division nor what undoes it rounds, so
//! the rounding to 8 bits is the only one. The scale is that of this very tensor, not of earlier
//! steps: there is no state. Activations and weights are `f8E4M3FN`, with three bits of mantissa;
//! gradients are `f8E5M2`, with two bits and more range. Sums and results are as in 16 bits.
//!
//! For the backward pass the matmul saves its input in 8 bits. Compilers for GPUs know "convert,
//! times a scalar, matmul" as one kernel; others compute it as it stands.

use super::linear::Order;
use crate::module::Module;
use fullshard_graph::{
    DType, Error, Result, Tensor, barrier, constant, custom_vjp, einsum, full, precise_einsum,
    select,
};

/// What the sizes of a matmul must be multiples of.
pub const MULTIPLE: usize = 16;

/// A tensor in 8 bits: it stands for its values times the scale.
#[derive(Debug, Clone)]
pub struct Quantized {
    /// The values, of an 8-bit type.
    pub values: Tensor,
    /// The scale, one `f32`: a power of two, or not a number if an element was infinite.
    pub scale: Tensor,
}

/// The matmuls of a model that run in FP8, and those that cannot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Matmuls {
    /// How many run in FP8.
    pub fp8: usize,
    /// The modules of those that do not, since a size is no multiple of [`MULTIPLE`].
    pub others: Vec<String>,
}

/// Whether a matmul of `tokens` rows with a weight can run in FP8.
pub(super) fn fits(tokens: usize, weight: &[usize]) -> bool {
    weight.iter().chain([&tokens]).all(|size| size.is_multiple_of(MULTIPLE))
}

/// Which matmuls of a model's layers run in FP8, on a number of tokens per device.
pub fn matmuls(tree: &Module, tokens: usize) -> Matmuls {
    let mut matmuls = Matmuls::default();
    tree.visit(&mut |path, module| {
        let in_layer = path.split('.').any(|name| name.parse::<usize>().is_ok());
        let weight = module.parameters.iter().find(|parameter| parameter.name == "weight");
        let Some(weight) = weight.filter(|weight| in_layer && weight.dims.len() == 2) else {
            return;
        };
        match fits(tokens, &weight.dims) {
            true => matmuls.fp8 += 1,
            false => matmuls.others.push(path.to_owned()),
        }
    });
    matmuls
}

/// A linear layer over the last dimension of `x`, whose matmul is of numbers rounded to 8 bits,
/// and so are the matmuls of its gradients.
pub fn fp8_linear(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    order: Order,
) -> Result<Tensor> {
    let Some((&width, batch)) = x.dims().split_last() else {
        return Err(Error::new("fp8_linear", format!("{} has no dimensions", x.ty())));
    };
    let rows = x.reshape(&[batch.iter().product(), width])?;
    let inputs: Vec<&Tensor> = [&rows, weight].into_iter().chain(bias).collect();
    let result = custom_vjp(
        &inputs,
        |inputs| Ok(vec![forward(order, &written(&inputs[0], ACTIVATION)?.0, &inputs[1..])?]),
        |inputs| {
            let (x, _) = written(&inputs[0], ACTIVATION)?;
            let result = forward(order, &x, &inputs[1..])?;
            Ok((vec![result], vec![x.values, x.scale, inputs[1].clone()]))
        },
        |residuals, gradients| backward(order, &residuals, &gradients[0], bias.is_some()),
    )?;
    let width = result[0].dims().last().copied();
    result[0].reshape(&batch.iter().copied().chain(width).collect::<Vec<_>>())
}

/// The type of activations and weights.
const ACTIVATION: DType = DType::F8E4M3FN;
/// The type of gradients.
const GRADIENT: DType = DType::F8E5M2;

/// A quantized input times a weight, and a bias if there is one.
fn forward(order: Order, x: &Quantized, parameters: &[Tensor]) -> Result<Tensor> {
    let (weight, bias) = (&parameters[0], parameters.get(1));
    let quantized = quantize(weight, ACTIVATION)?;
    let [x, quantized] = operands(x, &quantized, weight.dtype())?;
    let product = match order {
        Order::InputFirst => einsum("ti,io->to", &x, &quantized)?,
        Order::OutputFirst => einsum("ti,oi->to", &x, &quantized)?,
    };
    bias.map_or(Ok(product.clone()), |bias| product + bias)
}

/// The gradients of input, weight and bias. The bias' is the sum of what was not rounded.
fn backward(
    order: Order,
    residuals: &[Tensor],
    gradient: &Tensor,
    has_bias: bool,
) -> Result<Vec<Tensor>> {
    let [values, scale, weight] = residuals else {
        return Err(Error::new("fp8_linear", "residuals of something else"));
    };
    let dtype = weight.dtype();
    let x = Quantized { values: values.clone(), scale: scale.clone() };
    let weight = quantize(weight, ACTIVATION)?;
    let (rounded, gradient) = written(gradient, GRADIENT)?;
    let mut gradients = Vec::new();
    let [left, right] = operands(&rounded, &weight, dtype)?;
    gradients.push(match order {
        Order::InputFirst => precise_einsum("to,io->ti", &left, &right)?,
        Order::OutputFirst => precise_einsum("to,oi->ti", &left, &right)?,
    });
    let [left, right] = operands(&x, &rounded, dtype)?;
    gradients.push(match order {
        Order::InputFirst => precise_einsum("ti,to->io", &left, &right)?,
        Order::OutputFirst => precise_einsum("to,ti->oi", &right, &left)?,
    });
    if has_bias {
        gradients.push(gradient.convert(DType::F32)?.sum(&[0])?.convert(dtype)?);
    }
    Ok(gradients)
}

/// What two quantized tensors stand for, as the operands of one matmul.
///
/// The barrier makes the operands this matmul's own: matmuls that share one are laid side by
/// side by XLA, which then no longer sees that they are of 8 bits.
fn operands(left: &Quantized, right: &Quantized, dtype: DType) -> Result<[Tensor; 2]> {
    let scales = barrier(&[&left.scale, &right.scale])?;
    let scaled = |values: &Tensor, scale: &Tensor| {
        Quantized { values: values.clone(), scale: scale.clone() }.dequantize(dtype)
    };
    Ok([scaled(&left.values, &scales[0])?, scaled(&right.values, &scales[1])?])
}

/// Rounds a tensor to an 8-bit type, by the scale of its largest element.
pub fn quantize(x: &Tensor, dtype: DType) -> Result<Quantized> {
    round(x, &largest(x)?, dtype)
}

/// As [`quantize`], of a tensor that is written once, in its own type, while its largest
/// element is looked for; gives it as it is written. Left to itself the compiler may compute it
/// twice or keep it in `f32`, which costs more than reading it again.
fn written(x: &Tensor, dtype: DType) -> Result<(Quantized, Tensor)> {
    let largest = largest(x)?;
    let x = barrier(&[x])?.remove(0);
    Ok((round(&x, &largest, dtype)?, x))
}

fn largest(x: &Tensor) -> Result<Tensor> {
    let every: Vec<usize> = (0..x.rank()).collect();
    x.abs()?.max(&every)?.convert(DType::F32)
}

fn round(x: &Tensor, largest: &Tensor, dtype: DType) -> Result<Quantized> {
    let (scale, inverse) = scales(largest, dtype)?;
    let values = (x.convert(DType::F32)? * inverse)?.convert(dtype)?;
    Ok(Quantized { values, scale })
}

impl Quantized {
    /// The tensor it stands for, in a type that is wide enough.
    pub fn dequantize(&self, dtype: DType) -> Result<Tensor> {
        self.values.convert(dtype)? * self.scale.convert(dtype)?
    }
}

/// The least scale, a power of two, by which a largest element is divided to fit an 8-bit type,
/// and one over it. Made of the bits of the number, so that both are exact everywhere.
fn scales(largest: &Tensor, dtype: DType) -> Result<(Tensor, Tensor)> {
    // The largest number of either type is 1.75 times a power of two.
    let exponent: u32 = match dtype {
        DType::F8E4M3FN => 8,
        DType::F8E5M2 => 15,
        _ => return Err(Error::new("quantize", format!("{dtype} is not a type of 8 bits"))),
    };
    const MANTISSA_BITS: u32 = 23;
    const EXPONENT: u32 = 0xff << MANTISSA_BITS;
    // Carries into the exponent what has a mantissa above 1.75.
    const ABOVE: u32 = (1 << MANTISSA_BITS) - 1 - (3 << (MANTISSA_BITS - 2));
    // A reciprocal has the exponent with which this is the sum.
    const SUM: u32 = 254 << MANTISSA_BITS;

    let number = |number: u32| constant(&[], &[number]);
    // Smaller tensors are zero here: their scale would leave what `f32` can divide by.
    let bits = largest.maximum(&full(DType::F32, &[], LEAST)?)?.bitcast(DType::U32)?;
    let power = (bits + number(ABOVE)?)?.and(&number(EXPONENT)?)?;
    let power = (power - number(exponent << MANTISSA_BITS)?)?;
    let inverse = (number(SUM)? - &power)?.bitcast(DType::F32)?;
    let broken = full(DType::F32, &[], f64::NAN)?;
    let scale = select(&largest.is_finite()?, &power.bitcast(DType::F32)?, &broken)?;
    Ok((scale, inverse))
}

/// What the largest element of a tensor is taken to be at least, about 8e-31.
const LEAST: f64 = 1.0 / (1_u128 << 100) as f64;
