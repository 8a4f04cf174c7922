//! Matmuls of which only slices are used become matmuls of slices.
//!
//! A ring reduces a gradient chunk by chunk, and each chunk is added to what the device before has
//! sent. Sliced from the whole gradient, all chunks wait for its matmul, and are written to memory
//! and read again to be added. As matmuls of their own, one computes while the sum before it is on
//! its way, and compilers add that sum inside the next. Where slices overlap, or the whole is used
//! too, nothing changes: no element is computed twice.

use crate::graph::{Graph, Node, ValueId};
use crate::op::{Binary, Collective, Constant, DotDims, Manual, Op, Scan};
use fullshard_core::{DType, TensorType};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

/// Sinks slices into matmuls, in a graph and its regions.
pub(crate) fn sink_slices(graph: Graph) -> Graph {
    let mut sinking = Sinking::default();
    let graph = Rc::new(graph);
    let sunk = sinking.graph(&graph);
    drop((graph, sinking));
    Rc::unwrap_or_clone(sunk)
}

/// The graphs that were visited. Functions are shared and stay so.
#[derive(Default)]
struct Sinking {
    visited: HashMap<*const Graph, (Rc<Graph>, Rc<Graph>)>,
}

impl Sinking {
    fn graph(&mut self, graph: &Rc<Graph>) -> Rc<Graph> {
        if let Some((_, sunk)) = self.visited.get(&Rc::as_ptr(graph)) {
            return sunk.clone();
        }
        let regions: Vec<Option<Op>> = graph.nodes.iter().map(|it| self.regions(&it.op)).collect();
        let mut sunk = graph.clone();
        if regions.iter().any(Option::is_some) {
            let nodes = &mut Rc::make_mut(&mut sunk).nodes;
            for (node, op) in nodes.iter_mut().zip(regions) {
                node.op = op.unwrap_or_else(|| node.op.clone());
            }
        }
        let permutes =
            |node: &Node| matches!(node.op, Op::Collective(Collective::Permute { .. }, _));
        if sunk.nodes.iter().any(permutes) {
            sunk = Slices::of(&sunk).sink(&sunk).map_or(sunk, Rc::new);
        }
        self.visited.insert(Rc::as_ptr(graph), (graph.clone(), sunk.clone()));
        sunk
    }

    /// An op with slices sunk in its regions, if there were any.
    fn regions(&mut self, op: &Op) -> Option<Op> {
        let mut changed = false;
        let mut visit = |graph: &Rc<Graph>| {
            let sunk = self.graph(graph);
            changed |= !Rc::ptr_eq(&sunk, graph);
            sunk
        };
        let op = match op {
            Op::Manual(it) => {
                Op::Manual(Rc::new(Manual { body: visit(&it.body), ..Manual::clone(it) }))
            }
            Op::Scan(it) => Op::Scan(Rc::new(Scan {
                body: visit(&it.body),
                prepare: it.prepare.as_ref().map(&mut visit),
                ..Scan::clone(it)
            })),
            Op::Call { function } => Op::Call { function: visit(function) },
            Op::Cond { branches } => Op::Cond { branches: branches.iter().map(visit).collect() },
            Op::While { condition, body } => {
                Op::While { condition: condition.clone(), body: visit(body) }
            }
            _ => return None,
        };
        changed.then_some(op)
    }
}

/// Where a slice starts along a dim.
#[derive(Clone, Copy)]
enum Start {
    At(usize),
    /// A value of the graph.
    Value(ValueId),
}

/// What a slice of a value is.
enum Sliced {
    Zero,
    Value(ValueId),
}

/// The slices of one graph.
struct Slices {
    /// The node that makes each value, and how often it is used.
    producers: HashMap<ValueId, usize>,
    uses: HashMap<ValueId, usize>,
    /// The dynamic slices of each value.
    slices: BTreeMap<ValueId, Vec<usize>>,
}

impl Slices {
    fn of(graph: &Graph) -> Slices {
        let (mut producers, mut uses, mut slices) =
            (HashMap::new(), HashMap::new(), BTreeMap::<_, Vec<usize>>::new());
        for (index, node) in graph.nodes.iter().enumerate() {
            producers.extend(node.outputs.iter().map(|&output| (output, index)));
            node.inputs.iter().for_each(|&input| *uses.entry(input).or_default() += 1);
            if let Op::DynamicSlice { .. } = node.op {
                slices.entry(node.inputs[0]).or_default().push(index);
            }
        }
        graph.results.iter().for_each(|&result| *uses.entry(result).or_default() += 1);
        Slices { producers, uses, slices }
    }

