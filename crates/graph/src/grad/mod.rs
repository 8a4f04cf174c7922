//! Reverse-mode differentiation.
//!
//! A function is traced into its own graph, which is then replayed into the program: a forward pass
//! records a tape of what the gradients need, and a backward pass over the tape accumulates the
//! gradients of each value. Both passes trace ordinary ops, so gradients can be differentiated
//! again. A zero gradient is `None` and costs nothing.

mod branches;
mod cut;
mod functions;
mod loops;
mod manual;
mod partition;
mod regions;
mod rules;
mod transient;
mod windows;

pub(crate) use functions::clear_functions;

use crate::error::{Error, Result};
use crate::graph::{Graph, ValueId};
use crate::op::Op;
use crate::ops::{ones, zeros};
use crate::tensor::Tensor;
use crate::trace::{emit, module_path, trace_graph, with_path};
use std::rc::Rc;
use transient::Saved;

/// A gradient, or zero.
pub(crate) type Cotangent = Option<Tensor>;

/// Maps gradients of a function's results to gradients of its inputs.
pub struct Pullback {
    tape: Tape,
}

/// The results of a function, and its pullback.
///
/// Gradients are taken with respect to the floating-point inputs; captured values are constants.
pub fn vjp(
    inputs: &[&Tensor],
    function: impl FnOnce(Vec<Tensor>) -> Result<Vec<Tensor>>,
) -> Result<(Vec<Tensor>, Pullback)> {
    let types: Vec<_> = inputs.iter().map(|tensor| tensor.shared_type()).collect();
    let traced = trace_graph("vjp", &types, function)?;
    let mut arguments: Vec<Tensor> = inputs.iter().map(|&tensor| tensor.clone()).collect();
    let active = arguments.iter().map(|tensor| tensor.dtype().is_float());
    let active: Vec<bool> = active.chain(traced.captured.iter().map(|_| false)).collect();
    arguments.extend(traced.captured);
    let tape = Tape::record(&Rc::new(traced.graph), &arguments, &active, &|_| None)?;
    Ok((tape.results.clone(), Pullback { tape }))
}

impl Pullback {
    /// The gradients of the inputs for gradients of the results; `None` is zero.
    pub fn apply(&self, cotangents: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        self.tape.backward(cotangents)
    }
}

/// The value of a function, and its gradient with respect to each input: zeros for those it does
/// not depend on.
pub fn value_and_grad(
    inputs: &[&Tensor],
    function: impl FnOnce(Vec<Tensor>) -> Result<Tensor>,
) -> Result<(Tensor, Vec<Tensor>)> {
    let (value, _, gradients) =
        value_aux_and_grad(inputs, |inputs| Ok((function(inputs)?, Vec::new())))?;
    Ok((value, gradients))
}

/// Like [`value_and_grad`], for a function that also returns auxiliary values.
pub fn value_aux_and_grad(
    inputs: &[&Tensor],
    function: impl FnOnce(Vec<Tensor>) -> Result<(Tensor, Vec<Tensor>)>,
) -> Result<(Tensor, Vec<Tensor>, Vec<Tensor>)> {
    let (mut results, pullback) = vjp(inputs, |inputs| {
        let (value, aux) = function(inputs)?;
        if value.rank() != 0 || !value.dtype().is_float() {
            let reason = format!("the function must return a float scalar, not {}", value.ty());
            return Err(Error::new("grad", reason));
        }
        Ok([value].into_iter().chain(aux).collect())
    })?;
    let aux = results.split_off(1);
    let value = results.remove(0);
    let mut cotangents = vec![Some(ones(value.dtype(), &[])?)];
    cotangents.resize(1 + aux.len(), None);
    let gradients = pullback.apply(&cotangents)?;
    let or_zeros = |(input, gradient): (&&Tensor, Cotangent)| match gradient {
        Some(gradient) => Ok(gradient),
        None => zeros(input.dtype(), input.dims()),
    };
    let gradients = inputs.iter().zip(gradients).map(or_zeros).collect::<Result<_>>()?;
    Ok((value, aux, gradients))
}

