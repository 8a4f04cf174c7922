//! Attention by a kernel, cuDNN's or a call on the CPU: what is saved and how it is differentiated.

use super::Heads;
use crate::annotations::DimNames;
use crate::layers::checkpoint;
use crate::layers::dim_names::HEADS;
use crate::scope::Scope;
use fullshard_graph::{Error, Result, Tensor, custom_vjp, zeros};

/// Attention over `[batch, sequence, heads, head]` in both directions.
pub(super) trait Kernel {
    /// The output, and the softmax statistics `[batch, heads, sequence]` that the backward pass
    /// needs.
    fn forward(&self, inputs: &[Tensor]) -> Result<(Tensor, Tensor)>;

    /// The gradients of queries, keys and values, given those, the statistics, the output and its
    /// gradient.
    fn gradients(&self, residuals: &[Tensor], gradient: &Tensor) -> Result<[Tensor; 3]>;
}

/// Attention, `[batch, heads, sequence, head]`, by a kernel, which each device runs on its own heads
/// over the automatic axes of a scope.
pub(super) fn with_kernel(
    scope: Option<&Scope<'_>>,
    heads: &Heads,
    kernel: &impl Kernel,
) -> Result<Tensor> {
    let swap_heads = |x: &Tensor| x.transpose(&[0, 2, 1, 3]);
    let inputs = [swap_heads(&heads.query)?, swap_heads(&heads.key)?, swap_heads(&heads.value)?];
    let [query, key, value] = &inputs;
    let constants = [query.stop_gradient()?, key.stop_gradient()?, value.stop_gradient()?];
    let constants = constants.each_ref().map(|input| (input, HEADS_THIRD));
    let outputs = run(scope, &constants, &[HEADS_THIRD, HEADS_SECOND], |inputs| {
        let (attn_out, stats) = kernel.forward(&inputs)?;
        Ok(vec![attn_out, stats])
    })?;
    let [attn_out, stats] = outputs.try_into().map_err(|_| invalid("two outputs"))?;
    let (attn_out, stats) =
        (attn_out.named(checkpoint::ATTN_OUT)?, stats.named(checkpoint::ATTN_OUT)?);
    // The outputs are inputs here, and the gradients are those of the kernel's inputs: so the
    // outputs are ordinary values, which a rematerialization policy can save.
    let mut results = custom_vjp(
        &[query, key, value, &stats, &attn_out],
        |inputs| Ok(vec![result(&inputs)?]),
        |inputs| Ok((vec![result(&inputs)?], inputs)),
        |residuals, gradients| {
            let zeros = residuals[3..].iter().map(|output| zeros(output.dtype(), output.dims()));
            let dims = [HEADS_THIRD, HEADS_THIRD, HEADS_THIRD, HEADS_SECOND, HEADS_THIRD];
            let inputs = residuals.iter().zip(dims).chain([(&gradients[0], HEADS_THIRD)]);
            let inputs: Vec<_> = inputs.collect();
            let gradients = run(scope, &inputs, &[HEADS_THIRD; 3], |mut inputs| {
                let gradient = inputs.pop().ok_or_else(|| invalid("a gradient"))?;
                Ok(kernel.gradients(&inputs, &gradient)?.to_vec())
            })?;
            gradients.into_iter().map(Ok).chain(zeros).collect()
        },
    )?;
    swap_heads(&results.pop().ok_or_else(|| invalid("one result"))?)
}

/// The names of the dims of the kernel's inputs and outputs.
const HEADS_THIRD: DimNames<'_> = &[None, None, Some(HEADS), None];

/// The names of the dims of its statistics.
const HEADS_SECOND: DimNames<'_> = &[None, Some(HEADS), None];

/// Runs a kernel on the shards of its inputs.
fn run(
    scope: Option<&Scope<'_>>,
    inputs: &[(&Tensor, DimNames<'_>)],
    results: &[DimNames<'_>],
    kernel: impl FnOnce(Vec<Tensor>) -> Result<Vec<Tensor>>,
) -> Result<Vec<Tensor>> {
    match scope {
        Some(scope) => scope.per_shard(inputs, results, kernel),
        None => kernel(inputs.iter().map(|(x, _)| (*x).clone()).collect()),
    }
}

/// The last input of the gradient rule.
fn result(inputs: &[Tensor]) -> Result<Tensor> {
    inputs.last().cloned().ok_or_else(|| invalid("five inputs"))
}

fn invalid(what: &str) -> Error {
    Error::new("attention", format!("a kernel: expected {what}"))
}
