//! Programs as StableHLO text: deterministic, readable, and accepted by every plugin.

mod across;
mod collectives;
mod constants;
mod matmul;
mod pad;
mod plain;
mod regions;
mod types;
mod view;
mod windows;

pub use across::{MPI_PREFIX, PROCESS_INDEX, ProcessCall};
pub(crate) use constants::number;
pub use matmul::MATMUL;
pub use pad::PAD;

use crate::graph::{Graph, Node, ValueId};
use crate::op::Op;
use crate::program::{Argument, Dialect, Donation, Interface, Program};
use fullshard_core::{DType, Mesh, Sharding, TensorType};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::rc::Rc;
use types::{array, list, mlir, types_of};

/// The program as text, and its collectives between processes. On a mesh with axes across processes
/// it is the program of one of them.
pub(crate) fn write(program: &Program) -> (String, Vec<ProcessCall>) {
    let Interface { arguments, results, mesh } = program.interface();
    let mesh = mesh.as_ref();
    let mut writer = Writer::new(program.dialect, program.mesh.clone());
    let types = results.iter().map(|(ty, _)| mlir(ty)).collect();
    let main = writer.function(&program.graph, types, |writer| {
        let arguments = arguments.iter().enumerate();
        let arguments: Vec<String> =
            arguments.map(|(i, argument)| writer.argument(i, argument, mesh)).collect();
        let results: Vec<String> =
            results.iter().map(|(ty, sharding)| result(ty, sharding.as_ref(), mesh)).collect();
        format!("public @main({}) -> ({})", arguments.join(", "), results.join(", "))
    });
    // Writing a function may add the functions it calls.
    let mut functions = Vec::new();
    let mut next = 0;
    while let Some(function) = writer.functions.get(next).cloned() {
        writer.manual_axes = function.manual_axes;
        functions.push(writer.private_function(&function.name, &function.graph));
        next += 1;
    }
    let devices = mesh.map_or(1, Mesh::devices);
    let mut text = format!(
        "module @{} attributes {{mhlo.num_partitions = {devices} : i32, mhlo.num_replicas = 1 : \
         i32}} {{\n",
        symbol(&program.graph.name)
    );
    if let Some(mesh) = mesh {
        let axes: Vec<String> =
            mesh.axes().map(|(name, size)| format!("\"{name}\"={size}")).collect();
        let _ = writeln!(text, "  sdy.mesh @mesh = <[{}]>", axes.join(", "));
    }
    text += &main;
    text.extend(functions);
    text += "}\n";
    for (i, path) in writer.paths.iter().enumerate() {
        let _ = writeln!(text, "#loc{i} = loc(\"{}\")", plain::escape(path));
    }
    (text, writer.calls)
}

fn result(ty: &TensorType, sharding: Option<&Sharding>, mesh: Option<&Mesh>) -> String {
    match sharding_attribute(ty, sharding, mesh) {
        Some(attribute) => format!("{} {{{attribute}}}", mlir(ty)),
        None => mlir(ty),
    }
}

/// Tensors without a sharding on a mesh are replicated: left open, a sharding could propagate.
fn sharding_attribute(
    ty: &TensorType,
    sharding: Option<&Sharding>,
    mesh: Option<&Mesh>,
) -> Option<String> {
    let replicated = mesh.map(|mesh| mesh.replicated(ty.rank()));
    let sharding = sharding.or(replicated.as_ref())?;
    Some(format!("sdy.sharding = #sdy.sharding<@mesh, {sharding}>"))
}

/// A name as an MLIR symbol: letters, digits and underscores.
fn symbol(name: &str) -> String {
    let legal = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let name: String = name.chars().map(legal).collect();
    if name.starts_with(|c: char| c.is_ascii_alphabetic()) { name } else { format!("_{name}") }
}

/// The names of a graph's values in the text.
type Names = Vec<Option<Rc<str>>>;

struct Writer {
    dialect: Dialect,
    mesh: Option<Mesh>,
    body: String,
    indent: usize,
    next_value: usize,
    paths: Vec<Rc<str>>,
    path_numbers: HashMap<Rc<str>, usize>,
    /// Functions to write.
    functions: Vec<Function>,
    /// The axes that are manual here.
    manual_axes: Vec<usize>,
    /// The custom calls between processes so far; their positions are their channels.
    calls: Vec<ProcessCall>,
}

/// A function to write: once for each set of manual axes at its calls.
#[derive(Clone)]
struct Function {
    name: String,
    graph: Rc<Graph>,
    manual_axes: Vec<usize>,
}

impl Writer {
    fn new(dialect: Dialect, mesh: Option<Mesh>) -> Writer {
        Writer {
            dialect,
            mesh,
            body: String::new(),
            indent: 2,
            next_value: 0,
            paths: Vec::new(),
            path_numbers: HashMap::new(),
            functions: Vec::new(),
            manual_axes: Vec::new(),
            calls: Vec::new(),
        }
    }

