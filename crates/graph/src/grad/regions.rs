//! Forward passes of regions, each with its backward rule.

use super::partition::differentiate;
use super::{
    Cotangent, Inputs, RegionRule, Tape, branches, functions, inline, loops, manual, replay,
};
use crate::control::{Memory, Policy, call_graph};
use crate::error::{Error, Result};
use crate::graph::{Graph, Node};
use crate::op::{CustomVjp, Op};
use crate::ops::{barrier, zeros};
use crate::tensor::Tensor;
use crate::trace::{Traced, trace_graph};
use fullshard_core::TensorType;
use std::collections::HashMap;
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
        Op::Manual(region) => manual::manual(region, inputs, needs_grad, reached)?,
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
/// early. It is traced apart first: what it does not use is not behind the barrier, and so is not
/// saved.
fn remat(
    body: &Rc<Graph>,
    policy: &Policy,
    inputs: &[Tensor],
    needs_grad: &[bool],
) -> Result<(Vec<Tensor>, RegionRule)> {
    let (outputs, saved) = inline_and_save(body, policy, inputs)?;
    let (body, inputs, needs_grad) = (body.clone(), inputs.to_vec(), needs_grad.to_vec());
    let rule = move |cotangents: &[Cotangent], _: Inputs<'_>| {
        let known = inputs.iter().chain(saved.iter().map(|value| &value.tensor));
        let mut arguments: Vec<Tensor> =
            known.chain(cotangents.iter().flatten()).cloned().collect();
        let known = inputs.len() + saved.len();
        let (recomputed, has_gradient) =
            recompute(&body, &arguments, &needs_grad, &saved, cotangents)?;
        let used = recomputed.graph.used_parameters();
        let positions: Vec<usize> =
            (0..arguments.len()).filter(|&i| i >= known || used[i]).collect();
        let behind = barrier(&positions.iter().map(|&i| &arguments[i]).collect::<Vec<_>>())?;
        for (position, tensor) in positions.into_iter().zip(behind) {
            arguments[position] = tensor;
        }
        arguments.extend(recomputed.captured);
        Ok(scatter_gradients(inline(&recomputed.graph, &arguments)?, &has_gradient))
    };
    Ok((outputs, Box::new(rule)))
}

/// The backward pass of a region, from arguments like these: its inputs, saved values and
/// gradients. Also returns which inputs have a gradient.
fn recompute(
    body: &Rc<Graph>,
    arguments: &[Tensor],
    needs_grad: &[bool],
    saved: &[SavedValue],
    cotangents: &[Cotangent],
) -> Result<(Traced, Vec<bool>)> {
    let types: Vec<_> = arguments.iter().map(|tensor| tensor.shared_type()).collect();
    let mut has_gradient = Vec::new();
    let traced = trace_graph("remat_backward", &types, |mut values| {
        let mut given = values.split_off(needs_grad.len() + saved.len()).into_iter();
        let cotangents: Vec<Cotangent> =
            cotangents.iter().map(|it| it.as_ref().and_then(|_| given.next())).collect();
        let tensors = saved.iter().zip(values.split_off(needs_grad.len()));
        let tensors = tensors.map(|(value, tensor)| match value.memory {
            Memory::Device => Ok((value.node, tensor)),
            Memory::Host => Ok((value.node, tensor.in_memory(Memory::Device)?)),
        });
        let tensors: HashMap<usize, Tensor> = tensors.collect::<Result<_>>()?;
        let of_node = |node: usize| tensors.get(&node).map(|tensor| vec![tensor.clone()]);
        let tape = Tape::record(body, &values, needs_grad, &of_node)?;
        let gradients = tape.backward(&cotangents)?;
        has_gradient = gradients.iter().map(Option::is_some).collect();
        Ok(gradients.into_iter().flatten().collect())
    })?;
    Ok((traced, has_gradient))
}

/// A named value that is saved.
struct SavedValue {
    /// The node that names it.
    node: usize,
    memory: Memory,
    tensor: Tensor,
}

/// Traces a region inline, and also returns the values that a policy saves.
fn inline_and_save(
    body: &Rc<Graph>,
    policy: &Policy,
    inputs: &[Tensor],
) -> Result<(Vec<Tensor>, Vec<SavedValue>)> {
    let live = body.live_nodes();
    let nodes = body.nodes.iter().enumerate().filter(|(index, _)| live[*index]);
    let saved = nodes.filter_map(|(index, node)| Some((index, policy.saves(&node.op)?)));
    let saved: Vec<(usize, Memory)> = saved.collect();
    let mut with_saved = (**body).clone();
    for (index, _) in &saved {
        with_saved.results.extend(&body.nodes[*index].outputs);
    }
    let mut outputs = inline(&with_saved, inputs)?;
    let tensors = outputs.split_off(body.results.len());
    let saved = saved.into_iter().zip(tensors).map(|((node, memory), tensor)| {
        let tensor = match memory {
            Memory::Device => tensor,
            Memory::Host => tensor.in_memory(memory)?,
        };
        Ok(SavedValue { node, memory, tensor })
    });
    Ok((outputs, saved.collect::<Result<_>>()?))
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
