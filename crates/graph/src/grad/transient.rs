//! The forward values that the backward pass uses: saved, or recomputed if they were freed.

use super::partition::is_cheap;
use super::{inline, lookup, replay, replay_path};
use crate::error::Result;
use crate::graph::{Graph, ValueId};
use crate::op::Op;
use crate::ops::barrier;
use crate::tensor::Tensor;
use crate::trace::with_path;
use std::collections::HashMap;

/// The values of a forward pass, for its backward pass.
pub(super) struct Saved<'a> {
    graph: &'a Graph,
    values: &'a [Option<Tensor>],
    /// The node that computes each freed value.
    freed: HashMap<usize, usize>,
    recomputed: HashMap<usize, Tensor>,
}

impl<'a> Saved<'a> {
    pub(super) fn new(graph: &'a Graph, values: &'a [Option<Tensor>]) -> Saved<'a> {
        Saved { graph, values, freed: freed_values(graph), recomputed: HashMap::new() }
    }

    /// Values for a backward step. Freed values are recomputed when first requested, after the
    /// gradient with which that step begins.
    pub(super) fn get_all(&mut self, ids: &[ValueId], after: &Tensor) -> Result<Vec<Tensor>> {
        ids.iter().map(|id| self.get(*id, after)).collect()
    }

    fn get(&mut self, value: ValueId, after: &Tensor) -> Result<Tensor> {
        let Some(&index) = self.freed.get(&value.index()) else {
            return Ok(lookup(self.values, &[value])?.remove(0));
        };
        if let Some(tensor) = self.recomputed.get(&value.index()) {
            return Ok(tensor.clone());
        }
        let node = &self.graph.nodes[index];
        let inputs = self.get_all(&node.inputs, after)?;
        let outputs = with_path(replay_path(&node.path), || match &node.op {
            Op::Transient { body } => {
                let behind: Vec<&Tensor> = inputs.iter().chain([after]).collect();
                inline(body, &barrier(&behind)?[..inputs.len()])
            }
            _ => replay(self.graph, node, &inputs),
        })?;
        for (output, tensor) in node.outputs.iter().zip(outputs) {
            self.recomputed.insert(output.index(), tensor);
        }
        Ok(self.recomputed[&value.index()].clone())
    }
}

/// The freed values, each with the node that computes it: results of transient regions and of cheap
/// ops on those alone.
fn freed_values(graph: &Graph) -> HashMap<usize, usize> {
    let mut freed = HashMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        let derived = is_cheap(&node.op)
            && !node.inputs.is_empty()
            && node.inputs.iter().all(|value| freed.contains_key(&value.index()));
        if derived || matches!(node.op, Op::Transient { .. }) {
            freed.extend(node.outputs.iter().map(|value| (value.index(), index)));
        }
    }
    freed
}
