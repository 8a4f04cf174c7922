//! Ops without regions, and those whose region is a single op.

use super::constants::{dense, extreme, number};
use super::types::{mlir, scalar};
use super::{Context, Writer, array, list};
use crate::control::Memory;
use crate::op::{Comparison, CustomCall, DotDims, GatherDims, Op, Reduction, Unary};
use crate::ops::Attribute;
use fullshard_core::{DType, NumberClass, TensorType};
use std::borrow::Borrow;
use std::rc::Rc;

impl Reduction {
    /// The op that reduces two values to one.
    pub(super) fn op(self) -> &'static str {
        match self {
            Reduction::Sum => "stablehlo.add",
            Reduction::Max => "stablehlo.maximum",
            Reduction::Min => "stablehlo.minimum",
            Reduction::Product => "stablehlo.multiply",
        }
    }

    /// The identity element.
    fn start(self, dtype: DType) -> String {
        match self {
            Reduction::Sum => number(dtype, 0.0),
            Reduction::Product => number(dtype, 1.0),
            Reduction::Max => extreme(dtype, false),
            Reduction::Min => extreme(dtype, true),
        }
    }
}

impl Comparison {
    fn name(self) -> &'static str {
        match self {
            Comparison::Equal => "EQ",
            Comparison::NotEqual => "NE",
            Comparison::Less => "LT",
            Comparison::LessEqual => "LE",
            Comparison::Greater => "GT",
            Comparison::GreaterEqual => "GE",
        }
    }
}

/// How values of a type are compared.
pub(super) fn comparison_type(dtype: DType) -> &'static str {
    match dtype.class() {
        NumberClass::Float => "FLOAT",
        NumberClass::Signed => "SIGNED",
        NumberClass::Unsigned | NumberClass::Bool => "UNSIGNED",
    }
}

