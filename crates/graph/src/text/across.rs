//! Collectives over axes that are across processes, of which the compiler does not know: custom
//! calls between processes, and collectives of the compiler over the devices of each.
//!
//! The text is the same in all processes. A call has a channel of its own, so that calls that do
//! not depend on each other need no common order; so functions are written where they are called.

use super::types::mlir;
use super::{Context, Writer, array};
use crate::op::{Axes, Collective, Reduction};
use fullshard_core::{DType, TensorType};
use std::rc::Rc;

/// The custom call that returns the index of the process.
pub const PROCESS_INDEX: &str = "fullshard.process_index";

/// The prefix of the targets of collectives between processes.
pub const MPI_PREFIX: &str = "fullshard.mpi_";

/// A collective between processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessCall {
    /// Its number in the program.
    pub channel: usize,
    /// The processes of each group; none for a permute, which is between all.
    pub groups: Vec<Vec<usize>>,
}

/// A named value.
struct Value {
    name: Rc<str>,
    ty: TensorType,
}

impl Axes {
    /// Whether some of them are across processes.
    pub(super) fn are_across(&self) -> bool {
        self.axes.iter().any(|&axis| self.mesh.is_across(axis))
    }

    /// Those of one kind, in the mesh of that kind.
    pub(super) fn part(&self, across: bool) -> Axes {
        let mesh = if across { self.mesh.of_processes() } else { self.mesh.in_process() };
        Axes { mesh, axes: self.mesh.positions_in_part(&self.axes, across) }
    }

    /// Runs of consecutive axes of one kind, major to minor, without those of one device.
    fn runs(&self) -> Vec<Axes> {
        let wide = |axis: &&usize| self.mesh.axis_size(**axis) > 1;
        let axes: Vec<usize> = self.axes.iter().filter(wide).copied().collect();
        let same = |a: &usize, b: &usize| self.mesh.is_across(*a) == self.mesh.is_across(*b);
        let run = |run: &[usize]| Axes { mesh: self.mesh.clone(), axes: run.to_vec() };
        axes.chunk_by(same).map(run).collect()
    }
}

impl Writer {
    /// Writes a collective over axes of which some are across processes.
    pub(super) fn collective_across(
        &mut self,
        collective: &Collective,
        axes: &Axes,
        context: &Context<'_>,
    ) -> Rc<str> {
        let path = context.path;
        let value =
            Value { name: context.inputs[0].clone(), ty: (*context.input_types[0]).clone() };
        let runs = axes.runs();
        let result = match collective {
            Collective::AllReduce { kind } => {
                // Inside a process first, where it is cheap.
                let (across, local): (Vec<_>, Vec<_>) = runs.iter().partition(|it| it.are_across());
                let runs = local.into_iter().chain(across);
                runs.fold(value, |value, run| self.reduced(value, run, *kind, path))
            }
            Collective::AllGather { dim } => {
                runs.iter().rev().fold(value, |value, run| self.gathered(value, run, *dim, path))
            }
            Collective::ReduceScatter { dim } => {
                runs.iter().fold(value, |value, run| self.scattered(value, run, *dim, path))
            }
            Collective::AllToAll { split, concat } => {
                self.swapped(value, &runs, *split, *concat, path)
            }
            Collective::Permute { pairs } => {
                let groups = axes.groups();
                let of_group = |group: &Vec<usize>| {
                    let pairs = pairs.iter().flat_map(|&(from, to)| [group[from], group[to]]);
                    pairs.collect::<Vec<_>>()
                };
                let pairs: Vec<usize> = groups.iter().flat_map(of_group).collect();
                let devices = axes.mesh.in_process().devices();
                let attributes = format!("pairs = {}, devices = {devices} : i64", array(&pairs));
                let ty = value.ty.clone();
                self.between_processes("permute", Vec::new(), &attributes, value, ty, path)
            }
        };
        result.name
    }

    /// The index of this process.
    pub(super) fn process_index(&mut self, path: &Rc<str>) -> Rc<str> {
        let text = format!(
            "stablehlo.custom_call @{PROCESS_INDEX}() {{api_version = 4 : i32, backend_config = \
             {{}}}}"
        );
        self.op_one(&text, "() -> tensor<i32>", path)
    }

