//! What models are made of. Each kind of layer is a function that declares its parameters through a
//! [`Scope`] and applies it. [`Scope`] has short methods for those of common models.
//!
//! [`Scope`]: crate::Scope

pub mod activation;
pub mod attention;
pub mod checkpoint;
pub mod conv1d;
pub mod embedding;
pub mod fp8;
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
use fullshard_graph::{DType, Error, Result, Tensor, barrier, custom_vjp};

/// The standard deviation that weights begin with unless a model has its own.
pub const DEFAULT_STD: f64 = 0.02;

/// What is added to the variances of norms unless a model has its own.
pub const DEFAULT_EPSILON: f64 = 1e-5;

/// The type for what few bits would spoil: sums, means, exponentials.
pub(crate) fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// A tensor in the type that [`wide`] says.
pub(crate) fn widened(x: &Tensor) -> Result<Tensor> {
    x.convert(wide(x.dtype()))
}

/// The dimensions of a tensor that must have `RANK` of them.
pub(crate) fn dims<const RANK: usize>(what: &str, x: &Tensor) -> Result<[usize; RANK]> {
    x.dims().try_into().map_err(|_| {
        Error::new(what, format!("{} was given, but {RANK} dimensions are needed", x.ty()))
    })
}

/// The size of the last dimension.
pub(crate) fn width(x: &Tensor) -> Result<usize> {
    let none = || Error::new("layer", format!("{} has no dimension to work on", x.ty()));
    x.dims().last().copied().ok_or_else(none)
}

/// `[..., width]` as one row for each token, `[tokens, width]`.
pub(crate) fn by_token(x: &Tensor) -> Result<Tensor> {
    let Some((&width, tokens)) = x.dims().split_last() else {
        return Err(Error::new("rows", format!("{} has none", x.ty())));
    };
    x.reshape(&[tokens.iter().product(), width])
}

/// Embedded sequences `[batch, sequence, width]` as the stream that goes through the layers.
pub(crate) fn stream(scope: &Scope<'_>, x: &Tensor) -> Result<Tensor> {
    if scope.lowering().flatten_batch { by_token(x) } else { Ok(x.clone()) }
}

/// What was made of a stream, for each of the tokens `[batch, sequence]`.
pub(crate) fn by_sequence(x: &Tensor, tokens: &Tensor) -> Result<Tensor> {
    let width = x.dims().last().copied();
    x.reshape(&tokens.dims().iter().copied().chain(width).collect::<Vec<_>>())
}

/// Rows and a bias. Where sums are separate, the bias' gradient is summed from rows that were
/// written: passes that do both run at half the speed of memory.
pub(crate) fn biased(scope: &Scope<'_>, rows: &Tensor, bias: &Tensor) -> Result<Tensor> {
    if !scope.lowering().separate_sums {
        return rows + bias;
    }
    let add = |inputs: Vec<Tensor>| Ok(vec![(&inputs[0] + &inputs[1])?]);
    let results = custom_vjp(
        &[rows, bias],
        add,
        |inputs| Ok((add(inputs)?, vec![])),
        |_, gradients| {
            let gradient = barrier(&[&gradients[0]])?.remove(0);
            let tokens: Vec<usize> = (0..gradient.rank() - 1).collect();
            let sum = widened(&gradient)?.sum(&tokens)?.convert(gradient.dtype())?;
            Ok(vec![gradient, sum])
        },
    )?;
    Ok(results[0].clone())
}

/// Statistics of rows that are computed once and kept. Compilers would rather make them again
/// wherever they are used, for which they read all of the rows.
pub(crate) fn computed_once(statistics: &[&Tensor]) -> Result<Vec<Tensor>> {
    barrier(statistics)
}

/// The lowest finite number of a wide type, which takes a score out of a softmax.
pub(crate) fn lowest(dtype: DType) -> f64 {
    if dtype == DType::F64 { f64::MIN } else { f64::from(f32::MIN) }
}
