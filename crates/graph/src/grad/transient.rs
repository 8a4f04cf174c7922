//! What the backward pass sees of the forward pass: the values kept, and those let go made again.

use super::partition::is_cheap;
use super::{inline, lookup, path_again, replay};
use crate::error::Result;
use crate::graph::{Graph, ValueId};
use crate::op::Op;
use crate::ops::barrier;
use crate::tensor::Tensor;
use crate::trace::with_path;
use std::collections::HashMap;

/// The values of a forward pass, as its backward pass may use them.
pub(super) struct Kept<'a> {
    graph: &'a Graph,
    values: &'a [Option<Tensor>],
    /// The node that gives each value that is let go.
    let_go: HashMap<usize, usize>,
    regained: HashMap<usize, Tensor>,
}

impl<'a> Kept<'a> {
    pub(super) fn new(graph: &'a Graph, values: &'a [Option<Tensor>]) -> Kept<'a> {
        Kept { graph, values, let_go: let_go(graph), regained: HashMap::new() }
    }

    /// Values for a step back. What was let go is made again, the first time it is asked for,
    /// after the gradient with which that step begins.
    pub(super) fn get_all(&mut self, ids: &[ValueId], after: &Tensor) -> Result<Vec<Tensor>> {
        ids.iter().map(|id| self.get(*id, after)).collect()
    }

    fn get(&mut self, value: ValueId, after: &Tensor) -> Result<Tensor> {
        let Some(&index) = self.let_go.get(&value.index()) else {
            return Ok(lookup(self.values, &[value])?.remove(0));
        };
        if let Some(tensor) = self.regained.get(&value.index()) {
            return Ok(tensor.clone());
        }
        let node = &self.graph.nodes[index];
        let inputs = self.get_all(&node.inputs, after)?;
        let outputs = with_path(path_again(&node.path), || match &node.op {
            Op::Transient { body } => {
                let behind: Vec<&Tensor> = inputs.iter().chain([after]).collect();
                inline(body, &barrier(&behind)?[..inputs.len()])
            }
            _ => replay(self.graph, node, &inputs),
        })?;
        for (output, tensor) in node.outputs.iter().zip(outputs) {
            self.regained.insert(output.index(), tensor);
        }
        Ok(self.regained[&value.index()].clone())
    }
}

/// The values that are let go, each with the node that gives it: results of transient regions and
/// what cheap ops make of those alone.
fn let_go(graph: &Graph) -> HashMap<usize, usize> {
    let mut let_go = HashMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        let derived = is_cheap(&node.op)
            && !node.inputs.is_empty()
            && node.inputs.iter().all(|value| let_go.contains_key(&value.index()));
        if derived || matches!(node.op, Op::Transient { .. }) {
            let_go.extend(node.outputs.iter().map(|value| (value.index(), index)));
        }
    }
    let_go
}
