//! The loss with its gradients as a function that the CPU's platform has under a name.
//!
//! It computes what [`super::chunked`] does, in `f32` whatever the type of the model.

use super::{Chunks, counted, scaled_gradients, shifted, sum_and_count};
use crate::layers::{by_token, dims};
use crate::task::Loss;
use fullshard_graph::{DType, Error, Result, Tensor, TensorType, custom_call, custom_vjp};

/// The name that platforms know the loss by.
pub const LOSS: &str = "fullshard.loss";

/// Whether the function stands in for computing in a type.
pub(super) fn computes_in(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::Bf16 | DType::F16)
}

/// The loss by a call that has logits of `size` tokens at a time, when a gradient is taken; else
/// [`super::chunked`].
pub fn loss_custom_call(
    hidden: &Tensor,
    head: &Tensor,
    labels: &Tensor,
    size: usize,
) -> Result<Loss> {
    let (hidden, labels, size) = (by_token(hidden)?, shifted(labels)?, size.max(1));
    let results = custom_vjp(
        &[&hidden, head, &labels],
        |inputs| Chunks::of(&inputs, size, 1)?.loss(),
        |inputs| loss_and_gradients(&inputs, size),
        scaled_gradients,
    )?;
    sum_and_count(results)
}

/// The sum and the count, and the gradients of the sum with regard to hidden states and head.
fn loss_and_gradients(inputs: &[Tensor], size: usize) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
    let [hidden, head, labels] = inputs else {
        return Err(Error::new("loss", "hidden states, head and labels were expected"));
    };
    let [vocabulary, _] = dims("head", head)?;
    let floats = |dims: &[usize]| TensorType::new(DType::F32, dims);
    let exponentials = floats(&[size, vocabulary]);
    let results = [floats(labels.dims()), floats(hidden.dims()), floats(head.dims()), exponentials];
    let operands = [&hidden.convert(DType::F32)?, &head.convert(DType::F32)?, labels];
    let results = custom_call(LOSS).longer_operands().call(&operands, &results)?;
    let count = counted(labels, vocabulary)?.convert(DType::F32)?.sum_all()?;
    let of_hidden = results[1].convert(hidden.dtype())?;
    Ok((vec![results[0].sum_all()?, count], vec![of_hidden, results[2].clone()]))
}
