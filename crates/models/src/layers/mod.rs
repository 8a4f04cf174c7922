//! Layers. Each is a function that declares its parameters through a [`Scope`] and applies them.
//! [`Scope`] has shorthand methods for common layers.
//!
//! [`Scope`]: crate::Scope

pub mod activation;
pub mod attention;
pub mod checkpoint;
pub mod conv1d;
pub mod dim_names;
pub mod embedding;
pub mod fp8;
pub mod kernels;
pub mod layer_norm;
pub mod linear;
pub mod loss;
pub mod rms_norm;
pub mod rotary;
mod short;

pub use activation::Activation;
pub use conv1d::Conv1d;
pub use embedding::Embedding;
pub use linear::Linear;

use crate::scope::Scope;
use crate::tracer::Declaration;
use fullshard_graph::{DType, Error, Result, Tensor, barrier, custom_vjp};

/// The default standard deviation of the initializer of weights.
pub const DEFAULT_STD: f64 = 0.02;

/// The default epsilon of norms.
pub const DEFAULT_EPSILON: f64 = 1e-5;

/// The dtype for operations that need precision: sums, means, exponentials.
pub(crate) fn upcast_dtype(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// A tensor in the dtype of [`upcast_dtype`].
pub(crate) fn upcast(x: &Tensor) -> Result<Tensor> {
    x.convert(upcast_dtype(x.dtype()))
}

/// The dimensions of a tensor that must have `RANK` of them.
pub(crate) fn dims<const RANK: usize>(what: &str, x: &Tensor) -> Result<[usize; RANK]> {
    x.dims()
        .try_into()
        .map_err(|_| Error::new(what, format!("expected {RANK} dimensions, got {}", x.ty())))
}

/// The size of the last dimension.
pub(crate) fn width(x: &Tensor) -> Result<usize> {
    let none = || Error::new("layer", format!("{} has no dimensions", x.ty()));
    x.dims().last().copied().ok_or_else(none)
}

/// Flattens `[..., width]` to one row per token, `[tokens, width]`.
pub(crate) fn flatten_tokens(x: &Tensor) -> Result<Tensor> {
    let Some((&width, tokens)) = x.dims().split_last() else {
        return Err(Error::new("rows", format!("{} has no dimensions", x.ty())));
    };
    x.reshape(&[tokens.iter().product(), width])
}

/// The residual stream of embedded sequences `[batch, sequence, width]`: with sequence
/// parallelism, this device's tokens. Layers that slice a dim have all tokens inside.
pub(crate) fn residual_stream(scope: &Scope<'_>, x: &Tensor) -> Result<Tensor> {
    scope.declare(Declaration::ResidualStream)?;
    let x = if scope.lowering().flatten_batch { flatten_tokens(x)? } else { x.clone() };
    match scope.tensor_parallel() {
        Some(tensor) => tensor.own_tokens(&x),
        None => scope.constrain_residual(&x),
    }
}

/// Unflattens `[..., width]` to the shape of the tokens `[batch, sequence]`.
pub(crate) fn unflatten_tokens(x: &Tensor, tokens: &Tensor) -> Result<Tensor> {
    let width = x.dims().last().copied();
    x.reshape(&tokens.dims().iter().copied().chain(width).collect::<Vec<_>>())
}

/// Adds a bias. With `separate_sums`, the gradient of the bias is summed from a materialized
/// gradient: fusions that do both run at half the memory bandwidth.
pub(crate) fn add_bias(scope: &Scope<'_>, rows: &Tensor, bias: &Tensor) -> Result<Tensor> {
    if !scope.lowering().separate_sums {
        return rows + bias;
    }
    let has_kernel = bias.rank() == 1 && kernels::are_used(scope, rows);
    let add = |inputs: Vec<Tensor>| Ok(vec![(&inputs[0] + &inputs[1])?]);
    let results = custom_vjp(
        &[rows, bias],
        add,
        |inputs| Ok((add(inputs)?, vec![])),
        |_, gradients| {
            let gradient = barrier(&[&gradients[0]])?.remove(0);
            let tokens: Vec<usize> = (0..gradient.rank() - bias.rank()).collect();
            let sum = match has_kernel {
                true => kernels::tiles::column_sums(&gradient)?,
                false => upcast(&gradient)?.sum(&tokens)?,
            };
            let sum = sum.convert(gradient.dtype())?;
            Ok(vec![gradient, sum])
        },
    )?;
    Ok(results[0].clone())
}

/// The output of a norm. With `separate_norms` it is materialized: several matmuls read it, and each
/// would normalize all rows again. Its gradient passes, since compilers sum what the norm needs of
/// it inside the matmul that makes it.
pub(crate) fn normalized(scope: &Scope<'_>, x: Tensor) -> Result<Tensor> {
    if !scope.lowering().separate_norms {
        return Ok(x);
    }
    let materialized = |inputs: Vec<Tensor>| barrier(&inputs.iter().collect::<Vec<_>>());
    let results = custom_vjp(
        &[&x],
        materialized,
        |inputs| Ok((materialized(inputs)?, vec![])),
        |_, gradients| Ok(gradients),
    )?;
    Ok(results[0].clone())
}

/// Statistics of rows that are computed once and saved, by every rematerialization policy. Compilers
/// would otherwise recompute them at every use.
pub(crate) fn row_statistics(statistics: &[&Tensor]) -> Result<Vec<Tensor>> {
    barrier(statistics)?.iter().map(|it| it.named(checkpoint::NORM_STATS)).collect()
}

/// The lowest finite number of an upcast dtype, which masks a score in a softmax.
pub(crate) fn min_finite(dtype: DType) -> f64 {
    if dtype == DType::F64 { f64::MIN } else { f64::from(f32::MIN) }
}