    fn reduced(&mut self, value: Value, run: &Axes, kind: Reduction, path: &Rc<str>) -> Value {
        let ty = value.ty.clone();
        if !run.are_across() {
            return self.in_process(&Collective::AllReduce { kind }, run, value, ty, path);
        }
        let reduction = match kind {
            Reduction::Sum => 0,
            Reduction::Max => 1,
            Reduction::Min => 2,
            Reduction::Product => 3,
        };
        let attributes = format!("reduction = {reduction} : i64");
        self.between_processes("all_reduce", groups(run), &attributes, value, ty, path)
    }

    /// The values of a run of axes, concatenated along a dimension.
    fn gathered(&mut self, value: Value, run: &Axes, dim: usize, path: &Rc<str>) -> Value {
        let (size, mut ty) = (run.size(), value.ty.clone());
        ty.dims[dim] *= size;
        if !run.are_across() {
            return self.in_process(&Collective::AllGather { dim }, run, value, ty, path);
        }
        let blocks = TensorType::new(ty.dtype, &[&[size], &value.ty.dims[..]].concat());
        let value = self.between_processes("all_gather", groups(run), "", value, blocks, path);
        let value = self.moved_from_front(value, dim, path);
        self.reshaped(value, &ty.dims, path)
    }

    /// This process's or device's part, along a dimension, of the sum over a run of axes.
    fn scattered(&mut self, value: Value, run: &Axes, dim: usize, path: &Rc<str>) -> Value {
        let (size, mut ty) = (run.size(), value.ty.clone());
        ty.dims[dim] /= size;
        if !run.are_across() {
            return self.in_process(&Collective::ReduceScatter { dim }, run, value, ty, path);
        }
        let mut blocks = ty.dims.clone();
        blocks.insert(dim, size);
        let value = self.reshaped(value, &blocks, path);
        let value = self.moved_to_front(value, dim, path);
        self.between_processes("reduce_scatter", groups(run), "", value, ty, path)
    }

    /// An all-to-all, one run of axes after another: each swaps blocks along a dimension of its
    /// own, and those dimensions move from the split to the concatenated one.
    fn swapped(
        &mut self,
        value: Value,
        runs: &[Axes],
        split: usize,
        concat: usize,
        path: &Rc<str>,
    ) -> Value {
        let sizes: Vec<usize> = runs.iter().map(Axes::size).collect();
        let count: usize = sizes.iter().product();
        let mut dims = value.ty.dims.clone();
        dims[split] /= count;
        let mut result = dims.clone();
        result[concat] *= count;
        let blocks = [&dims[..split], &sizes, &dims[split..]].concat();
        let mut value = self.reshaped(value, &blocks, path);
        for (i, run) in runs.iter().enumerate() {
            let dim = split + i;
            let ty = value.ty.clone();
            value = match run.are_across() {
                true => {
                    let front = self.moved_to_front(value, dim, path);
                    let ty = front.ty.clone();
                    let name = "all_to_all";
                    let front = self.between_processes(name, groups(run), "", front, ty, path);
                    self.moved_from_front(front, dim, path)
                }
                false => {
                    let swap = Collective::AllToAll { split: dim, concat: dim };
                    self.in_process(&swap, run, value, ty, path)
                }
            };
        }
        let moved = split..split + runs.len();
        let others: Vec<usize> = (0..blocks.len()).filter(|dim| !moved.contains(dim)).collect();
        let order: Vec<usize> = others[..concat]
            .iter()
            .copied()
            .chain(moved)
            .chain(others[concat..].to_vec())
            .collect();
        let value = self.transposed(value, &order, path);
        self.reshaped(value, &result, path)
    }

    /// A collective of the compiler, over the devices of each process.
    fn in_process(
        &mut self,
        collective: &Collective,
        run: &Axes,
        value: Value,
        ty: TensorType,
        path: &Rc<str>,
    ) -> Value {
        let context = Context {
            inputs: &[value.name],
            input_types: vec![Rc::new(value.ty)],
            output_types: vec![Rc::new(ty.clone())],
            path,
        };
        let text = self.collective(collective, run, &context);
        Value { name: self.op_one(&text, &context.function_type(), path), ty }
    }