    /// The graph with slices sunk, if there are some that can be.
    fn sink(&self, graph: &Graph) -> Option<Graph> {
        let mut sunk = graph.clone();
        let mut instead: HashMap<usize, Vec<Node>> = HashMap::new();
        for (&value, slices) in &self.slices {
            let elements = |index: &usize| graph.ty(graph.nodes[*index].outputs[0]).elements();
            let all: usize = slices.iter().map(elements).sum();
            if self.uses[&value] != slices.len() || all > graph.ty(value).elements() {
                continue;
            }
            let types = sunk.types.len();
            let made: Option<Vec<(usize, Vec<Node>)>> = slices
                .iter()
                .map(|&index| Some((index, self.instead_of(&graph.nodes[index], &mut sunk)?)))
                .collect();
            match made {
                Some(made) => instead.extend(made),
                None => sunk.types.truncate(types),
            }
        }
        if instead.is_empty() {
            return None;
        }
        let nodes = sunk.nodes.into_iter().enumerate();
        sunk.nodes = nodes
            .flat_map(|(index, node)| instead.remove(&index).unwrap_or_else(|| vec![node]))
            .collect();
        Some(sunk.pruned())
    }

    /// The nodes that make what a dynamic slice made.
    fn instead_of(&self, slice: &Node, graph: &mut Graph) -> Option<Vec<Node>> {
        let sizes = graph.ty(slice.outputs[0]).dims.clone();
        let rooms = graph.ty(slice.inputs[0]).dims.iter().zip(&sizes).map(|(all, size)| all - size);
        let starts = slice.inputs[1..].iter().zip(rooms);
        let starts: Vec<Start> =
            starts.map(|(&start, room)| self.start(graph, start, room)).collect();
        let mut emitter = Emitter { graph, nodes: Vec::new(), path: slice.path.clone() };
        let made = self.slice(&mut emitter, slice.inputs[0], &starts, &sizes)?;
        let Sliced::Value(made) = made else { return None };
        let mut nodes = emitter.nodes;
        nodes.iter_mut().find(|node| node.outputs == [made])?.outputs = slice.outputs.clone();
        Some(nodes)
    }

    /// Where a slice starts that has some room, which dynamic slices do not leave.
    fn start(&self, graph: &Graph, value: ValueId, room: usize) -> Start {
        let constant = self.producers.get(&value).map(|&index| &graph.nodes[index].op);
        match constant {
            Some(Op::Constant(constant)) if graph.ty(value).dtype == DType::I32 => {
                let (Constant::Splat(bytes) | Constant::Dense(bytes)) = &**constant;
                let number = bytes.as_slice().try_into().map(i32::from_le_bytes);
                number.map_or(Start::Value(value), |number| {
                    Start::At(room.min(number.max(0) as usize))
                })
            }
            _ => Start::Value(value),
        }
    }

    /// A slice of a value by way of the matmul that makes it, if it is one and nothing else uses it.
    fn slice(
        &self,
        to: &mut Emitter<'_>,
        value: ValueId,
        starts: &[Start],
        sizes: &[usize],
    ) -> Option<Sliced> {
        let node = to.graph.nodes[*self.producers.get(&value)?].clone();
        let dtype = to.graph.ty(value).dtype;
        let input = *node.inputs.first()?;
        let only_here = |input: ValueId| self.uses.get(&input) == Some(&1);
        if let Op::Dot(dims) = &node.op {
            return Some(Sliced::Value(to.dot(dims, &node.inputs, starts, sizes, dtype)));
        }
        if !only_here(input) {
            return None;
        }
        let one = |to: &mut Emitter<'_>, sliced: Sliced, op: Op, more: &[ValueId]| match sliced {
            Sliced::Zero => Sliced::Zero,
            Sliced::Value(sliced) => {
                let inputs = [&[sliced], more].concat();
                Sliced::Value(to.emit(op, inputs, TensorType::new(dtype, sizes)))
            }
        };
        match &node.op {
            Op::Convert => {
                let sliced = self.slice(to, input, starts, sizes)?;
                Some(one(to, sliced, Op::Convert, &[]))
            }
            Op::Reshape if to.graph.ty(input).dims == to.graph.ty(value).dims => {
                self.slice(to, input, starts, sizes)
            }
            Op::Transpose { permutation } => {
                let (mut from, mut of) = (starts.to_vec(), sizes.to_vec());
                for (i, &dim) in permutation.iter().enumerate() {
                    (from[dim], of[dim]) = (starts[i], sizes[i]);
                }
                let sliced = self.slice(to, input, &from, &of)?;
                Some(one(to, sliced, node.op.clone(), &[]))
            }
            Op::Binary(Binary::Divide | Binary::Multiply) => {
                let scalar = self.broadcast_scalar(to.graph, node.inputs[1])?;
                let sliced = self.slice(to, input, starts, sizes)?;
                let ty = TensorType::new(to.graph.ty(scalar).dtype, sizes);
                let scalar = to.emit(Op::Broadcast { dims: Vec::new() }, vec![scalar], ty);
                Some(one(to, sliced, node.op.clone(), &[scalar]))
            }
            Op::Binary(Binary::Add) if only_here(node.inputs[1]) => {
                let left = self.slice(to, input, starts, sizes)?;
                let right = self.slice(to, node.inputs[1], starts, sizes)?;
                Some(match (left, right) {
                    (Sliced::Zero, it) | (it, Sliced::Zero) => it,
                    (left, Sliced::Value(right)) => one(to, left, node.op.clone(), &[right]),
                })
            }
            Op::Pad { low, high, interior } => {
                if interior.iter().any(|&it| it > 0) || !self.is_zero(to.graph, node.inputs[1]) {
                    return None;
                }
                let inner = to.graph.ty(input).dims.clone();
                let mut from = starts.to_vec();
                for dim in (0..from.len()).filter(|&dim| low[dim] != 0 || high[dim] != 0) {
                    let Start::At(start) = starts[dim] else { return None };
                    let start = start as i64 - low[dim];
                    let (end, inner) = (start + sizes[dim] as i64, inner[dim] as i64);
                    if end <= 0 || start >= inner {
                        return Some(Sliced::Zero);
                    }
                    if start < 0 || end > inner {
                        return None;
                    }
                    from[dim] = Start::At(start as usize);
                }
                self.slice(to, input, &from, sizes)
            }
            _ => None,
        }
    }

    /// The scalar of which a value is a broadcast.
    fn broadcast_scalar(&self, graph: &Graph, value: ValueId) -> Option<ValueId> {
        let node = &graph.nodes[*self.producers.get(&value)?];
        let scalar = matches!(&node.op, Op::Broadcast { dims } if dims.is_empty());
        scalar.then(|| node.inputs[0])
    }

    fn is_zero(&self, graph: &Graph, value: ValueId) -> bool {
        let op = self.producers.get(&value).map(|&index| &graph.nodes[index].op);
        matches!(op, Some(Op::Constant(constant)) if {
            let (Constant::Splat(bytes) | Constant::Dense(bytes)) = &**constant;
            bytes.iter().all(|&byte| byte == 0)
        })
    }
}