impl Writer {
    /// Writes an op that is neither a region nor a collective's index.
    pub(super) fn plain(&mut self, op: &Op, context: &Context<'_>) -> Vec<Rc<str>> {
        let operands = context.operands();
        let ty = context.output_types.first().map(|ty| mlir(ty)).unwrap_or_default();
        let from_to = context.function_type();
        let first = context.inputs.first().cloned().unwrap_or_else(|| Rc::from(""));
        let (text, types) = match op {
            Op::Constant(value) => {
                let text = dense(value, &context.output_types[0]);
                let (value, ty) = text.rsplit_once(" : ").unwrap_or((&text, ""));
                (format!("stablehlo.constant {value}"), ty.to_owned())
            }
            Op::Iota { dim } => (format!("stablehlo.iota dim = {dim}"), ty),
            Op::Unary(Unary::Erf) => (format!("chlo.erf {operands}"), format!("{ty} -> {ty}")),
            Op::Unary(Unary::IsFinite) => (format!("stablehlo.is_finite {operands}"), from_to),
            Op::Unary(Unary::Logistic) if self.use_rsqrt_logistic(context) => {
                return vec![self.logistic(context)];
            }
            Op::Unary(unary) => (format!("stablehlo.{} {operands}", unary.name()), ty),
            Op::Binary(binary) => (format!("stablehlo.{} {operands}", binary.name()), ty),
            Op::Compare(comparison) => {
                let how = comparison_type(context.input_types[0].dtype);
                (format!("stablehlo.compare {}, {operands}, {how}", comparison.name()), from_to)
            }
            Op::Select => {
                let types = format!("{}, {ty}", mlir(&context.input_types[0]));
                (format!("stablehlo.select {operands}"), types)
            }
            Op::Convert => (format!("stablehlo.convert {operands}"), from_to),
            Op::Bitcast => (format!("stablehlo.bitcast_convert {operands}"), from_to),
            Op::Broadcast { dims } => {
                (format!("stablehlo.broadcast_in_dim {operands}, dims = {}", list(dims)), from_to)
            }
            Op::Reshape => (format!("stablehlo.reshape {operands}"), from_to),
            Op::Transpose { permutation } => {
                (format!("stablehlo.transpose {operands}, dims = {}", list(permutation)), from_to)
            }
            Op::Reduce { kind, dims } => return vec![self.reduce(*kind, dims, context)],
            Op::Dot(dims) => (format!("stablehlo.dot_general {operands}, {}", dot(dims)), from_to),
            Op::Slice { start, limit, stride } => {
                let parts: Vec<String> = (0..start.len())
                    .map(|i| format!("{}:{}:{}", start[i], limit[i], stride[i]))
                    .collect();
                (format!("stablehlo.slice {operands} [{}]", parts.join(", ")), from_to)
            }
            Op::DynamicSlice { sizes } => {
                (format!("stablehlo.dynamic_slice {operands}, sizes = {}", list(sizes)), from_to)
            }
            Op::DynamicUpdateSlice => {
                (format!("stablehlo.dynamic_update_slice {operands}"), from_to)
            }
            Op::Concatenate { dim } => {
                (format!("stablehlo.concatenate {operands}, dim = {dim}"), from_to)
            }
            Op::Reverse { dims } => {
                (format!("stablehlo.reverse {operands}, dims = {}", list(dims)), ty)
            }
            Op::Pad { low, high, interior } => {
                if let Some(padded) = self.pad_of((low, high, interior), context) {
                    return vec![padded];
                }
                let (low, high, interior) = (list(low), list(high), list(interior));
                let text = format!(
                    "stablehlo.pad {operands}, low = {low}, high = {high}, interior = {interior}"
                );
                (text, from_to)
            }
            Op::Gather(dims) => {
                (format!("\"stablehlo.gather\"({operands}) {}", gather(dims)), from_to)
            }
            Op::ScatterAdd(dims) => {
                let region = self.reducer(Reduction::Sum, context.output_types[0].dtype);
                (format!("\"stablehlo.scatter\"({operands}) {} {region}", scatter(dims)), from_to)
            }
            Op::Sort { dim, descending } => (self.sort(*dim, *descending, context), from_to),
            Op::Convolution(dims) => (super::windows::convolution(dims, &operands), from_to),
            Op::ReduceWindow { kind, window } => {
                return vec![self.reduce_window(*kind, window, context)];
            }
            Op::SelectAndScatter { window } => {
                return vec![self.select_and_scatter(window, context)];
            }
            Op::Barrier => {
                let types = super::types_of(&context.output_types).join(", ");
                (format!("stablehlo.optimization_barrier {operands}"), types)
            }
            Op::CustomCall(call) => (custom_call(call, context), from_to),
            Op::Move(memory) => (move_to(*memory, &operands), from_to),
            Op::Constrain(constraint) => {
                let sharding = super::regions::constraint(constraint);
                (format!("sdy.sharding_constraint {first} <@mesh, {sharding}>"), ty)
            }
            Op::Collective(collective, axes) => {
                (self.collective(collective, axes, context), from_to)
            }
            // Regions and names, handled by `Writer::node`.
            _ => return context.inputs.to_vec(),
        };
        self.op(&text, &types, context.output_types.len(), context.path)
    }

    /// Writes a splat constant.
    pub(super) fn number(&mut self, ty: &TensorType, value: &str, path: &Rc<str>) -> Rc<str> {
        self.op_one(&format!("stablehlo.constant dense<{value}>"), &mlir(ty), path)
    }

    /// The initial value of a reduction.
    pub(super) fn start(&mut self, kind: Reduction, dtype: DType, path: &Rc<str>) -> Rc<str> {
        self.number(&TensorType::scalar(dtype), &kind.start(dtype), path)
    }

    fn use_rsqrt_logistic(&self, context: &Context<'_>) -> bool {
        self.dialect.sigmoid_via_rsqrt && context.output_types[0].dtype == DType::F32
    }

    /// `1 / (1 + exp(-x))` as the square of an `rsqrt`.
    fn logistic(&mut self, context: &Context<'_>) -> Rc<str> {
        let (x, ty) = (&context.inputs[0], mlir(&context.output_types[0]));
        let mut step = |text: String| self.op_one(&text, &ty, context.path);
        let one = step("stablehlo.constant dense<1.0>".into());
        let minus = step(format!("stablehlo.negate {x}"));
        let exponential = step(format!("stablehlo.exponential {minus}"));
        let sum = step(format!("stablehlo.add {exponential}, {one}"));
        let root = step(format!("stablehlo.rsqrt {sum}"));
        step(format!("stablehlo.multiply {root}, {root}"))
    }

