//! What a partitioned region saves for its backward part: the fewest bytes from which cheap ops
//! compute all that it uses.
//!
//! That is a minimum cut between what cannot be recomputed (matmuls, sums, collectives, random
//! bits) and what the backward part uses, where saving a value costs its bytes. So a scan does not
//! stack both a value and its cast, nor the slices of a value, nor every step of an activation
//! function: what compilers find out by themselves where layers are unrolled.

use super::partition::is_cheap;
use crate::graph::{Graph, Node, ValueId};
use crate::op::Op;
use std::collections::{HashMap, VecDeque};

/// Whether the backward part may recompute a node: cheap, and not a sum, which reads far more than
/// it writes, nor integer arithmetic, which is that of random bits.
fn is_recomputable(graph: &Graph, node: &Node) -> bool {
    let is_integer = |value: &ValueId| {
        let dtype = graph.ty(*value).dtype;
        !dtype.is_float() && dtype != fullshard_core::DType::Bool
    };
    let same = match node.op {
        Op::Name(_) | Op::StopGradient => true,
        Op::Barrier => node.inputs.len() == 1,
        _ => false,
    };
    (same || is_cheap(&node.op))
        && !matches!(node.op, Op::Reduce { .. })
        && !node.inputs.iter().chain(&node.outputs).any(is_integer)
}

/// The values to save, and the nodes to recompute from them, by index. Values that are `available`
/// to the backward part cost nothing.
pub(super) fn cut(
    graph: &Graph,
    needed: &[ValueId],
    available: &[bool],
) -> (Vec<ValueId>, Vec<usize>) {
    let producers = producers(graph);
    let recomputed_by = |value: ValueId| {
        let node = *producers.get(&value)?;
        is_recomputable(graph, &graph.nodes[node]).then_some(node)
    };
    let mut flow = Flow::default();
    let mut visited = vec![false; graph.types.len()];
    let mut pending: Vec<ValueId> = needed.to_vec();
    for &value in needed.iter().filter(|value| !available[value.index()]) {
        flow.add(Vertex::After(value), Vertex::Used, UNLIMITED);
    }
    while let Some(value) = pending.pop() {
        if available[value.index()] || std::mem::replace(&mut visited[value.index()], true) {
            continue;
        }
        flow.add(Vertex::Before(value), Vertex::After(value), graph.ty(value).bytes() as u64);
        let Some(node) = recomputed_by(value) else {
            flow.add(Vertex::Computed, Vertex::Before(value), UNLIMITED);
            continue;
        };
        for &input in graph.nodes[node].inputs.iter().filter(|input| !available[input.index()]) {
            flow.add(Vertex::After(input), Vertex::Before(value), UNLIMITED);
            pending.push(input);
        }
    }
    let saved = flow.minimum_cut();
    let nodes = recomputed(graph, needed, available, &saved, recomputed_by);
    (saved, nodes)
}

/// The nodes between what is saved or available and what is needed.
fn recomputed(
    graph: &Graph,
    needed: &[ValueId],
    available: &[bool],
    saved: &[ValueId],
    recomputed_by: impl Fn(ValueId) -> Option<usize>,
) -> Vec<usize> {
    let mut nodes = Vec::new();
    let mut done = available.to_vec();
    saved.iter().for_each(|value| done[value.index()] = true);
    let mut pending = needed.to_vec();
    while let Some(value) = pending.pop() {
        if std::mem::replace(&mut done[value.index()], true) {
            continue;
        }
        if let Some(node) = recomputed_by(value) {
            nodes.push(node);
            pending.extend(&graph.nodes[node].inputs);
        }
    }
    nodes
}

fn producers(graph: &Graph) -> HashMap<ValueId, usize> {
    let outputs = |(index, node): (usize, &Node)| {
        node.outputs.iter().map(move |&output| (output, index)).collect::<Vec<_>>()
    };
    graph.nodes.iter().enumerate().flat_map(outputs).collect()
}

const UNLIMITED: u64 = u64::MAX / 4;

/// A vertex of the network: each value is an edge, from before to after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Vertex {
    /// The source.
    Computed,
    /// The sink.
    Used,
    Before(ValueId),
    After(ValueId),
}

/// A network with the capacities that are left. Each edge is followed by its reverse.
#[derive(Default)]
struct Flow {
    vertices: HashMap<Vertex, usize>,
    /// Source, target and capacity.
    edges: Vec<(usize, usize, u64)>,
    /// The edges from each vertex.
    from: Vec<Vec<usize>>,
}

impl Flow {
    fn vertex(&mut self, vertex: Vertex) -> usize {
        let next = self.from.len();
        let index = *self.vertices.entry(vertex).or_insert(next);
        if index == next {
            self.from.push(Vec::new());
        }
        index
    }

    fn add(&mut self, from: Vertex, to: Vertex, capacity: u64) {
        let (from, to) = (self.vertex(from), self.vertex(to));
        for (from, to, capacity) in [(from, to, capacity), (to, from, 0)] {
            self.from[from].push(self.edges.len());
            self.edges.push((from, to, capacity));
        }
    }

    /// The values of a minimum cut. Of several, the one nearest to where values are used: least is
    /// recomputed, and a bias stays fused with its matmul.
    fn minimum_cut(mut self) -> Vec<ValueId> {
        let (source, sink) = (self.vertex(Vertex::Computed), self.vertex(Vertex::Used));
        while let Some(path) = self.path(source, sink) {
            let least = path.iter().map(|&edge| self.edges[edge].2).min().unwrap_or(0);
            for edge in path {
                self.edges[edge].2 -= least;
                self.edges[edge ^ 1].2 += least;
            }
        }
        let reaches = self.reaching(sink);
        let at = |vertex| self.vertices.get(&vertex).is_some_and(|&vertex: &usize| reaches[vertex]);
        let values = self.vertices.keys().filter_map(|vertex| match *vertex {
            Vertex::After(value) if at(*vertex) && !at(Vertex::Before(value)) => Some(value),
            _ => None,
        });
        let mut values: Vec<ValueId> = values.collect();
        values.sort_unstable();
        values
    }

    /// A shortest path with capacity left, as edges.
    fn path(&self, source: usize, sink: usize) -> Option<Vec<usize>> {
        let mut reached_by: Vec<Option<usize>> = vec![None; self.from.len()];
        let mut pending = VecDeque::from([source]);
        while let Some(vertex) = pending.pop_front() {
            for &edge in &self.from[vertex] {
                let (_, to, capacity) = self.edges[edge];
                if capacity > 0 && to != source && reached_by[to].is_none() {
                    reached_by[to] = Some(edge);
                    pending.push_back(to);
                }
            }
        }
        let mut path = Vec::new();
        let mut vertex = sink;
        while vertex != source {
            let edge = reached_by[vertex]?;
            path.push(edge);
            vertex = self.edges[edge].0;
        }
        Some(path)
    }

    /// Which vertices have a path with capacity left to one.
    fn reaching(&self, sink: usize) -> Vec<bool> {
        let mut reaches = vec![false; self.from.len()];
        reaches[sink] = true;
        let mut pending = vec![sink];
        while let Some(vertex) = pending.pop() {
            for &edge in &self.from[vertex] {
                let (_, other, _) = self.edges[edge];
                if self.edges[edge ^ 1].2 > 0 && !reaches[other] {
                    reaches[other] = true;
                    pending.push(other);
                }
            }
        }
        reaches
    }
}