    fn argument(&self, index: usize, argument: &Argument, mesh: Option<&Mesh>) -> String {
        let mut attributes = Vec::new();
        attributes.extend(sharding_attribute(&argument.ty, argument.sharding.as_ref(), mesh));
        match argument.donation {
            Donation::NotDonated => {}
            Donation::Donated => attributes.push("jax.buffer_donor = true".into()),
            Donation::Result(result) => {
                attributes.push(format!("tf.aliasing_output = {result} : i32"));
            }
        }
        let attributes = if attributes.is_empty() {
            String::new()
        } else {
            format!(" {{{}}}", attributes.join(", "))
        };
        format!("%arg{index}: {}{attributes}", mlir(&argument.ty))
    }

    /// Writes a function with results of these types and a signature; its parameters are `%arg0`, `%arg1` and so on.
    fn function(
        &mut self,
        graph: &Graph,
        types: Vec<String>,
        signature: impl FnOnce(&Writer) -> String,
    ) -> String {
        self.body.clear();
        self.next_value = 0;
        let names: Vec<Rc<str>> =
            (0..graph.parameters.len()).map(|i| Rc::from(format!("%arg{i}"))).collect();
        let results = self.graph(graph, &names);
        self.line(&format!("return{}", typed_list(&results, &types)));
        let signature = signature(self);
        format!("  func.func {signature} {{\n{}  }}\n", std::mem::take(&mut self.body))
    }

    fn private_function(&mut self, name: &str, graph: &Rc<Graph>) -> String {
        let types = types_of(&graph.result_types());
        self.function(graph, types, |_| {
            let parameters = types_of(&graph.parameter_types());
            let parameters: Vec<String> =
                parameters.iter().enumerate().map(|(i, ty)| format!("%arg{i}: {ty}")).collect();
            let results = types_of(&graph.result_types()).join(", ");
            format!("private @{name}({}) -> ({results})", parameters.join(", "))
        })
    }

    /// The name of a function in the text, which is written later.
    fn function_name(&mut self, graph: &Rc<Graph>) -> String {
        let same = |known: &&Function| {
            Rc::ptr_eq(&known.graph, graph) && known.manual_axes == self.manual_axes
        };
        if let Some(known) = self.functions.iter().find(same) {
            return known.name.clone();
        }
        let base = symbol(&graph.name);
        let taken = |name: &str| {
            ["main", "mesh"].contains(&name)
                || self.functions.iter().any(|known| known.name == name)
        };
        let mut name = base.clone();
        let mut number = 1;
        while taken(&name) {
            name = format!("{base}_{number}");
            number += 1;
        }
        let (graph, manual_axes) = (graph.clone(), self.manual_axes.clone());
        self.functions.push(Function { name: name.clone(), graph, manual_axes });
        name
    }

    /// Writes the nodes of a graph with these parameter names; returns the names of its results.
    fn graph(&mut self, graph: &Graph, parameters: &[Rc<str>]) -> Vec<Rc<str>> {
        let mut names: Names = vec![None; graph.types.len()];
        for (parameter, name) in graph.parameters.iter().zip(parameters) {
            names[parameter.index()] = Some(name.clone());
        }
        let live = graph.live_nodes();
        // The compiler does not shard a custom call, but gathers its operands.
        let custom_calls = self.dialect.matmul_custom_calls && self.is_local();
        let producers = if custom_calls { view::producers(graph) } else { Vec::new() };
        for (_, node) in graph.nodes.iter().enumerate().filter(|(i, _)| live[*i]) {
            let inputs = lookup(&names, &node.inputs);
            let outputs = match &node.op {
                Op::Dot(dims) if custom_calls => {
                    let views =
                        node.inputs.iter().map(|&input| view::view(graph, &producers, input));
                    self.matmul_of(graph, node, dims, &names, &views.collect::<Vec<_>>())
                }
                Op::CustomCall(call) if custom_calls && call.longer_operands => {
                    let longer =
                        node.inputs.iter().map(|&input| view::longer(graph, &producers, input));
                    let node = Node { inputs: longer.collect(), ..node.clone() };
                    Some(self.node(graph, &node, &lookup(&names, &node.inputs)))
                }
                _ => None,
            };
            let outputs = outputs.unwrap_or_else(|| self.node(graph, node, &inputs));
            for (value, name) in node.outputs.iter().zip(outputs) {
                names[value.index()] = Some(name);
            }
        }
        lookup(&names, &graph.results)
    }

