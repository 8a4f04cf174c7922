//! Functions with a custom gradient, for kernels faster than the derived gradient.

use super::{check_types, result_types};
use crate::error::Result;
use crate::op::{CustomVjp, Op};
use crate::tensor::Tensor;
use crate::trace::{emit, trace_graph};
use std::rc::Rc;

/// A function with a custom gradient.
///
/// `primal` computes the results. Under differentiation, `forward` computes them together with the
/// residuals for `backward`, and `backward` computes the gradients of the inputs from those and the
/// gradients of the results. A residual that is an unchanged input is saved like the inputs of
/// other ops: recomputed, if it is [`transient`](super::transient). An integer input needs a
/// gradient of zeros of its own type, which is discarded.
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
            let reason = format!("cannot capture {}; pass it as an input", tensor.ty());
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
