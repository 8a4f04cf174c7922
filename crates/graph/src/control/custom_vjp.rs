//! Functions with a gradient of their own, for kernels faster than what would be derived.

use super::{check_types, result_types};
use crate::error::Result;
use crate::op::{CustomVjp, Op};
use crate::tensor::Tensor;
use crate::trace::{emit, trace_graph};
use std::rc::Rc;

/// A function with its own gradient.
///
/// `primal` computes the results. When a gradient is taken, `forward` computes them together
/// with whatever `backward` needs, and `backward` makes the gradients of the inputs out of that
/// and the gradients of the results. An input that it needs as it came is remembered as those of
/// other ops are: made again, if it is [`transient`](super::transient). An input of integers takes
/// a gradient of zeros of its own type, which is thrown away.
pub fn custom_vjp(
    inputs: &[&Tensor],
    primal: impl FnOnce(Vec<Tensor>) -> Result<Vec<Tensor>>,
    forward: impl FnOnce(Vec<Tensor>) -> Result<(Vec<Tensor>, Vec<Tensor>)>,
    backward: impl FnOnce(Vec<Tensor>, Vec<Tensor>) -> Result<Vec<Tensor>>,
) -> Result<Vec<Tensor>> {
    let types: Vec<_> = inputs.iter().map(|tensor| tensor.shared_type()).collect();
    let primal = trace_graph("primal", &types, primal)?;
    let results = primal.graph.result_types();
    let mut residual_count = 0;
    let forward = trace_graph("forward", &types, |inputs| {
        let (mut results, residuals) = forward(inputs)?;
        residual_count = residuals.len();
        results.extend(residuals);
        Ok(results)
    })?;
    let given = forward.graph.result_types();
    let (forward_results, residuals) = given.split_at(given.len() - residual_count);
    check_types("custom_vjp", "result of `forward`", &results, forward_results)?;
    let parameters = [residuals, &results].concat();
    let backward = trace_graph("backward", &parameters, |mut values| {
        let cotangents = values.split_off(residual_count);
        backward(values, cotangents)
    })?;
    check_types("custom_vjp", "gradient", &types, &backward.graph.result_types())?;
    for region in [&primal, &forward, &backward] {
        if let Some(tensor) = region.captured.first() {
            let reason = format!("it may not use {} from outside; pass it in", tensor.ty());
            return Err(crate::error::Error::new("custom_vjp", reason));
        }
    }
    let types = result_types(&primal.graph);
    let rule = CustomVjp {
        primal: Rc::new(primal.graph),
        forward: Rc::new(forward.graph),
        backward: Rc::new(backward.graph),
    };
    emit("custom_vjp", Op::CustomVjp(Rc::new(rule)), inputs, types)
}
