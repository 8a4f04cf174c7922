//! Functions: traced once, called many times, and emitted as functions in the text.

use super::result_types;
use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::op::Op;
use crate::tensor::Tensor;
use crate::trace::{emit, trace_graph};
use fullshard_core::TensorType;
use std::rc::Rc;

/// A function of tensors, traced once.
#[derive(Debug, Clone)]
pub struct Function {
    graph: Rc<Graph>,
}

impl Function {
    /// Traces a function. It may use only its arguments, not outer values.
    pub fn new(
        name: &str,
        parameters: &[TensorType],
        trace: impl FnOnce(Vec<Tensor>) -> Result<Vec<Tensor>>,
    ) -> Result<Function> {
        let types: Vec<_> = parameters.iter().cloned().map(Rc::new).collect();
        let traced = trace_graph(name, &types, trace)?;
        match traced.captured.first() {
            Some(tensor) => Err(Error::new(
                name,
                format!("a function cannot capture {}; pass it as an argument", tensor.ty()),
            )),
            None => Ok(Function { graph: Rc::new(traced.graph) }),
        }
    }

    /// Calls the function.
    pub fn call(&self, arguments: &[&Tensor]) -> Result<Vec<Tensor>> {
        call_graph(&self.graph, arguments)
    }
}

/// Calls a graph that has no captures.
pub(crate) fn call_graph(graph: &Rc<Graph>, arguments: &[&Tensor]) -> Result<Vec<Tensor>> {
    let given: Vec<_> = arguments.iter().map(|tensor| tensor.shared_type()).collect();
    super::check_types(&graph.name, "argument", &graph.parameter_types(), &given)?;
    emit(&graph.name, Op::Call { function: graph.clone() }, arguments, result_types(graph))
}
