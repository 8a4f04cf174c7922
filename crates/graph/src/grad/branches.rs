//! Gradients of branches.

use super::partition::{Parts, differentiate};
use super::regions::{of_reached, or_zero, scatter_gradients};
use super::{Cotangent, Inputs, RegionRule, inline};
use crate::error::Result;
use crate::graph::Graph;
use crate::op::Op;
use crate::ops::zeros;
use crate::tensor::Tensor;
use crate::trace::{emit, trace_graph};
use std::rc::Rc;

/// Branches: each returns the residuals of its own backward pass, and zeros for the others'.
pub(super) fn cond(
    branches: &[Rc<Graph>],
    inputs: &[Tensor],
    needs_grad: &[bool],
    reached: &[bool],
) -> Result<(Vec<Tensor>, RegionRule)> {
    let (index, inputs) = (inputs[0].clone(), inputs[1..].to_vec());
    let needs_grad = needs_grad[1..].to_vec();
    let types = branches[0].result_types();
    let reached = reached.to_vec();
    let parts = branches
        .iter()
        .map(|branch| differentiate(branch, &needs_grad, &reached))
        .collect::<Result<Vec<_>>>()?;
    let forward_branches = (0..parts.len()).map(|i| pad_residuals(&parts, i, types.len()));
    let forward_branches = forward_branches.collect::<Result<Vec<_>>>()?;
    let mut operands = vec![&index];
    operands.extend(&inputs);
    let mut outputs = emit_branches(forward_branches, &operands)?;
    let residuals = outputs.split_off(types.len());

    let backward = move |cotangents: &[Cotangent], _: Inputs<'_>| {
        let cotangents = of_reached(cotangents, &types, &reached)?;
        let operands: Vec<Tensor> =
            inputs.iter().chain(&residuals).chain(&cotangents).cloned().collect();
        let backward_branches =
            (0..parts.len()).map(|i| branch_backward(&parts, i, &operands, &inputs, &needs_grad));
        let backward_branches = backward_branches.collect::<Result<Vec<_>>>()?;
        let all: Vec<&Tensor> = [&index].into_iter().chain(&operands).collect();
        let gradients = emit_branches(backward_branches, &all)?;
        let mut placed = vec![None];
        placed.extend(scatter_gradients(gradients, &needs_grad));
        Ok(placed)
    };
    Ok((outputs, Box::new(backward)))
}

fn emit_branches(branches: Vec<Graph>, operands: &[&Tensor]) -> Result<Vec<Tensor>> {
    let types = crate::control::result_types(&branches[0]);
    let branches = branches.into_iter().map(Rc::new).collect();
    emit("cond", Op::Cond { branches }, operands, types)
}

/// The forward part of branch `i`, with zeros for the residuals of the others.
fn pad_residuals(parts: &[Parts], i: usize, results: usize) -> Result<Graph> {
    let parameters = parts[i].forward.parameter_types();
    let traced = trace_graph("branch", &parameters, |inputs| {
        let mut outputs = inline(&parts[i].forward, &inputs)?;
        let own = outputs.split_off(results);
        for (j, other) in parts.iter().enumerate() {
            if i == j {
                outputs.extend(own.iter().cloned());
            } else {
                for ty in &other.residuals {
                    outputs.push(zeros(ty.dtype, &ty.dims)?);
                }
            }
        }
        Ok(outputs)
    })?;
    Ok(traced.graph)
}

/// The backward part of branch `i` over the operands of all, with zeros for the gradients that
/// it does not have.
fn branch_backward(
    parts: &[Parts],
    i: usize,
    operands: &[Tensor],
    inputs: &[Tensor],
    needs_grad: &[bool],
) -> Result<Graph> {
    let types: Vec<_> = operands.iter().map(|tensor| tensor.shared_type()).collect();
    let part = &parts[i];
    let before: usize = parts[..i].iter().map(|part| part.residuals.len()).sum();
    let all: usize = parts.iter().map(|part| part.residuals.len()).sum();
    let traced = trace_graph("branch", &types, |values| {
        let residuals = inputs.len() + before;
        let mut arguments: Vec<Tensor> =
            part.parameters.iter().map(|&i| values[i].clone()).collect();
        arguments.extend_from_slice(&values[residuals..residuals + part.residuals.len()]);
        arguments.extend_from_slice(&values[inputs.len() + all..]);
        let gradients = scatter_gradients(inline(&part.backward, &arguments)?, &part.has_gradient);
        let selected =
            gradients.iter().zip(inputs).zip(needs_grad).filter(|(_, needs_grad)| **needs_grad);
        selected.map(|((gradient, input), _)| or_zero(gradient, input.ty())).collect()
    })?;
    Ok(traced.graph)
}
