//! Regions: loops, branches, functions, rematerialization and custom gradients.

mod branch;
mod custom_vjp;
mod function;
mod remat;
mod scan;

pub use branch::{cond, while_loop};
pub use custom_vjp::custom_vjp;
pub use function::Function;
pub(crate) use function::call_graph;
pub(crate) use remat::Memory;
pub use remat::{Policy, remat, transient};
pub use scan::{Scan, ScanResults, scan};
pub(crate) use scan::{emit_scan, slice_type};

use crate::error::{Error, Result};
use crate::graph::{Graph, ValueId};
use crate::tensor::Tensor;
use crate::trace::Traced;
use fullshard_core::TensorType;
use std::rc::Rc;

/// The result types of a region, owned.
pub(crate) fn result_types(graph: &Graph) -> Vec<TensorType> {
    graph.result_types().iter().map(|ty| (**ty).clone()).collect()
}

/// Checks the types that a region returns.
pub(crate) fn check_types(
    op: &str,
    what: &str,
    expected: &[Rc<TensorType>],
    found: &[Rc<TensorType>],
) -> Result<()> {
    if expected.len() != found.len() {
        let reason = format!("{what}: {} values for {}", found.len(), expected.len());
        return Err(Error::new(op, reason));
    }
    match expected.iter().zip(found).position(|(expected, found)| expected != found) {
        Some(i) => {
            let (expected, found) = (&expected[i], &found[i]);
            Err(Error::new(op, format!("{what} {i} is {found} but must be {expected}")))
        }
        None => Ok(()),
    }
}

/// Merges the captured values of related regions. Returns for each region its graph, with only its
/// own parameters, and its parameters for the merged captures, in order.
pub(crate) fn share_captures(regions: Vec<Traced>) -> (Vec<(Graph, Vec<ValueId>)>, Vec<Tensor>) {
    let same = |a: &Tensor, b: &Tensor| a.graph == b.graph && a.value == b.value;
    let mut shared: Vec<Tensor> = Vec::new();
    for tensor in regions.iter().flat_map(|region| &region.captured) {
        if !shared.iter().any(|known| same(known, tensor)) {
            shared.push(tensor.clone());
        }
    }
    let regions = regions.into_iter().map(|Traced { mut graph, captured }| {
        let own = graph.parameters.split_off(graph.parameters.len() - captured.len());
        let parameter = |tensor: &Tensor| match captured.iter().position(|c| same(c, tensor)) {
            Some(i) => own[i],
            None => graph.add_value(tensor.shared_type()),
        };
        let parameters = shared.iter().map(parameter).collect();
        (graph, parameters)
    });
    (regions.collect(), shared)
}
