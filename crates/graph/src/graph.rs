//! Graphs: programs and region bodies, in trace order.

use crate::op::Op;
use fullshard_core::TensorType;
use std::collections::HashSet;
use std::rc::Rc;

/// A value in a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ValueId(pub u32);

impl ValueId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// One operation of a graph.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub op: Op,
    pub inputs: Vec<ValueId>,
    pub outputs: Vec<ValueId>,
    /// The module it was traced in.
    pub path: Rc<str>,
}

/// A straight-line sequence of operations from parameters to results.
#[derive(Debug, Clone, Default)]
pub(crate) struct Graph {
    pub name: String,
    pub parameters: Vec<ValueId>,
    pub types: Vec<Rc<TensorType>>,
    pub nodes: Vec<Node>,
    pub results: Vec<ValueId>,
}

impl Graph {
    /// An empty graph.
    pub(crate) fn new(name: &str) -> Graph {
        Graph { name: name.to_owned(), ..Graph::default() }
    }

    /// Adds a value of a type.
    pub(crate) fn add_value(&mut self, ty: Rc<TensorType>) -> ValueId {
        self.types.push(ty);
        ValueId((self.types.len() - 1) as u32)
    }

    /// Adds a parameter of a type.
    pub(crate) fn add_parameter(&mut self, ty: Rc<TensorType>) -> ValueId {
        let value = self.add_value(ty);
        self.parameters.push(value);
        value
    }

    /// The type of a value.
    pub(crate) fn ty(&self, value: ValueId) -> &Rc<TensorType> {
        &self.types[value.index()]
    }

    /// The types of the parameters.
    pub(crate) fn parameter_types(&self) -> Vec<Rc<TensorType>> {
        self.parameters.iter().map(|&value| self.ty(value).clone()).collect()
    }

    /// The types of the results.
    pub(crate) fn result_types(&self) -> Vec<Rc<TensorType>> {
        self.results.iter().map(|&value| self.ty(value).clone()).collect()
    }

    /// Visits every node, including those of regions and functions.
    pub(crate) fn visit(&self, visitor: &mut impl FnMut(&Node)) {
        for node in &self.nodes {
            visitor(node);
            for region in node.op.regions() {
                region.visit(visitor);
            }
        }
    }

    /// Which nodes the results depend on; nodes with side effects count as live.
    pub(crate) fn live_nodes(&self) -> Vec<bool> {
        let mut needed = vec![false; self.types.len()];
        for result in &self.results {
            needed[result.index()] = true;
        }
        let mut live = vec![false; self.nodes.len()];
        for (i, node) in self.nodes.iter().enumerate().rev() {
            let effect = matches!(&node.op, Op::CustomCall(call) if call.has_side_effect);
            if effect || node.outputs.iter().any(|output| needed[output.index()]) {
                live[i] = true;
                for input in &node.inputs {
                    needed[input.index()] = true;
                }
            }
        }
        live
    }

    /// Which parameters the results depend on.
    pub(crate) fn used_parameters(&self) -> Vec<bool> {
        let live = self.live_nodes();
        let nodes = self.nodes.iter().zip(&live).filter(|(_, live)| **live);
        let used: HashSet<ValueId> =
            nodes.flat_map(|(node, _)| &node.inputs).chain(&self.results).copied().collect();
        self.parameters.iter().map(|parameter| used.contains(parameter)).collect()
    }

    /// The graph without dead nodes.
    pub(crate) fn pruned(mut self) -> Graph {
        let mut live = self.live_nodes().into_iter();
        self.nodes.retain(|_| live.next().unwrap_or(true));
        self
    }
}
