//! The loss with its gradients as a function that the CPU's platform has under a name.
//!
//! What it computes is [`super::chunked`], in `f32` whatever the type of the model. It has no
//! logits to give, and keeps those of few tokens in the caches.

use super::{Chunks, counted, scaled_gradients, shifted, sum_and_count};
use crate::layers::dims;
use crate::model::Loss;
use fullshard_graph::{DType, Result, Tensor, TensorType, custom_call, custom_vjp, scan};

/// The name that platforms know the loss by.
pub const LOSS: &str = "fullshard.loss";

/// Whether the function stands in for computing in a type.
pub(super) fn computes_in(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::Bf16 | DType::F16)
}

/// The loss by calls, each of `size` tokens, when a gradient is taken; else [`super::chunked`].
pub fn called(hidden: &Tensor, head: &Tensor, labels: &Tensor, size: usize) -> Result<Loss> {
    let [batch, sequence, width] = dims("hidden", hidden)?;
    let labels = shifted(labels)?;
    let (hidden, size) = (hidden.reshape(&[batch * sequence, width])?, size.max(1));
    let results = custom_vjp(
        &[&hidden, head, &labels],
        |inputs| Chunks::of(&inputs, size, 1)?.loss(),
        |inputs| Chunks::of(&inputs, size, 1)?.called_loss_and_gradients(),
        scaled_gradients,
    )?;
    sum_and_count(results)
}

impl Chunks {
    /// As [`Chunks::loss_and_gradients`], with a call for each chunk.
    fn called_loss_and_gradients(&self) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
        let zero = self.zero(&[])?;
        let carries = [&zero, &zero, &self.zero(self.head.dims())?];
        let head = self.head.convert(DType::F32)?;
        let results = scan(&carries, &[&self.hidden, &self.labels]).run(|sums, slices| {
            let (hidden, labels) = (slices[0].convert(DType::F32)?, &slices[1]);
            let count = counted(labels, self.vocabulary)?.convert(DType::F32)?.sum_all()?;
            let [losses, of_hidden, of_head] = call(&hidden, &head, labels)?;
            let sum = losses.sum_all()?;
            let of_hidden = of_hidden.convert(slices[0].dtype())?;
            let sums = [&sum, &count, &of_head].into_iter().zip(sums);
            Ok((sums.map(|(x, sum)| sum + x).collect::<Result<_>>()?, vec![of_hidden]))
        })?;
        let mut carries = results.carries;
        let of_head = carries.split_off(2);
        let of_hidden = results.stacked[0].reshape(&[self.labels.ty().elements(), width(&head)])?;
        Ok((carries, [vec![of_hidden.narrow(0, 0, self.tokens)?], of_head].concat()))
    }
}

fn width(head: &Tensor) -> usize {
    head.dims()[1]
}

/// Each token's loss, and the gradients of their sum with regard to hidden states and head.
fn call(hidden: &Tensor, head: &Tensor, labels: &Tensor) -> Result<[Tensor; 3]> {
    let (tokens, vocabulary) = (hidden.dims()[0], head.dims()[0]);
    let floats = |dims: &[usize]| TensorType::new(DType::F32, dims);
    let exponentials = floats(&[tokens, vocabulary]);
    let results = [floats(&[tokens]), floats(hidden.dims()), floats(head.dims()), exponentials];
    let results = custom_call(LOSS).call(&[hidden, head, labels], &results)?;
    Ok([0, 1, 2].map(|i| results[i].clone()))
}
