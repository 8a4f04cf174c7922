//! Conditionals and while loops.

use super::{check_types, result_types, share_captures};
use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::op::Op;
use crate::tensor::Tensor;
use crate::trace::{Traced, emit, trace_graph};
use fullshard_core::DType;
use std::rc::Rc;

/// Runs one of two branches. Both may capture outer values and must return the same types.
pub fn cond(
    condition: &Tensor,
    yes: impl FnOnce() -> Result<Vec<Tensor>>,
    no: impl FnOnce() -> Result<Vec<Tensor>>,
) -> Result<Vec<Tensor>> {
    if condition.dtype() != DType::Bool || condition.rank() != 0 {
        return Err(Error::new("cond", format!("{} is not a bool scalar", condition.ty())));
    }
    let no = trace_graph("no", &[], |_| no())?;
    let yes = trace_graph("yes", &[], |_| yes())?;
    check_types("cond", "result", &no.graph.result_types(), &yes.graph.result_types())?;
    let types = result_types(&yes.graph);
    let (branches, captured) = with_captures(vec![no, yes]);
    let index = condition.convert(DType::I32)?;
    let mut operands = vec![&index];
    operands.extend(&captured);
    emit("cond", Op::Cond { branches }, &operands, types)
}

/// Repeats `body` on a state while `condition` holds. It has no gradient.
pub fn while_loop(
    state: &[&Tensor],
    condition: impl FnOnce(Vec<Tensor>) -> Result<Tensor>,
    body: impl FnOnce(Vec<Tensor>) -> Result<Vec<Tensor>>,
) -> Result<Vec<Tensor>> {
    if state.is_empty() {
        return Err(Error::new("while", "a loop without state never terminates"));
    }
    let types: Vec<_> = state.iter().map(|tensor| tensor.shared_type()).collect();
    let condition = trace_graph("condition", &types, |state| Ok(vec![condition(state)?]))?;
    let body = trace_graph("body", &types, body)?;
    check_types("while", "state", &types, &body.graph.result_types())?;
    let given = condition.graph.result_types();
    if given[0].dtype != DType::Bool || given[0].rank() != 0 {
        return Err(Error::new("while", format!("{} is not a bool scalar", given[0])));
    }
    let (regions, captured) = with_captures(vec![condition, body]);
    let mut operands = state.to_vec();
    operands.extend(&captured);
    let results = types.iter().map(|ty| (**ty).clone()).collect();
    let op = Op::While { condition: regions[0].clone(), body: regions[1].clone() };
    emit("while", op, &operands, results)
}

/// Appends captured values to the parameters of regions.
fn with_captures(regions: Vec<Traced>) -> (Vec<Rc<Graph>>, Vec<Tensor>) {
    let (regions, captured) = share_captures(regions);
    let graphs = regions.into_iter().map(|(mut graph, captures)| {
        graph.parameters.extend(captures);
        Rc::new(graph)
    });
    (graphs.collect(), captured)
}
