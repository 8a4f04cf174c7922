//! Forward passes of regions, each with its backward rule.

use super::partition::differentiate;
use super::{Cotangent, Inputs, RegionRule, Tape, branches, functions, inline, loops, replay};
use crate::control::{Policy, call_graph};
use crate::error::{Error, Result};
use crate::graph::{Graph, Node};
use crate::op::{CustomVjp, Op};
use crate::ops::{barrier, zeros};
use crate::tensor::Tensor;
use fullshard_core::TensorType;
use std::rc::Rc;

/// Traces the forward pass of a node; a region returns its own backward rule.
pub(super) fn forward(
    graph: &Graph,
    node: &Node,
    inputs: &[Tensor],
    needs_grad: &[bool],
    reached: &[bool],
) -> Result<(Vec<Tensor>, Option<RegionRule>)> {
    let (outputs, rule) = match &node.op {
        Op::Remat { body, policy: Policy::Everything } => inlined(body, inputs, needs_grad)?,
        Op::Remat { body, policy } => remat(body, policy, inputs, needs_grad)?,
        Op::Transient { body } => recomputed(body, inputs, needs_grad)?,
        Op::CustomVjp(rule) => custom(rule, inputs, needs_grad)?,
        Op::Call { function } => call(function, inputs, needs_grad, reached)?,
        Op::Cond { branches } => branches::cond(branches, inputs, needs_grad, reached)?,
        Op::Scan(scan) => loops::scan(scan, inputs, needs_grad, reached)?,
        Op::While { .. } => {
            let rule = unsupported("while", "a loop of unknown length; use a scan");
            (replay(graph, node, inputs)?, rule)
        }
        Op::Manual(_) => {
            let rule = unsupported("manual", "a manual region; take the gradient inside it");
            (replay(graph, node, inputs)?, rule)
        }
        _ => return Ok((replay(graph, node, inputs)?, None)),
    };
    Ok((outputs, Some(rule)))
}

/// No backward rule: an error only if a gradient is requested.
fn unsupported(op: &'static str, what: &'static str) -> RegionRule {
    Box::new(move |_, _| Err(Error::new(op, format!("no gradient of {what}"))))
}

/// A region traced inline.
fn inlined(
    body: &Rc<Graph>,
    inputs: &[Tensor],
    needs_grad: &[bool],
) -> Result<(Vec<Tensor>, RegionRule)> {
    let tape = Tape::record(body, inputs, needs_grad, &|_| None)?;
    let outputs = tape.results.clone();
    Ok((outputs, Box::new(move |cotangents, _| tape.backward(cotangents))))
}

/// A region whose values are not saved: the backward pass recomputes it.
fn recomputed(
    body: &Rc<Graph>,
    inputs: &[Tensor],
    needs_grad: &[bool],
) -> Result<(Vec<Tensor>, RegionRule)> {
    let outputs = inline(body, inputs)?;
    let (body, inputs, needs_grad) = (body.clone(), inputs.to_vec(), needs_grad.to_vec());
    let rule = move |cotangents: &[Cotangent], _: Inputs<'_>| {
        Tape::record(&body, &inputs, &needs_grad, &|_| None)?.backward(cotangents)
    };
    Ok((outputs, Box::new(rule)))
}

/// A region of which only some values are saved; the backward pass recomputes the rest.
///
/// The recomputation starts from the same inputs behind a barrier that also waits for the
/// gradients, so that the compiler can neither merge it with the forward pass nor schedule it
/// early.
fn remat(
    body: &Rc<Graph>,
    policy: &Policy,
    inputs: &[Tensor],
    needs_grad: &[bool],
) -> Result<(Vec<Tensor>, RegionRule)> {
    let (outputs, saved) = inline_and_save(body, policy, inputs)?;
    let (body, inputs, needs_grad) = (body.clone(), inputs.to_vec(), needs_grad.to_vec());
    let rule = move |cotangents: &[Cotangent], _: Inputs<'_>| {
        let saved_tensors = saved.iter().flat_map(|(_, tensors)| tensors);
        let all: Vec<&Tensor> =
            inputs.iter().chain(saved_tensors).chain(cotangents.iter().flatten()).collect();
        let mut behind = barrier(&all)?.into_iter();
        let inputs: Vec<Tensor> = behind.by_ref().take(inputs.len()).collect();
        let saved: Vec<(usize, Vec<Tensor>)> = saved
            .iter()
            .map(|(node, tensors)| (*node, behind.by_ref().take(tensors.len()).collect()))
            .collect();
        let cotangents: Vec<Cotangent> = cotangents
            .iter()
            .map(|cotangent| cotangent.as_ref().and_then(|_| behind.next()))
            .collect();
        let saved_outputs = |node: usize| {
            saved.iter().find(|(known, _)| *known == node).map(|(_, tensors)| tensors.clone())
        };
        Tape::record(&body, &inputs, &needs_grad, &saved_outputs)?.backward(&cotangents)
    };
    Ok((outputs, Box::new(rule)))
}