    /// A custom call between processes, on a new channel.
    fn between_processes(
        &mut self,
        name: &str,
        groups: Vec<Vec<usize>>,
        attributes: &str,
        value: Value,
        ty: TensorType,
        path: &Rc<str>,
    ) -> Value {
        let channel = self.calls.len();
        let mut all_attributes = vec![format!("channel = {channel} : i64")];
        if let Some(group) = groups.first() {
            let size = group.len();
            let all = array(&groups.concat());
            all_attributes.push(format!("group = {all}, group_size = {size} : i64"));
        }
        if !attributes.is_empty() {
            all_attributes.push(attributes.to_owned());
        }
        let attributes = all_attributes.join(", ");
        self.calls.push(ProcessCall { channel, groups });
        let text = format!(
            "stablehlo.custom_call @{MPI_PREFIX}{name}({}) {{api_version = 4 : i32, backend_config \
             = {{{attributes}}}, operand_layouts = [{}], result_layouts \
             = [{}]}}",
            value.name,
            row_major(&value.ty),
            row_major(&ty),
        );
        let types = format!("({}) -> {}", mlir(&value.ty), mlir(&ty));
        Value { name: self.op_one(&text, &types, path), ty }
    }

    /// Moves a dimension to the front.
    fn moved_to_front(&mut self, value: Value, dim: usize, path: &Rc<str>) -> Value {
        let others = (0..value.ty.rank()).filter(|&other| other != dim);
        let order: Vec<usize> = [dim].into_iter().chain(others).collect();
        self.transposed(value, &order, path)
    }

    /// Moves the first dimension to `dim`.
    fn moved_from_front(&mut self, value: Value, dim: usize, path: &Rc<str>) -> Value {
        let order: Vec<usize> = (1..=dim).chain([0]).chain(dim + 1..value.ty.rank()).collect();
        self.transposed(value, &order, path)
    }

    /// Transposes; a reshape if only dimensions of size 1 change places.
    fn transposed(&mut self, value: Value, order: &[usize], path: &Rc<str>) -> Value {
        let dims: Vec<usize> = order.iter().map(|&dim| value.ty.dims[dim]).collect();
        let mut wide = order.iter().filter(|&&dim| value.ty.dims[dim] > 1);
        if wide.clone().is_sorted() || wide.next().is_none() {
            return self.reshaped(value, &dims, path);
        }
        let ty = TensorType::new(value.ty.dtype, &dims);
        let text = format!("stablehlo.transpose {}, dims = {}", value.name, super::list(order));
        let types = format!("({}) -> {}", mlir(&value.ty), mlir(&ty));
        Value { name: self.op_one(&text, &types, path), ty }
    }

    fn reshaped(&mut self, value: Value, dims: &[usize], path: &Rc<str>) -> Value {
        if value.ty.dims == dims {
            return value;
        }
        let ty = TensorType::new(value.ty.dtype, dims);
        let types = format!("({}) -> {}", mlir(&value.ty), mlir(&ty));
        Value { name: self.op_one(&format!("stablehlo.reshape {}", value.name), &types, path), ty }
    }

    /// The position along an axis of a device, or process, given its number in a mesh of sizes.
    pub(super) fn position(
        &mut self,
        number: &Rc<str>,
        sizes: &[usize],
        axis: usize,
        path: &Rc<str>,
    ) -> Rc<str> {
        let ty = TensorType::scalar(DType::I32);
        let scalar = mlir(&ty);
        let stride: usize = sizes[axis + 1..].iter().product();
        let stride = self.number(&ty, &stride.to_string(), path);
        let size = self.number(&ty, &sizes[axis].to_string(), path);
        let text = format!("stablehlo.divide {number}, {stride}");
        let position = self.op_one(&text, &scalar, path);
        self.op_one(&format!("stablehlo.remainder {position}, {size}"), &scalar, path)
    }
}

/// The groups of processes along a run of axes.
fn groups(run: &Axes) -> Vec<Vec<usize>> {
    run.part(true).groups()
}

fn row_major(ty: &TensorType) -> String {
    let dims: Vec<usize> = (0..ty.rank()).rev().collect();
    super::plain::index_tensor(&dims)
}
