//! Scans: a body traced once and run for every slice of its inputs.

use super::{check_types, result_types, share_captures};
use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::op::{self, Op};
use crate::tensor::Tensor;
use crate::trace::{Traced, emit, trace_graph};
use fullshard_core::TensorType;
use std::rc::Rc;

/// A scan over the first dimension of its inputs.
pub struct Scan<'a> {
    carries: Vec<&'a Tensor>,
    inputs: Vec<&'a Tensor>,
    reverse: bool,
}

/// The results of a scan: the carries after the last step, and the stacked results of all steps.
#[derive(Debug, Clone)]
pub struct ScanResults {
    /// The carries after the last step.
    pub carries: Vec<Tensor>,
    /// The results of all steps, stacked along a new first dimension.
    pub stacked: Vec<Tensor>,
}

/// Starts a scan: `carries` are passed from step to step, and step `i` takes slice `i` of each of
/// `inputs` along its first dimension.
pub fn scan<'a>(carries: &[&'a Tensor], inputs: &[&'a Tensor]) -> Scan<'a> {
    Scan { carries: carries.to_vec(), inputs: inputs.to_vec(), reverse: false }
}

impl Scan<'_> {
    /// Runs from the last slice to the first.
    pub fn reversed(mut self) -> Self {
        self.reverse = true;
        self
    }

    /// Runs the scan: `body` takes carries and slices, and returns the next carries and the results
    /// of the step.
    pub fn run(
        self,
        body: impl FnOnce(Vec<Tensor>, Vec<Tensor>) -> Result<(Vec<Tensor>, Vec<Tensor>)>,
    ) -> Result<ScanResults> {
        self.trace(None::<fn(Vec<Tensor>) -> Result<Vec<Tensor>>>, |carries, _, slices| {
            body(carries, slices)
        })
    }

    /// Runs the scan with values prefetched one step ahead: `prepare` maps the slices of a step to
    /// values that `body` takes in that step, so that what `prepare` waits for (for example an
    /// all-gather of weights) overlaps with the computation of the previous step. The backward pass
    /// prepares them again, one step ahead in its own order, instead of saving them.
    pub fn run_prepared(
        self,
        prepare: impl FnOnce(Vec<Tensor>) -> Result<Vec<Tensor>>,
        body: impl FnOnce(Vec<Tensor>, Vec<Tensor>, Vec<Tensor>) -> Result<(Vec<Tensor>, Vec<Tensor>)>,
    ) -> Result<ScanResults> {
        self.trace(Some(prepare), body)
    }

    fn trace(
        self,
        prepare: Option<impl FnOnce(Vec<Tensor>) -> Result<Vec<Tensor>>>,
        body: impl FnOnce(Vec<Tensor>, Vec<Tensor>, Vec<Tensor>) -> Result<(Vec<Tensor>, Vec<Tensor>)>,
    ) -> Result<ScanResults> {
        let length = self.length()?;
        let slices: Vec<Rc<TensorType>> = self.inputs.iter().map(|x| slice_type(x.ty())).collect();
        let carries: Vec<Rc<TensorType>> =
            self.carries.iter().map(|carry| carry.shared_type()).collect();
        let prepare =
            prepare.map(|prepare| trace_graph("prepare", &slices, prepare)).transpose()?;
        let prepared = prepare.as_ref().map_or(Vec::new(), |traced| traced.graph.result_types());
        let parameters = [&carries[..], &prepared, &slices].concat();
        let mut step_results = 0;
        let traced = trace_graph("body", &parameters, |mut values| {
            let slices = values.split_off(carries.len() + prepared.len());
            let prepared = values.split_off(carries.len());
            let (mut next, results) = body(values, prepared, slices)?;
            step_results = results.len();
            next.extend(results);
            Ok(next)
        })?;
        let given = traced.graph.result_types();
        let next = &given[..given.len() - step_results];
        check_types("scan", "carry", &carries, next)?;
        let (body, prepare, constants) = share_constants(traced, prepare);
        let scan = op::Scan {
            length,
            reverse: self.reverse,
            constants: constants.len(),
            carries: carries.len(),
            body,
            prepare,
        };
        let operands: Vec<&Tensor> =
            constants.iter().chain(self.carries).chain(self.inputs).collect();
        let mut carries = emit_scan(scan, &operands)?;
        let stacked = carries.split_off(given.len() - step_results);
        Ok(ScanResults { carries, stacked })
    }

    fn length(&self) -> Result<usize> {
        let first = |tensor: &&Tensor| tensor.dims().first().copied();
        let length = self.inputs.first().and_then(first);
        match length {
            Some(length) if length > 0 && self.inputs.iter().all(|x| first(x) == Some(length)) => {
                Ok(length)
            }
            _ => {
                let types: Vec<_> = self.inputs.iter().map(|x| x.ty().to_string()).collect();
                let reason = format!("no common first dimension in {}", types.join(", "));
                Err(Error::new("scan", reason))
            }
        }
    }
}

/// Adds a scan, whose result types follow from its body.
pub(crate) fn emit_scan(scan: op::Scan, operands: &[&Tensor]) -> Result<Vec<Tensor>> {
    let mut types = result_types(&scan.body);
    for ty in &mut types[scan.carries..] {
        ty.dims.insert(0, scan.length);
    }
    emit("scan", Op::Scan(Rc::new(scan)), operands, types)
}

pub(crate) fn slice_type(stacked: &TensorType) -> Rc<TensorType> {
    Rc::new(TensorType::new(stacked.dtype, stacked.dims.get(1..).unwrap_or(&[])))
}

/// Prepends the captured values of body and preparation to the parameters of both.
fn share_constants(
    body: Traced,
    prepare: Option<Traced>,
) -> (Rc<Graph>, Option<Rc<Graph>>, Vec<Tensor>) {
    let (regions, constants) = share_captures([body].into_iter().chain(prepare).collect());
    let mut graphs = regions.into_iter().map(|(mut graph, mut constants)| {
        constants.append(&mut graph.parameters);
        graph.parameters = constants;
        Rc::new(graph)
    });
    let body = graphs.next().unwrap_or_default();
    (body, graphs.next(), constants)
}
