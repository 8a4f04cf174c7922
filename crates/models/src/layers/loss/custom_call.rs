//! The loss and its gradients as a custom call on the CPU.
//!
//! It computes the same as [`super::chunked`]: in `bf16`, matmuls round their operands, and in `f16`
//! all is in `f32`.

use super::{Chunks, Vocabulary, label_mask, scaled_gradients, shifted, sum_and_count};
use crate::layers::{dims, flatten_tokens};
use crate::task::Loss;
use fullshard_graph::{DType, Error, Result, Tensor, TensorType, custom_call, custom_vjp};

/// The target of the custom call.
pub const LOSS: &str = "fullshard.loss";

/// Whether the custom call supports a dtype.
pub(super) fn supports(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::Bf16 | DType::F16)
}

/// The loss by a custom call on chunks of `size` tokens, if a gradient is taken; else
/// [`super::chunked`].
pub fn loss_custom_call(
    hidden: &Tensor,
    head: &Tensor,
    labels: &Tensor,
    size: usize,
) -> Result<Loss> {
    apply(&flatten_tokens(hidden)?, head, &shifted(labels)?, size)
}

/// The loss of flat hidden states with labels that are shifted and flat.
pub(super) fn apply(hidden: &Tensor, head: &Tensor, labels: &Tensor, size: usize) -> Result<Loss> {
    let size = size.max(1);
    let results = custom_vjp(
        &[hidden, head, labels],
        |inputs| {
            let vocabulary = Vocabulary::new(inputs[1].dims()[0]);
            Chunks::of(&inputs, size, 1, vocabulary)?.loss()
        },
        |inputs| loss_and_gradients(&inputs, size),
        scaled_gradients,
    )?;
    sum_and_count(results)
}

/// The sum and the count, and the gradients of the sum with respect to hidden states and head.
fn loss_and_gradients(inputs: &[Tensor], size: usize) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
    let [hidden, head, labels] = inputs else {
        return Err(Error::new("loss", "expected hidden states, head and labels"));
    };
    let [vocabulary, _] = dims("head", head)?;
    let floats = |dims: &[usize]| TensorType::new(DType::F32, dims);
    let is_bf16 = [hidden.dtype(), head.dtype()] == [DType::Bf16; 2];
    let dtype = if is_bf16 { DType::Bf16 } else { DType::F32 };
    let exponentials = TensorType::new(dtype, &[size, vocabulary]);
    let results = [floats(labels.dims()), floats(hidden.dims()), floats(head.dims()), exponentials];
    let operands = [&hidden.convert(dtype)?, &head.convert(dtype)?, labels];
    let results = custom_call(LOSS).longer_operands().call(&operands, &results)?;
    let count = label_mask(labels, vocabulary)?.convert(DType::F32)?.sum_all()?;
    let hidden_grad = results[1].convert(hidden.dtype())?;
    Ok((vec![results[0].sum_all()?, count], vec![hidden_grad, results[2].clone()]))
}
