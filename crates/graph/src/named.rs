//! The named values of a program, with the matmuls that compute them: what a remat policy can save,
//! and what it saves recomputing.

use crate::graph::{Graph, Node};
use crate::op::{DotDims, Op};
use crate::program::Program;

/// The values of one name, set by [`Tensor::named`](crate::Tensor::named).
#[derive(Debug, Clone, PartialEq)]
pub struct NamedValues {
    /// The name.
    pub name: String,
    /// The elements of all values with the name.
    pub elements: usize,
    /// FLOPs of the matmuls that compute them from other named values or inputs, where one operand
    /// depends on no input of the program.
    pub constant_flops: f64,
    /// FLOPs of those where both operands depend on inputs.
    pub input_flops: f64,
}

impl Program {
    /// The named values of the program, in the order they are computed; not those of regions. A
    /// matmul counts for the first named value that depends on it, and not at all if there is none.
    pub fn named_values(&self) -> Vec<NamedValues> {
        let graph = &self.graph;
        let mut all = names(graph);
        let first_name = first_names(graph, &all);
        let from_input = depends_on_inputs(graph);
        for node in &graph.nodes {
            let Op::Dot(dims) = &node.op else { continue };
            let Some(i) = first_name[node.outputs[0].index()] else { continue };
            let flops = flops(graph, node, dims);
            match node.inputs.iter().all(|input| from_input[input.index()]) {
                true => all[i].input_flops += flops,
                false => all[i].constant_flops += flops,
            }
        }
        all
    }
}

/// The names with their elements.
fn names(graph: &Graph) -> Vec<NamedValues> {
    let mut all: Vec<NamedValues> = Vec::new();
    for node in &graph.nodes {
        let Op::Name(name) = &node.op else { continue };
        let elements = graph.ty(node.outputs[0]).elements();
        match all.iter_mut().find(|known| *known.name == **name) {
            Some(known) => known.elements += elements,
            None => all.push(NamedValues {
                name: name.to_string(),
                elements,
                constant_flops: 0.0,
                input_flops: 0.0,
            }),
        }
    }
    all
}

/// For each value, the first name on a way from it, by position.
fn first_names(graph: &Graph, names: &[NamedValues]) -> Vec<Option<usize>> {
    let mut first: Vec<Option<usize>> = vec![None; graph.types.len()];
    for node in graph.nodes.iter().rev() {
        let next = match &node.op {
            Op::Name(name) => names.iter().position(|known| *known.name == **name),
            _ => node.outputs.iter().filter_map(|output| first[output.index()]).min(),
        };
        for input in &node.inputs {
            let known = &mut first[input.index()];
            *known = (*known).into_iter().chain(next).min();
        }
    }
    first
}

fn depends_on_inputs(graph: &Graph) -> Vec<bool> {
    let mut depends = vec![false; graph.types.len()];
    graph.parameters.iter().for_each(|parameter| depends[parameter.index()] = true);
    for node in &graph.nodes {
        if node.inputs.iter().any(|input| depends[input.index()]) {
            node.outputs.iter().for_each(|output| depends[output.index()] = true);
        }
    }
    depends
}

/// Two FLOPs for each element of the result and of the contracted dimensions.
fn flops(graph: &Graph, node: &Node, dims: &DotDims) -> f64 {
    let lhs = &graph.ty(node.inputs[0]).dims;
    let contracted: usize = dims.lhs_contract.iter().map(|&dim| lhs[dim]).product();
    2.0 * (graph.ty(node.outputs[0]).elements() * contracted) as f64
}