    fn reduce(&mut self, kind: Reduction, dims: &[usize], context: &Context<'_>) -> Rc<str> {
        let dtype = context.output_types[0].dtype;
        let start = self.start(kind, dtype, context.path);
        let (operand, op, dims) = (&context.inputs[0], kind.op(), list(dims));
        let text = format!(
            "stablehlo.reduce({operand} init: {start}) applies {op} across dimensions = {dims}"
        );
        let types = context.reduction_type(dtype);
        self.op_one(&text, &types, context.path)
    }

    /// A region that reduces two values to one.
    pub(super) fn reducer(&mut self, kind: Reduction, dtype: DType) -> String {
        let [a, b, c] = [self.fresh(), self.fresh(), self.fresh()];
        let scalar = scalar(dtype);
        let margin = self.margin();
        format!(
            "({{\n{margin}  ^bb0({a}: {scalar}, {b}: {scalar}):\n{margin}    {c} = {} {a}, {b} : \
             {scalar}\n{margin}    stablehlo.return {c} : {scalar}\n{margin}}})",
            kind.op()
        )
    }

    fn sort(&mut self, dim: usize, descending: bool, context: &Context<'_>) -> String {
        let parameters: Vec<(Rc<str>, Rc<str>, String)> = context
            .input_types
            .iter()
            .map(|ty| (self.fresh(), self.fresh(), scalar(ty.dtype)))
            .collect();
        let declared: Vec<String> =
            parameters.iter().map(|(a, b, ty)| format!("{a}: {ty}, {b}: {ty}")).collect();
        let (a, b, key) = &parameters[0];
        let dtype = context.input_types[0].dtype;
        let result = self.fresh();
        let order = if descending { "GT" } else { "LT" };
        // The only order that includes NaN.
        let how = if dtype.is_float() { "TOTALORDER" } else { comparison_type(dtype) };
        let margin = self.margin();
        format!(
            "\"stablehlo.sort\"({}) <{{dimension = {dim} : i64, is_stable = true}}> ({{\n{margin}  \
             ^bb0({}):\n{margin}    {result} = stablehlo.compare {order}, {a}, {b}, {how} : ({key}, \
             {key}) -> tensor<i1>\n{margin}    stablehlo.return {result} : tensor<i1>\n{margin}}})",
            context.operands(),
            declared.join(", ")
        )
    }
}

fn dot(dims: &DotDims) -> String {
    let batch = if dims.lhs_batch.is_empty() {
        String::new()
    } else {
        format!("batching_dims = {} x {}, ", list(&dims.lhs_batch), list(&dims.rhs_batch))
    };
    let (lhs, rhs) = (list(&dims.lhs_contract), list(&dims.rhs_contract));
    let precision = if dims.precise { ", precision = [HIGHEST, HIGHEST]" } else { "" };
    format!("{batch}contracting_dims = {lhs} x {rhs}{precision}")
}

fn gather(dims: &GatherDims) -> String {
    format!(
        "<{{dimension_numbers = #stablehlo.gather<offset_dims = {}, collapsed_slice_dims = {}{}, \
         start_index_map = {}, index_vector_dim = {}>, indices_are_sorted = false, slice_sizes = {}}}>",
        list(&dims.offset),
        list(&dims.collapsed),
        batching(dims, "operand_batching_dims", "start_indices_batching_dims"),
        list(&dims.start_map),
        dims.index_vector,
        array(&dims.sizes)
    )
}

fn scatter(dims: &GatherDims) -> String {
    format!(
        "<{{indices_are_sorted = false, scatter_dimension_numbers = \
         #stablehlo.scatter<update_window_dims = {}, inserted_window_dims = {}{}, \
         scatter_dims_to_operand_dims = {}, index_vector_dim = {}>, unique_indices = false}}>",
        list(&dims.offset),
        list(&dims.collapsed),
        batching(dims, "input_batching_dims", "scatter_indices_batching_dims"),
        list(&dims.start_map),
        dims.index_vector,
    )
}