/// The backward rule of a region. It may request the region's inputs, by position, as the backward
/// pass sees them: recomputed, if they were freed.
type RegionRule = Box<dyn Fn(&[Cotangent], Inputs<'_>) -> Result<Vec<Cotangent>>>;

type Inputs<'a> = &'a mut dyn FnMut(usize) -> Result<Tensor>;

/// One node of the tape.
struct Entry {
    node: usize,
    needs_grad: Vec<bool>,
    region: Option<RegionRule>,
}

/// A graph replayed into the program, with what the backward pass needs.
pub(crate) struct Tape {
    graph: Rc<Graph>,
    entries: Vec<Entry>,
    active: Vec<bool>,
    values: Vec<Option<Tensor>>,
    pub results: Vec<Tensor>,
}

impl Tape {
    /// Replays a graph on arguments, of which the active ones need gradients. Results that `saved`
    /// has are taken from there.
    pub(crate) fn record(
        graph: &Rc<Graph>,
        arguments: &[Tensor],
        active: &[bool],
        saved: &dyn Fn(usize) -> Option<Vec<Tensor>>,
    ) -> Result<Tape> {
        let mut values: Vec<Option<Tensor>> = vec![None; graph.types.len()];
        let mut is_active = vec![false; graph.types.len()];
        for ((&parameter, argument), &active) in graph.parameters.iter().zip(arguments).zip(active)
        {
            values[parameter.index()] = Some(argument.clone());
            is_active[parameter.index()] = active;
        }
        let mut entries = Vec::new();
        let live = graph.live_nodes();
        let reached = reached_values(graph, &live);
        for (index, node) in graph.nodes.iter().enumerate().filter(|(index, _)| live[*index]) {
            let inputs = lookup(&values, &node.inputs)?;
            let needs_grad: Vec<bool> =
                node.inputs.iter().map(|value| is_active[value.index()]).collect();
            let reached: Vec<bool> =
                node.outputs.iter().map(|value| reached[value.index()]).collect();
            let differentiable = needs_grad.contains(&true)
                && !matches!(node.op, Op::StopGradient)
                && reached.contains(&true);
            let (outputs, region) = with_path(replay_path(&node.path), || match saved(index) {
                // Its backward rule is custom and may need more than its results.
                Some(outputs) if differentiable && matches!(node.op, Op::CustomVjp(_)) => {
                    let (_, rule) = regions::forward(graph, node, &inputs, &needs_grad, &reached)?;
                    Ok((outputs, rule))
                }
                Some(outputs) => Ok((outputs, None)),
                None if differentiable => {
                    regions::forward(graph, node, &inputs, &needs_grad, &reached)
                }
                None => Ok((replay(graph, node, &inputs)?, None)),
            })?;
            for (value, tensor) in node.outputs.iter().zip(&outputs) {
                values[value.index()] = Some(tensor.clone());
                is_active[value.index()] = differentiable && tensor.dtype().is_float();
            }
            if differentiable {
                entries.push(Entry { node: index, needs_grad, region });
            }
        }
        let results = lookup(&values, &graph.results)?;
        Ok(Tape { graph: graph.clone(), entries, active: is_active, values, results })
    }

    /// The gradients of the parameters for gradients of the results.
    pub(crate) fn backward(&self, cotangents: &[Cotangent]) -> Result<Vec<Cotangent>> {
        let mut sums: Vec<Cotangent> = vec![None; self.graph.types.len()];
        for (&result, cotangent) in self.graph.results.iter().zip(cotangents) {
            if self.active[result.index()] {
                accumulate(&mut sums[result.index()], cotangent.clone())?;
            }
        }
        let mut saved = Saved::new(&self.graph, &self.values);
        for entry in self.entries.iter().rev() {
            let node = &self.graph.nodes[entry.node];
            let reached: Vec<Cotangent> =
                node.outputs.iter().map(|value| sums[value.index()].take()).collect();
            let Some(first) = reached.iter().flatten().next() else { continue };
            let path = backward_path(&node.path);
            let gradients = with_path(path.clone(), || match &entry.region {
                Some(rule) => {
                    let mut input =
                        |i: usize| Ok(saved.get_all(&node.inputs[i..=i], first)?.remove(0));
                    rule(&reached, &mut input)
                }
                None => {
                    let inputs = saved.get_all(&node.inputs, first)?;
                    let outputs = saved.get_all(&node.outputs, first)?;
                    let ctx = Context {
                        inputs: &inputs,
                        outputs: &outputs,
                        needs_grad: &entry.needs_grad,
                    };
                    rules::backward(&node.op, ctx, &reached)
                }
            })?;
            for ((input, gradient), needs_grad) in
                node.inputs.iter().zip(gradients).zip(&entry.needs_grad)
            {
                if *needs_grad {
                    let sum = &mut sums[input.index()];
                    with_path(path.clone(), || accumulate(sum, gradient))?;
                }
            }
        }
        Ok(self.graph.parameters.iter().map(|value| sums[value.index()].take()).collect())
    }
}

/// Which values gradients can reach, backward from the results: those that affect a result through
/// floating-point values.
fn reached_values(graph: &Graph, live: &[bool]) -> Vec<bool> {
    let is_float = |value: &ValueId| graph.ty(*value).dtype.is_float();
    let mut reached = vec![false; graph.types.len()];
    for value in graph.results.iter().filter(|value| is_float(value)) {
        reached[value.index()] = true;
    }
    for (node, _) in graph.nodes.iter().zip(live).rev().filter(|(_, live)| **live) {
        let propagates = node.outputs.iter().any(|value| reached[value.index()]);
        if propagates && !matches!(node.op, Op::StopGradient) {
            for value in node.inputs.iter().filter(|value| is_float(value)) {
                reached[value.index()] = true;
            }
        }
    }
    reached
}

/// What a backward rule sees of a node.
pub(crate) struct Context<'a> {
    pub inputs: &'a [Tensor],
    pub outputs: &'a [Tensor],
    pub needs_grad: &'a [bool],
}