    fn node(&mut self, graph: &Graph, node: &Node, inputs: &[Rc<str>]) -> Vec<Rc<str>> {
        let context = Context {
            inputs,
            input_types: node.inputs.iter().map(|&value| graph.ty(value).clone()).collect(),
            output_types: node.outputs.iter().map(|&value| graph.ty(value).clone()).collect(),
            path: &node.path,
        };
        match &node.op {
            Op::Name(_) | Op::StopGradient => inputs.to_vec(),
            Op::Move(_) if !self.dialect.host_memory => inputs.to_vec(),
            Op::Remat { body, .. } | Op::Transient { body } => self.graph(body, inputs),
            Op::CustomVjp(rule) => self.graph(&rule.primal, inputs),
            Op::Call { function } if self.is_across() => self.graph(function, inputs),
            Op::Call { function } => self.call(function, &context),
            Op::While { condition, body } => self.while_loop(condition, body, &context),
            Op::Cond { branches } => self.branches(branches, &context),
            Op::Scan(scan) => self.scan(scan, &context),
            // With one device there are no collectives and no partitions.
            Op::Collective(_, axes) if axes.size() == 1 => inputs.to_vec(),
            Op::Collective(collective, axes) if axes.are_across() => {
                vec![self.collective_across(collective, axes, &context)]
            }
            Op::Manual(manual) if manual.mesh.in_process().devices() == 1 => {
                self.graph(&manual.body, inputs)
            }
            Op::Manual(manual) => self.manual(manual, &context),
            Op::Constrain(_) if self.is_local() => inputs.to_vec(),
            Op::AxisIndex { axes } => vec![self.axis_index(axes, &context)],
            op => self.plain(op, &context),
        }
    }

    /// Writes an op: `%n = text : types loc`. Returns the names of its results.
    fn op(&mut self, text: &str, types: &str, count: usize, path: &Rc<str>) -> Vec<Rc<str>> {
        let name = format!("%{}", self.next_value);
        self.next_value += 1;
        let location = self.location(path);
        let (left, names) = match count {
            0 => (String::new(), Vec::new()),
            1 => (format!("{name} = "), vec![Rc::from(name)]),
            _ => {
                let names = (0..count).map(|i| Rc::from(format!("{name}#{i}"))).collect();
                (format!("{name}:{count} = "), names)
            }
        };
        self.line(&format!("{left}{text} : {types}{location}"));
        names
    }

    /// Writes an op with one result.
    fn op_one(&mut self, text: &str, types: &str, path: &Rc<str>) -> Rc<str> {
        self.op(text, types, 1, path).swap_remove(0)
    }

    /// A fresh name for a value that a region declares.
    fn fresh(&mut self) -> Rc<str> {
        self.next_value += 1;
        Rc::from(format!("%{}", self.next_value - 1))
    }

    fn location(&mut self, path: &Rc<str>) -> String {
        if path.is_empty() {
            return String::new();
        }
        let next = self.paths.len();
        let number = *self.path_numbers.entry(path.clone()).or_insert(next);
        if number == next {
            self.paths.push(path.clone());
        }
        format!(" loc(#loc{number})")
    }

    fn line(&mut self, text: &str) {
        for _ in 0..self.indent {
            self.body.push_str("  ");
        }
        self.body.push_str(text);
        self.body.push('\n');
    }

    /// Writes indented lines and returns them, to be nested in an op.
    fn nested(&mut self, write: impl FnOnce(&mut Writer)) -> String {
        let outer = std::mem::take(&mut self.body);
        self.indent += 1;
        write(self);
        self.indent -= 1;
        std::mem::replace(&mut self.body, outer)
    }

    /// Whether tensors here are those of one device: no axis of several devices is automatic.
    fn is_local(&self) -> bool {
        let is_manual = |mesh: &Mesh, axis: usize| {
            mesh.axis_size(axis) == 1 || mesh.is_across(axis) || self.manual_axes.contains(&axis)
        };
        self.mesh.iter().all(|mesh| (0..mesh.axes().len()).all(|axis| is_manual(mesh, axis)))
    }

    /// Whether the program is one of several processes.
    fn is_across(&self) -> bool {
        self.mesh.as_ref().is_some_and(|mesh| mesh.processes() > 1)
    }

    fn margin(&self) -> String {
        "  ".repeat(self.indent)
    }
}

/// The operands, types and path of a node to write.
struct Context<'a> {
    inputs: &'a [Rc<str>],
    input_types: Vec<Rc<TensorType>>,
    output_types: Vec<Rc<TensorType>>,
    path: &'a Rc<str>,
}

impl Context<'_> {
    /// The operands, comma-separated.
    fn operands(&self) -> String {
        self.inputs.join(", ")
    }

    /// The function type from operands to results.
    fn function_type(&self) -> String {
        let results = types_of(&self.output_types);
        let results = if results.len() == 1 {
            results[0].clone()
        } else {
            format!("({})", results.join(", "))
        };
        format!("({}) -> {results}", types_of(&self.input_types).join(", "))
    }

    /// The function type of a reduction, from the first operand and the initial value.
    fn reduction_type(&self, dtype: DType) -> String {
        let (operand, result) = (mlir(&self.input_types[0]), mlir(&self.output_types[0]));
        format!("({operand}, {}) -> {result}", types::scalar(dtype))
    }
}

fn lookup(names: &Names, values: &[ValueId]) -> Vec<Rc<str>> {
    let get =
        |value: &ValueId| names[value.index()].clone().unwrap_or_else(|| Rc::from("%undefined"));
    values.iter().map(get).collect()
}

/// ` %a, %b : T, U`, or an empty string for no names.
fn typed_list(names: &[Rc<str>], types: &[String]) -> String {
    if names.is_empty() {
        return String::new();
    }
    format!(" {} : {}", names.join(", "), types.join(", "))
}
