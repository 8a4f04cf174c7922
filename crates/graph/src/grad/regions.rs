//! Forward passes of regions, each with what takes gradients back through it.

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

/// Traces a node forwards; a region comes with its own way back.
pub(super) fn forward(
    graph: &Graph,
    node: &Node,
    inputs: &[Tensor],
    wanted: &[bool],
    reached: &[bool],
) -> Result<(Vec<Tensor>, Option<RegionRule>)> {
    let (outputs, rule) = match &node.op {
        Op::Remat { body, policy: Policy::Everything } => inlined(body, inputs, wanted)?,
        Op::Remat { body, policy } => remat(body, policy, inputs, wanted)?,
        Op::Transient { body } => again(body, inputs, wanted)?,
        Op::CustomVjp(rule) => custom(rule, inputs, wanted)?,
        Op::Call { function } => call(function, inputs, wanted, reached)?,
        Op::Cond { branches } => branches::cond(branches, inputs, wanted, reached)?,
        Op::Scan(scan) => loops::scan(scan, inputs, wanted, reached)?,
        Op::While { .. } => {
            let rule = refuse("while", "a loop of unknown length; use a scan");
            (replay(graph, node, inputs)?, rule)
        }
        Op::Manual(_) => {
            let rule = refuse("manual", "a manual region; take the gradient inside it");
            (replay(graph, node, inputs)?, rule)
        }
        _ => return Ok((replay(graph, node, inputs)?, None)),
    };
    Ok((outputs, Some(rule)))
}

/// There is no way back, which matters only to those who ask for one.
fn refuse(op: &'static str, what: &'static str) -> RegionRule {
    Box::new(move |_, _| Err(Error::new(op, format!("no gradient of {what}"))))
}

/// A region that is as if it were written out.
fn inlined(
    body: &Rc<Graph>,
    inputs: &[Tensor],
    wanted: &[bool],
) -> Result<(Vec<Tensor>, RegionRule)> {
    let tape = Tape::record(body, inputs, wanted, &|_| None)?;
    let outputs = tape.results.clone();
    Ok((outputs, Box::new(move |cotangents, _| tape.backward(cotangents))))
}

/// A region whose values are not kept: its gradient is taken when it is asked for.
fn again(
    body: &Rc<Graph>,
    inputs: &[Tensor],
    wanted: &[bool],
) -> Result<(Vec<Tensor>, RegionRule)> {
    let outputs = inline(body, inputs)?;
    let (body, inputs, wanted) = (body.clone(), inputs.to_vec(), wanted.to_vec());
    let rule = move |cotangents: &[Cotangent], _: Inputs<'_>| {
        Tape::record(&body, &inputs, &wanted, &|_| None)?.backward(cotangents)
    };
    Ok((outputs, Box::new(rule)))
}

/// A region of which only some values are kept; the rest is computed again on the way back.
///
/// The second computation starts from the same inputs behind a barrier that also waits for the
/// gradients, so that the compiler can neither merge it with the first nor do it early.
fn remat(
    body: &Rc<Graph>,
    policy: &Policy,
    inputs: &[Tensor],
    wanted: &[bool],
) -> Result<(Vec<Tensor>, RegionRule)> {
    let (outputs, kept) = keep_while_inlining(body, policy, inputs)?;
    let (body, inputs, wanted) = (body.clone(), inputs.to_vec(), wanted.to_vec());
    let rule = move |cotangents: &[Cotangent], _: Inputs<'_>| {
        let kept_tensors = kept.iter().flat_map(|(_, tensors)| tensors);
        let all: Vec<&Tensor> =
            inputs.iter().chain(kept_tensors).chain(cotangents.iter().flatten()).collect();
        let mut behind = barrier(&all)?.into_iter();
        let inputs: Vec<Tensor> = behind.by_ref().take(inputs.len()).collect();
        let kept: Vec<(usize, Vec<Tensor>)> = kept
            .iter()
            .map(|(node, tensors)| (*node, behind.by_ref().take(tensors.len()).collect()))
            .collect();
        let cotangents: Vec<Cotangent> = cotangents
            .iter()
            .map(|cotangent| cotangent.as_ref().and_then(|_| behind.next()))
            .collect();
        let saved = |node: usize| {
            kept.iter().find(|(known, _)| *known == node).map(|(_, tensors)| tensors.clone())
        };
        Tape::record(&body, &inputs, &wanted, &saved)?.backward(&cotangents)
    };
    Ok((outputs, Box::new(rule)))
}