fn backward_path(path: &str) -> Rc<str> {
    Rc::from(if path.is_empty() { "backward".to_owned() } else { format!("backward.{path}") })
}

/// The path of a replayed op: ops recomputed in the backward pass belong to the backward pass.
fn replay_path(path: &Rc<str>) -> Rc<str> {
    let is_backward = |path: &str| path.split('.').next() == Some("backward");
    match is_backward(&module_path()) && !is_backward(path) {
        true => backward_path(path),
        false => path.clone(),
    }
}

fn accumulate(sum: &mut Cotangent, gradient: Cotangent) -> Result<()> {
    *sum = match (sum.take(), gradient) {
        // The new one first: XLA's GPU compiler fuses the addend on the right into a matmul, but
        // not into a matmul that already adds. So matmuls of one input end in one sum, without an
        // extra pass.
        (Some(sum), Some(gradient)) => Some((gradient + sum)?),
        (sum, gradient) => sum.or(gradient),
    };
    Ok(())
}

fn lookup(values: &[Option<Tensor>], ids: &[ValueId]) -> Result<Vec<Tensor>> {
    let get = |value: &ValueId| {
        values[value.index()]
            .clone()
            .ok_or_else(|| Error::new("grad", format!("value {} is not defined", value.0)))
    };
    ids.iter().map(get).collect()
}

/// Traces a node again, on other inputs.
fn replay(graph: &Graph, node: &crate::graph::Node, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let types = node.outputs.iter().map(|&value| (**graph.ty(value)).clone()).collect();
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    emit("replay", node.op.clone(), &inputs, types)
}

/// Traces a graph again, on arguments.
pub(crate) fn inline(graph: &Graph, arguments: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut values: Vec<Option<Tensor>> = vec![None; graph.types.len()];
    for (&parameter, argument) in graph.parameters.iter().zip(arguments) {
        values[parameter.index()] = Some(argument.clone());
    }
    let live = graph.live_nodes();
    for (_, node) in graph.nodes.iter().enumerate().filter(|(index, _)| live[*index]) {
        let inputs = lookup(&values, &node.inputs)?;
        let outputs = with_path(replay_path(&node.path), || replay(graph, node, &inputs))?;
        for (value, tensor) in node.outputs.iter().zip(outputs) {
            values[value.index()] = Some(tensor);
        }
    }
    lookup(&values, &graph.results)
}