/// Traces a region inline, and also returns the results of the nodes that a policy saves, by node
/// index.
#[allow(clippy::type_complexity)]
fn inline_and_save(
    body: &Rc<Graph>,
    policy: &Policy,
    inputs: &[Tensor],
) -> Result<(Vec<Tensor>, Vec<(usize, Vec<Tensor>)>)> {
    let live = body.live_nodes();
    let nodes = body.nodes.iter().enumerate().filter(|(index, _)| live[*index]);
    let nodes = nodes.filter(|(_, node)| policy.saves(&node.op));
    let nodes: Vec<(usize, usize)> =
        nodes.map(|(index, node)| (index, node.outputs.len())).collect();
    let mut with_saved = (**body).clone();
    for (index, _) in &nodes {
        with_saved.results.extend(&body.nodes[*index].outputs);
    }
    let mut outputs = inline(&with_saved, inputs)?;
    let mut saved = outputs.split_off(body.results.len()).into_iter();
    let saved = nodes.iter().map(|&(index, count)| (index, saved.by_ref().take(count).collect()));
    Ok((outputs, saved.collect()))
}

fn custom(
    rule: &Rc<CustomVjp>,
    inputs: &[Tensor],
    needs_grad: &[bool],
) -> Result<(Vec<Tensor>, RegionRule)> {
    let mut outputs = inline(&rule.forward, inputs)?;
    let results = rule.primal.results.len();
    let residuals = outputs.split_off(results);
    // Residuals that are unchanged inputs: not saved if they are freed.
    let position = |value| rule.forward.parameters.iter().position(|parameter| parameter == value);
    let sources: Vec<Option<usize>> =
        rule.forward.results[results..].iter().map(position).collect();
    let (rule, needs_grad) = (rule.clone(), needs_grad.to_vec());
    let types = rule.primal.result_types();
    let backward = move |cotangents: &[Cotangent], input: Inputs<'_>| {
        let mut arguments = residuals.clone();
        for (argument, source) in arguments.iter_mut().zip(&sources) {
            if let Some(i) = source {
                *argument = input(*i)?;
            }
        }
        arguments.extend(or_zeros(cotangents, &types)?);
        let gradients = inline(&rule.backward, &arguments)?;
        Ok(gradients
            .into_iter()
            .zip(&needs_grad)
            .map(|(g, needs_grad)| needs_grad.then_some(g))
            .collect())
    };
    Ok((outputs, Box::new(backward)))
}

/// A function stays a function in forward and backward. What the backward function needs depends on
/// which results have gradients, so all reachable results are assumed to.
fn call(
    function: &Rc<Graph>,
    inputs: &[Tensor],
    needs_grad: &[bool],
    reached: &[bool],
) -> Result<(Vec<Tensor>, RegionRule)> {
    let types = function.result_types();
    let parts = functions::differentiate_once(function, needs_grad, reached, differentiate)?;
    let reached = reached.to_vec();
    let mut outputs = call_graph(&parts.forward, &inputs.iter().collect::<Vec<_>>())?;
    let residuals = outputs.split_off(function.results.len());
    let mut arguments: Vec<Tensor> = parts.parameters.iter().map(|&i| inputs[i].clone()).collect();
    arguments.extend(residuals);
    let backward = move |cotangents: &[Cotangent], _: Inputs<'_>| {
        let mut arguments = arguments.clone();
        arguments.extend(of_reached(cotangents, &types, &reached)?);
        let gradients = call_graph(&parts.backward, &arguments.iter().collect::<Vec<_>>())?;
        Ok(scatter_gradients(gradients, &parts.has_gradient))
    };
    Ok((outputs, Box::new(backward)))
}

/// Gradients at their positions, `None` elsewhere.
pub(super) fn scatter_gradients(gradients: Vec<Tensor>, has_gradient: &[bool]) -> Vec<Cotangent> {
    let mut gradients = gradients.into_iter();
    has_gradient.iter().map(|&has| if has { gradients.next() } else { None }).collect()
}

/// The gradients of the reachable results.
pub(super) fn of_reached(
    cotangents: &[Cotangent],
    types: &[Rc<TensorType>],
    reached: &[bool],
) -> Result<Vec<Tensor>> {
    let all = cotangents.iter().zip(types).zip(reached).filter(|(_, reached)| **reached);
    all.map(|((cotangent, ty), _)| or_zero(cotangent, ty)).collect()
}

pub(super) fn or_zero(cotangent: &Cotangent, ty: &TensorType) -> Result<Tensor> {
    match cotangent {
        Some(tensor) => Ok(tensor.clone()),
        None => zeros(ty.dtype, &ty.dims),
    }
}

fn or_zeros(cotangents: &[Cotangent], types: &[Rc<TensorType>]) -> Result<Vec<Tensor>> {
    cotangents.iter().zip(types).map(|(cotangent, ty)| or_zero(cotangent, ty)).collect()
}