/// Makes nodes of a graph.
struct Emitter<'a> {
    graph: &'a mut Graph,
    nodes: Vec<Node>,
    path: Rc<str>,
}

impl Emitter<'_> {
    fn emit(&mut self, op: Op, inputs: Vec<ValueId>, ty: TensorType) -> ValueId {
        let value = self.graph.add_value(Rc::new(ty));
        let path = self.path.clone();
        self.nodes.push(Node { op, inputs, outputs: vec![value], path });
        value
    }

    /// A slice of a matmul: the matmul of slices of its operands.
    fn dot(
        &mut self,
        dims: &DotDims,
        operands: &[ValueId],
        starts: &[Start],
        sizes: &[usize],
        dtype: DType,
    ) -> ValueId {
        let mut free = dims.lhs_batch.len()..;
        let sides = [(&dims.lhs_batch, &dims.lhs_contract), (&dims.rhs_batch, &dims.rhs_contract)];
        let mut sliced = Vec::new();
        for (&operand, (batch, contract)) in operands.iter().zip(sides) {
            let mut of = self.graph.ty(operand).dims.clone();
            let mut from = vec![Start::At(0); of.len()];
            for dim in 0..of.len() {
                // The result has batch dims first, and then the free ones of each operand.
                let place = match batch.iter().position(|&it| it == dim) {
                    Some(place) => place,
                    None if contract.contains(&dim) => continue,
                    None => free.next().unwrap_or_default(),
                };
                (from[dim], of[dim]) = (starts[place], sizes[place]);
            }
            sliced.push(self.slice_of(operand, &from, &of));
        }
        self.emit(Op::Dot(dims.clone()), sliced, TensorType::new(dtype, sizes))
    }

    fn slice_of(&mut self, value: ValueId, starts: &[Start], sizes: &[usize]) -> ValueId {
        let of = self.graph.ty(value).clone();
        if of.dims == sizes {
            return value;
        }
        let ty = TensorType::new(of.dtype, sizes);
        let known: Option<Vec<usize>> = starts
            .iter()
            .map(|start| match start {
                Start::At(start) => Some(*start),
                Start::Value(_) => None,
            })
            .collect();
        if let Some(start) = known {
            let limit = start.iter().zip(sizes).map(|(start, size)| start + size).collect();
            let stride = vec![1; start.len()];
            return self.emit(Op::Slice { start, limit, stride }, vec![value], ty);
        }
        let mut inputs = vec![value];
        for start in starts {
            inputs.push(match *start {
                Start::Value(value) => value,
                Start::At(start) => {
                    let bytes = (start as i32).to_le_bytes().to_vec();
                    let constant = Op::Constant(Rc::new(Constant::Splat(bytes)));
                    self.emit(constant, Vec::new(), TensorType::new(DType::I32, &[]))
                }
            });
        }
        self.emit(Op::DynamicSlice { sizes: sizes.to_vec() }, inputs, ty)
    }
}
