//! Partitions a differentiated region into a forward part, which does not depend on the gradients
//! of its results, and a backward part, which does, and which recomputes what is cheap.

use super::Tape;
use super::cut::cut;
use crate::error::Result;
use crate::graph::{Graph, Node, ValueId};
use crate::op::Op;
use crate::tensor::Tensor;
use crate::trace::trace_graph;
use fullshard_core::TensorType;
use std::collections::HashSet;
use std::rc::Rc;

/// A partitioned region.
pub(crate) struct Parts {
    /// From the region's parameters to its results and then the residuals.
    pub forward: Graph,
    /// From the parameters it needs, the residuals and the gradients of the results, to the
    /// gradients of the parameters that have one.
    pub backward: Graph,
    /// The parameters that the backward part needs, by position.
    pub parameters: Vec<usize>,
    /// The types of the residuals.
    pub residuals: Vec<Rc<TensorType>>,
    /// Which parameters have a gradient.
    pub has_gradient: Vec<bool>,
}

/// Differentiates a region whose `active` parameters need gradients, when the results at
/// `reached` have gradients, and partitions it. All of its parameters are saved anyway.
pub(crate) fn differentiate(
    region: &Rc<Graph>,
    active: &[bool],
    reached: &[bool],
) -> Result<Parts> {
    differentiate_saving(region, active, reached, |_| false)
}

/// Like [`differentiate`], where parameters are saved only if the backward part needs them, those
/// for which `costs` is true at the cost of their bytes.
pub(super) fn differentiate_saving(
    region: &Rc<Graph>,
    active: &[bool],
    reached: &[bool],
    costs: impl Fn(usize) -> bool,
) -> Result<Parts> {
    let parameters = region.parameter_types();
    let results = region.result_types();
    let cotangents = results.iter().zip(reached).filter(|(_, reached)| **reached);
    let types: Vec<_> =
        parameters.iter().cloned().chain(cotangents.map(|(ty, _)| ty.clone())).collect();
    let mut has_gradient = Vec::new();
    let joint = trace_graph(&region.name, &types, |mut values| {
        let mut given = values.split_off(parameters.len()).into_iter();
        let cotangents: Vec<Option<Tensor>> =
            reached.iter().map(|&reached| if reached { given.next() } else { None }).collect();
        let tape = Tape::record(region, &values, active, &|_| None)?;
        let gradients = tape.backward(&cotangents)?;
        has_gradient = gradients.iter().map(Option::is_some).collect();
        Ok(tape.results.into_iter().chain(gradients.into_iter().flatten()).collect())
    })?;
    let costs: Vec<bool> = (0..parameters.len()).map(costs).collect();
    Ok(partition(joint.graph, &costs, results.len(), has_gradient))
}