/// Traces a region as if it were written out, and gives the results of the nodes that a policy
/// saves, by the node.
#[allow(clippy::type_complexity)]
fn keep_while_inlining(
    body: &Rc<Graph>,
    policy: &Policy,
    inputs: &[Tensor],
) -> Result<(Vec<Tensor>, Vec<(usize, Vec<Tensor>)>)> {
    let live = body.live_nodes();
    let nodes = body.nodes.iter().enumerate().filter(|(index, _)| live[*index]);
    let saved = nodes.filter(|(_, node)| policy.saves(&node.op));
    let saved: Vec<(usize, usize)> =
        saved.map(|(index, node)| (index, node.outputs.len())).collect();
    let mut with_kept = (**body).clone();
    for (index, _) in &saved {
        with_kept.results.extend(&body.nodes[*index].outputs);
    }
    let mut outputs = inline(&with_kept, inputs)?;
    let mut kept = outputs.split_off(body.results.len()).into_iter();
    let kept = saved.iter().map(|&(index, count)| (index, kept.by_ref().take(count).collect()));
    Ok((outputs, kept.collect()))
}

fn custom(
    rule: &Rc<CustomVjp>,
    inputs: &[Tensor],
    wanted: &[bool],
) -> Result<(Vec<Tensor>, RegionRule)> {
    let mut outputs = inline(&rule.forward, inputs)?;
    let results = rule.primal.results.len();
    let residuals = outputs.split_off(results);
    // What is an input as it came: it is not kept if it is let go.
    let position = |value| rule.forward.parameters.iter().position(|parameter| parameter == value);
    let sources: Vec<Option<usize>> =
        rule.forward.results[results..].iter().map(position).collect();
    let (rule, wanted) = (rule.clone(), wanted.to_vec());
    let types = rule.primal.result_types();
    let back = move |cotangents: &[Cotangent], input: Inputs<'_>| {
        let mut arguments = residuals.clone();
        for (argument, source) in arguments.iter_mut().zip(&sources) {
            if let Some(i) = source {
                *argument = input(*i)?;
            }
        }
        arguments.extend(or_zeros(cotangents, &types)?);
        let gradients = inline(&rule.backward, &arguments)?;
        Ok(gradients.into_iter().zip(&wanted).map(|(g, wanted)| wanted.then_some(g)).collect())
    };
    Ok((outputs, Box::new(back)))
}

/// A function stays a function both ways. What the backward function needs is known only when
/// it is known which results have gradients, so all that can be reached are taken to.
fn call(
    function: &Rc<Graph>,
    inputs: &[Tensor],
    wanted: &[bool],
    reached: &[bool],
) -> Result<(Vec<Tensor>, RegionRule)> {
    let types = function.result_types();
    let parts = functions::differentiate_once(function, wanted, reached, differentiate)?;
    let reached = reached.to_vec();
    let mut outputs = call_graph(&parts.forward, &inputs.iter().collect::<Vec<_>>())?;
    let residuals = outputs.split_off(function.results.len());
    let mut arguments: Vec<Tensor> = parts.parameters.iter().map(|&i| inputs[i].clone()).collect();
    arguments.extend(residuals);
    let back = move |cotangents: &[Cotangent], _: Inputs<'_>| {
        let mut arguments = arguments.clone();
        arguments.extend(of_reached(cotangents, &types, &reached)?);
        let gradients = call_graph(&parts.backward, &arguments.iter().collect::<Vec<_>>())?;
        Ok(place(gradients, &parts.has_gradient))
    };
    Ok((outputs, Box::new(back)))
}

/// Gradients put where they belong, `None` elsewhere.
pub(super) fn place(gradients: Vec<Tensor>, has_gradient: &[bool]) -> Vec<Cotangent> {
    let mut gradients = gradients.into_iter();
    has_gradient.iter().map(|&has| if has { gradients.next() } else { None }).collect()
}

/// The gradients of the results that can be reached.
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
