//! Tracing: the stack of graphs being built on this thread, and the path of modules.
//!
//! An op is always added to the innermost graph. An operand of an outer graph is *captured*: it
//! becomes a parameter of every graph in between, so that regions are closed and can be
//! differentiated, moved and written separately.

use crate::error::{Error, Result};
use crate::graph::{Graph, Node, ValueId};
use crate::op::Op;
use crate::tensor::Tensor;
use fullshard_core::TensorType;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

/// Which graph a tensor belongs to.
pub(crate) type GraphId = u64;

struct Builder {
    id: GraphId,
    graph: Graph,
    /// Outer tensors that are parameters here, with the parameter of each.
    captured: Vec<Tensor>,
    capture_of: HashMap<(GraphId, ValueId), ValueId>,
}

thread_local! {
    static STACK: RefCell<Vec<Builder>> = const { RefCell::new(Vec::new()) };
    static PATH: RefCell<Rc<str>> = RefCell::new(Rc::from(""));
    static MANUAL: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static NEXT_ID: Cell<GraphId> = const { Cell::new(1) };
}

/// The path of the module being traced, such as `transformer.h.3.attn`.
pub fn module_path() -> String {
    PATH.with(|path| path.borrow().to_string())
}

/// Traces a part of a program as a named module: its ops, errors and compiled instructions carry
/// the name.
pub fn module<T>(name: &str, trace: impl FnOnce() -> T) -> T {
    let path = module_path();
    let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    with_path(Rc::from(path), trace)
}

/// Traces with a given path.
pub(crate) fn with_path<T>(path: Rc<str>, trace: impl FnOnce() -> T) -> T {
    struct Restore(Rc<str>);
    impl Drop for Restore {
        fn drop(&mut self) {
            PATH.with(|path| *path.borrow_mut() = self.0.clone());
        }
    }
    let _restore = Restore(PATH.with(|current| current.replace(path)));
    trace()
}

/// Traces with these mesh axes manual, in addition to those that already are.
pub(crate) fn with_manual<T>(axes: Vec<String>, trace: impl FnOnce() -> T) -> T {
    struct Restore(usize);
    impl Drop for Restore {
        fn drop(&mut self) {
            MANUAL.with(|manual| manual.borrow_mut().truncate(self.0));
        }
    }
    let _restore = Restore(MANUAL.with(|manual| manual.borrow().len()));
    MANUAL.with(|manual| manual.borrow_mut().extend(axes));
    trace()
}

/// Whether an axis is manual at this point of the trace.
pub(crate) fn is_manual(axis: &str) -> bool {
    MANUAL.with(|manual| manual.borrow().iter().any(|known| known == axis))
}

/// Whether a graph is still being traced.
pub(crate) fn is_open(graph: GraphId) -> bool {
    STACK.with(|stack| stack.borrow().iter().any(|builder| builder.id == graph))
}

/// A graph and the outer tensors it captured, which are its last parameters.
pub(crate) struct Traced {
    pub graph: Graph,
    pub captured: Vec<Tensor>,
}

/// Traces a graph whose parameters have these types.
pub(crate) fn trace_graph(
    name: &str,
    parameters: &[Rc<TensorType>],
    trace: impl FnOnce(Vec<Tensor>) -> Result<Vec<Tensor>>,
) -> Result<Traced> {
    let id = NEXT_ID.with(|next| next.replace(next.get() + 1));
    let mut graph = Graph::new(name);
    let tensors = parameters
        .iter()
        .map(|ty| Tensor::new(id, graph.add_parameter(ty.clone()), ty.clone()))
        .collect();
    let builder = Builder { id, graph, captured: Vec::new(), capture_of: HashMap::new() };
    STACK.with(|stack| stack.borrow_mut().push(builder));
    // Pops the builder even if `trace` fails or panics.
    struct Pop;
    impl Drop for Pop {
        fn drop(&mut self) {
            STACK.with(|stack| stack.borrow_mut().pop());
        }
    }
    let pop = Pop;
    let results = trace(tensors)?;
    let values = results.iter().map(|tensor| import(name, tensor)).collect::<Result<Vec<_>>>()?;
    let builder = STACK.with(|stack| stack.borrow_mut().pop());
    std::mem::forget(pop);
    let Some(Builder { mut graph, captured, .. }) = builder else {
        return Err(Error::new(name, "the trace has already ended"));
    };
    graph.results = values;
    Ok(Traced { graph, captured })
}

/// Adds an op to the innermost graph.
pub(crate) fn emit(
    name: &str,
    op: Op,
    inputs: &[&Tensor],
    types: Vec<TensorType>,
) -> Result<Vec<Tensor>> {
    let inputs =
        inputs.iter().map(|tensor| import(name, tensor)).collect::<Result<Vec<ValueId>>>()?;
    STACK.with(|stack| {
        let mut stack = stack.borrow_mut();
        let Some(builder) = stack.last_mut() else {
            return Err(Error::new(name, "tensors are valid only while a program is being traced"));
        };
        let path = PATH.with(|path| path.borrow().clone());
        let types = types.into_iter().map(Rc::new);
        let tensors: Vec<Tensor> = types
            .map(|ty| Tensor::new(builder.id, builder.graph.add_value(ty.clone()), ty))
            .collect();
        let outputs = tensors.iter().map(|tensor| tensor.value).collect();
        builder.graph.nodes.push(Node { op, inputs, outputs, path });
        Ok(tensors)
    })
}

/// Adds an op with one result.
pub(crate) fn emit_one(name: &str, op: Op, inputs: &[&Tensor], ty: TensorType) -> Result<Tensor> {
    let mut results = emit(name, op, inputs, vec![ty])?;
    results.pop().ok_or_else(|| Error::new(name, "the op has no result"))
}

/// The value of a tensor in the innermost graph, captured if it is from an outer graph.
fn import(op: &str, tensor: &Tensor) -> Result<ValueId> {
    STACK.with(|stack| {
        let mut stack = stack.borrow_mut();
        let Some(home) = stack.iter().rposition(|builder| builder.id == tensor.graph) else {
            return Err(Error::new(
                op,
                format!("{} belongs to a trace that has ended", tensor.ty()),
            ));
        };
        let mut current = tensor.clone();
        for builder in &mut stack[home + 1..] {
            let key = (current.graph, current.value);
            let value = match builder.capture_of.get(&key) {
                Some(value) => *value,
                None => {
                    let value = builder.graph.add_parameter(current.shared_type());
                    builder.capture_of.insert(key, value);
                    builder.captured.push(current.clone());
                    value
                }
            };
            current = Tensor::new(builder.id, value, current.shared_type());
        }
        Ok(current.value)
    })
}