/// Partitions a graph by dependence on the parameters after those that `costs` is about.
fn partition(joint: Graph, costs: &[bool], results: usize, has_gradient: Vec<bool>) -> Parts {
    let joint = joint.pruned();
    let known = costs.len();
    let dependent = dependent_values(&joint, known);
    let free = free_values(&joint);
    let is_late = |node: &Node| node.inputs.iter().any(|value| dependent[value.index()]);
    let late: Vec<bool> = joint.nodes.iter().map(is_late).collect();
    let gradients = joint.results[results..].to_vec();
    let needed = needed_by_late(&joint, &late, &gradients, &dependent);
    let mut available = free.clone();
    for (parameter, costs) in joint.parameters.iter().zip(costs) {
        available[parameter.index()] = !costs;
    }
    let (saved, recomputed) = cut(&joint, &needed, &available);
    let is_parameter = |value: &ValueId| joint.parameters[..known].contains(value);
    let residuals: Vec<ValueId> = saved.into_iter().filter(|value| !is_parameter(value)).collect();
    let in_backward = |i: usize| late[i] || recomputed.contains(&i);
    let used = joint.nodes.iter().enumerate().filter(|(i, _)| in_backward(*i));
    let used: HashSet<ValueId> =
        used.flat_map(|(_, node)| &node.inputs).chain(&gradients).copied().collect();
    let parameters: Vec<usize> =
        (0..known).filter(|&i| used.contains(&joint.parameters[i])).collect();

    let mut forward = joint.clone();
    forward.parameters.truncate(known);
    forward.nodes = pick(&joint, |i| !late[i]);
    forward.results = joint.results[..results].iter().chain(&residuals).copied().collect();

    let mut backward = joint.clone();
    backward.name = format!("{}_backward", joint.name);
    let taken = parameters.iter().map(|&i| joint.parameters[i]);
    let cotangents = joint.parameters[known..].iter().copied();
    backward.parameters = taken.chain(residuals.iter().copied()).chain(cotangents).collect();
    backward.nodes = pick(&joint, |i| in_backward(i) || is_free(&joint, &free, i));
    backward.results = gradients;
    Parts {
        parameters,
        residuals: residuals.iter().map(|&value| joint.ty(value).clone()).collect(),
        has_gradient,
        forward: forward.pruned(),
        backward: backward.pruned(),
    }
}

fn pick(graph: &Graph, keep: impl Fn(usize) -> bool) -> Vec<Node> {
    let nodes = graph.nodes.iter().enumerate();
    nodes.filter(|(i, _)| keep(*i)).map(|(_, node)| node.clone()).collect()
}

/// Which values depend on the parameters after the first `known`.
fn dependent_values(graph: &Graph, known: usize) -> Vec<bool> {
    let mut dependent = vec![false; graph.types.len()];
    for parameter in &graph.parameters[known..] {
        dependent[parameter.index()] = true;
    }
    for node in &graph.nodes {
        if node.inputs.iter().any(|value| dependent[value.index()]) {
            for output in &node.outputs {
                dependent[output.index()] = true;
            }
        }
    }
    dependent
}

/// Which values are free to recompute, since they depend on no parameter: constants, position masks
/// and so on.
fn free_values(graph: &Graph) -> Vec<bool> {
    let mut free = vec![false; graph.types.len()];
    for (i, node) in graph.nodes.iter().enumerate() {
        if is_free(graph, &free, i) {
            for output in &node.outputs {
                free[output.index()] = true;
            }
        }
    }
    free
}

fn is_free(graph: &Graph, free: &[bool], node: usize) -> bool {
    let node = &graph.nodes[node];
    is_cheap(&node.op) && node.inputs.iter().all(|value| free[value.index()])
}

/// Whether an op only moves, converts or combines elements: no matmul, no collective.
pub(super) fn is_cheap(op: &Op) -> bool {
    matches!(
        op,
        Op::Constant(_)
            | Op::Iota { .. }
            | Op::AxisIndex { .. }
            | Op::Unary(_)
            | Op::Binary(_)
            | Op::Compare(_)
            | Op::Select
            | Op::Convert
            | Op::Bitcast
            | Op::Broadcast { .. }
            | Op::Reshape
            | Op::Transpose { .. }
            | Op::Slice { .. }
            | Op::Concatenate { .. }
            | Op::Pad { .. }
            | Op::Reverse { .. }
            | Op::Reduce { .. }
            | Op::Constrain(_)
    )
}

/// The early values that late nodes and results use, deduplicated, in order.
fn needed_by_late(
    graph: &Graph,
    late: &[bool],
    results: &[ValueId],
    dependent: &[bool],
) -> Vec<ValueId> {
    let used = graph.nodes.iter().zip(late).filter(|(_, late)| **late);
    let used = used.flat_map(|(node, _)| &node.inputs).chain(results);
    let mut needed: Vec<ValueId> =
        used.copied().filter(|value| !dependent[value.index()]).collect();
    needed.sort_unstable();
    needed.dedup();
    needed
}