fn batching(dims: &GatherDims, operand: &str, index: &str) -> String {
    if dims.operand_batch.is_empty() {
        return String::new();
    }
    format!(", {operand} = {}, {index} = {}", list(&dims.operand_batch), list(&dims.index_batch))
}

fn custom_call(call: &CustomCall, context: &Context) -> String {
    let mut attributes = vec![format!("api_version = {} : i32", call.api_version)];
    match &call.backend_config {
        Some(config) => attributes.push(format!("backend_config = \"{}\"", escape(config))),
        None if call.api_version == 4 => {
            let typed: Vec<String> = call
                .attributes
                .iter()
                .map(|(name, value)| format!("{name} = {}", attribute(value)))
                .collect();
            attributes.push(format!("backend_config = {{{}}}", typed.join(", ")));
        }
        None => {}
    }
    if call.has_side_effect {
        attributes.push("has_side_effect = true".into());
    }
    attributes.push(match call.operand_layouts.is_empty() && call.result_layouts.is_empty() {
        true => row_major(&context.input_types, &context.output_types),
        false => layouts(&call.operand_layouts, &call.result_layouts),
    });
    format!(
        "stablehlo.custom_call @{}({}) {{{}}}",
        quoted_symbol(&call.target),
        context.operands(),
        attributes.join(", ")
    )
}

/// Row-major layouts of a call's operands and results. Without layouts the compiler chooses those
/// that other ops prefer, such as a reduce-scatter along the last dim, and no call knows them.
pub(super) fn row_major<T: Borrow<TensorType>>(operands: &[T], results: &[T]) -> String {
    let of = |types: &[T]| -> Vec<Vec<usize>> {
        types.iter().map(|ty| (0..ty.borrow().dims.len()).rev().collect()).collect()
    };
    layouts(&of(operands), &of(results))
}

fn layouts(operands: &[Vec<usize>], results: &[Vec<usize>]) -> String {
    let of = |layouts: &[Vec<usize>]| {
        let layouts: Vec<String> = layouts.iter().map(|layout| index_tensor(layout)).collect();
        list(&layouts)
    };
    format!("operand_layouts = {}, result_layouts = {}", of(operands), of(results))
}

/// The annotation by which compilers place a value in a memory.
fn move_to(memory: Memory, operands: &str) -> String {
    let space = match memory {
        Memory::Device => "device",
        Memory::Host => "pinned_host",
    };
    format!(
        "stablehlo.custom_call @annotate_device_placement({operands}) {{backend_config = \"\", \
         has_side_effect = true, mhlo.frontend_attributes = {{_xla_buffer_placement = \
         \"{space}\"}}}}"
    )
}

pub(super) fn index_tensor(values: &[usize]) -> String {
    let shown = if values.len() == 1 { values[0].to_string() } else { list(values) };
    format!("dense<{shown}> : tensor<{}xindex>", values.len())
}

fn attribute(value: &Attribute) -> String {
    match value {
        Attribute::Bool(value) => value.to_string(),
        Attribute::Int32(value) => format!("{value} : i32"),
        Attribute::Int(value) => format!("{value} : i64"),
        Attribute::Float(value) => format!("{} : f32", number(DType::F32, f64::from(*value))),
        Attribute::Text(value) => format!("\"{}\"", escape(value)),
        Attribute::Ints(values) => {
            format!("{} : tensor<{}xi64>", format_args!("dense<{}>", list(values)), values.len())
        }
    }
}

pub(super) fn escape(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '"' => "\\22".into(),
            '\\' => "\\5C".into(),
            c if c.is_control() => format!("\\{:02X}", u32::from(c).min(0x7F)),
            c => c.to_string(),
        })
        .collect()
}

/// A symbol that may contain any character.
fn quoted_symbol(name: &str) -> String {
    let plain = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '.'));
    if plain { name.to_owned() } else { format!("\"{}\"", escape(name)) }
}
