//! Gradients of scans.

use super::partition::{Parts, differentiate_saving};
use super::regions::{or_zero, scatter_gradients};
use super::{Cotangent, Inputs, RegionRule, Tape, inline};
use crate::control::emit_scan;
use crate::error::{Error, Result};
use crate::graph::{Graph, ValueId};
use crate::op::{Op, Scan};
use crate::ops::zeros;
use crate::tensor::Tensor;
use crate::trace::trace_graph;
use fullshard_core::TensorType;
use std::collections::HashMap;
use std::rc::Rc;

/// A scan: the forward scan also stacks the residuals of each step, and the backward pass is a scan
/// in the opposite direction that carries the gradients of the carries and accumulates those of the
/// constants.
pub(super) fn scan(
    scan: &Rc<Scan>,
    inputs: &[Tensor],
    needs_grad: &[bool],
    reached: &[bool],
) -> Result<(Vec<Tensor>, RegionRule)> {
    let layout = ScanLayout::new(scan, needs_grad, reached);
    let carries = scan.constants..scan.constants + scan.carries;
    let mut parts = differentiate_saving(&scan.body, &layout.active, &layout.reached, |i| {
        carries.contains(&i)
    })?;
    parts.backward = without_entry_barriers(parts.backward);
    let (body, stacked_carries) = stack_carries(scan, &parts);
    let forward = Scan {
        body: Rc::new(body),
        prepare: scan.prepare.clone(),
        length: scan.length,
        reverse: scan.reverse,
        constants: scan.constants,
        carries: scan.carries,
    };
    let mut outputs = emit_scan(forward, &inputs.iter().collect::<Vec<_>>())?;
    let residuals = outputs.split_off(scan.body.results.len());
    let (scan, inputs) = (scan.clone(), inputs.to_vec());
    let backward = move |cotangents: &[Cotangent], _: Inputs<'_>| {
        backward_scan(&scan, &layout, &parts, &stacked_carries, &inputs, &residuals, cotangents)
    };
    Ok((outputs, Box::new(backward)))
}

/// A body without barriers that only its parameters pass, such as those of rematerialization: an
/// iteration of the backward pass cannot be merged with one of the forward pass, and behind a
/// barrier compilers copy each slice of what was saved before they use it.
fn without_entry_barriers(mut body: Graph) -> Graph {
    let mut sources: HashMap<ValueId, ValueId> =
        body.parameters.iter().map(|&parameter| (parameter, parameter)).collect();
    for node in &body.nodes {
        if let (Op::Barrier, Some(inputs)) = (&node.op, all_sources(&sources, &node.inputs)) {
            sources.extend(node.outputs.iter().copied().zip(inputs));
        }
    }
    body.nodes.retain(|node| !node.outputs.iter().any(|output| sources.contains_key(output)));
    let uses = body.nodes.iter_mut().flat_map(|node| &mut node.inputs).chain(&mut body.results);
    uses.for_each(|value| *value = sources.get(value).copied().unwrap_or(*value));
    body
}

fn all_sources(sources: &HashMap<ValueId, ValueId>, values: &[ValueId]) -> Option<Vec<ValueId>> {
    values.iter().map(|value| sources.get(value).copied()).collect()
}

/// The layout of a scan's operands and its body's parameters.
struct ScanLayout {
    constants: usize,
    carries: usize,
    prepared: usize,
    /// Which parameters of the body need gradients.
    active: Vec<bool>,
    /// Which results of the body have gradients.
    reached: Vec<bool>,
}

impl ScanLayout {
    fn new(scan: &Scan, needs_grad: &[bool], reached: &[bool]) -> ScanLayout {
        let types = scan.body.parameter_types();
        let prepared = scan.prepare.as_ref().map_or(0, |prepare| prepare.results.len());
        let slices = scan.constants + scan.carries + prepared;
        let active = types.iter().enumerate().map(|(i, ty)| {
            let by_operand = match i {
                i if i < scan.constants => needs_grad[i],
                i if i < slices => true,
                i => needs_grad[i - prepared],
            };
            by_operand && ty.dtype.is_float()
        });
        let results = scan.body.result_types();
        ScanLayout {
            constants: scan.constants,
            carries: scan.carries,
            prepared,
            active: active.collect(),
            // A carry affects the next step's results, even if its last value is unused.
            reached: (0..results.len())
                .map(|i| if i < scan.carries { results[i].dtype.is_float() } else { reached[i] })
                .collect(),
        }
    }

    fn slices(&self) -> usize {
        self.constants + self.carries + self.prepared
    }

    /// The carries that have gradients.
    fn float_carries(&self) -> Vec<usize> {
        (0..self.carries).filter(|&i| self.active[self.constants + i]).collect()
    }

    /// The constants that need gradients.
    fn grad_constants(&self) -> Vec<usize> {
        (0..self.constants).filter(|&i| self.active[i]).collect()
    }
}

/// The forward body, which also returns the carries that each backward step needs.
fn stack_carries(scan: &Scan, parts: &Parts) -> (Graph, Vec<usize>) {
    let carries = scan.constants..scan.constants + scan.carries;
    let needed: Vec<usize> =
        parts.parameters.iter().copied().filter(|i| carries.contains(i)).collect();
    let mut body = parts.forward.clone();
    let values: Vec<ValueId> = needed.iter().map(|&i| body.parameters[i]).collect();
    body.results.extend(values);
    (body, needed)
}

fn backward_scan(
    scan: &Scan,
    layout: &ScanLayout,
    parts: &Parts,
    stacked_carries: &[usize],
    inputs: &[Tensor],
    residuals: &[Tensor],
    cotangents: &[Cotangent],
) -> Result<Vec<Cotangent>> {
    let results = scan.body.result_types();
    let float_carries = layout.float_carries();
    let grad_constants = layout.grad_constants();
    let mut carries = Vec::new();
    for &i in &float_carries {
        carries.push(or_zero(&cotangents[i], &results[i])?);
    }
    for &i in &grad_constants {
        carries.push(zeros(inputs[i].dtype(), inputs[i].dims())?);
    }
    let mut stacked: Vec<Tensor> = inputs[layout.constants + layout.carries..].to_vec();
    let own_inputs = stacked.len();
    stacked.extend_from_slice(residuals);
    for (i, ty) in results.iter().enumerate().skip(layout.carries) {
        if layout.reached[i] {
            let mut dims = ty.dims.clone();
            dims.insert(0, scan.length);
            stacked.push(or_zero(&cotangents[i], &TensorType::new(ty.dtype, &dims))?);
        }
    }
    let body = backward_body(scan, layout, parts, stacked_carries, &carries, &stacked)?;
    let grad_inputs: Vec<usize> =
        (0..own_inputs).filter(|&i| layout.active[layout.slices() + i]).collect();
    let prepare =
        scan.prepare.as_ref().map(|prepare| backward_prepare(prepare, layout, inputs, &stacked));
    let backward = Scan {
        length: scan.length,
        reverse: !scan.reverse,
        constants: layout.constants,
        carries: carries.len(),
        body: Rc::new(body),
        prepare: prepare.transpose()?.map(Rc::new),
    };
    let operands: Vec<&Tensor> =
        inputs[..layout.constants].iter().chain(&carries).chain(&stacked).collect();
    let gradients = emit_scan(backward, &operands)?;

    let mut placed: Vec<Cotangent> = vec![None; inputs.len()];
    let positions = float_carries.iter().map(|&i| layout.constants + i).chain(grad_constants);
    let positions =
        positions.chain(grad_inputs.iter().map(|&i| layout.constants + layout.carries + i));
    for (position, gradient) in positions.zip(gradients) {
        placed[position] = Some(gradient);
    }
    Ok(placed)
}

/// One backward step, from constants, carried gradients, prepared values and slices.
fn backward_body(
    scan: &Scan,
    layout: &ScanLayout,
    parts: &Parts,
    stacked_carries: &[usize],
    carries: &[Tensor],
    stacked: &[Tensor],
) -> Result<Graph> {
    let types = scan.body.parameter_types();
    let prepared = &types[layout.constants + layout.carries..layout.slices()];
    let mut parameters: Vec<Rc<TensorType>> = types[..layout.constants].to_vec();
    parameters.extend(carries.iter().map(|tensor| tensor.shared_type()));
    parameters.extend_from_slice(prepared);
    parameters.extend(stacked.iter().map(|tensor| crate::control::slice_type(tensor.ty())));
    let own_slices = types.len() - layout.slices();
    let float_carries = layout.float_carries();
    let grad_constants = layout.grad_constants();
    let traced = trace_graph("backward", &parameters, |values| {
        let (constants, rest) = values.split_at(layout.constants);
        let (carried, rest) = rest.split_at(carries.len());
        let (prepared, rest) = rest.split_at(layout.prepared);
        let (slices, rest) = rest.split_at(own_slices);
        let (residuals, rest) = rest.split_at(parts.residuals.len());
        let (carry_values, cotangents) = rest.split_at(stacked_carries.len());
        let parameter = |&i: &usize| match i {
            i if i < layout.constants => constants[i].clone(),
            i if i < layout.constants + layout.carries => {
                let position = stacked_carries.iter().position(|&known| known == i).unwrap_or(0);
                carry_values[position].clone()
            }
            i if i < layout.slices() => prepared[i - layout.constants - layout.carries].clone(),
            i => slices[i - layout.slices()].clone(),
        };
        let mut arguments: Vec<Tensor> = parts.parameters.iter().map(parameter).collect();
        arguments.extend_from_slice(residuals);
        arguments.extend_from_slice(&carried[..float_carries.len()]);
        arguments.extend_from_slice(cotangents);
        let mut gradients =
            scatter_gradients(inline(&parts.backward, &arguments)?, &parts.has_gradient);
        if let Some(prepare) = &scan.prepare {
            through_prepare(prepare, layout, constants, slices, &mut gradients)?;
        }
        let mut results = Vec::new();
        for &i in &float_carries {
            results.push(or_zero(&gradients[layout.constants + i], &types[layout.constants + i])?);
        }
        for (&i, sum) in grad_constants.iter().zip(&carried[float_carries.len()..]) {
            results.push(match &gradients[i] {
                Some(gradient) => (sum + gradient)?,
                None => sum.clone(),
            });
        }
        for i in layout.slices()..types.len() {
            if layout.active[i] {
                results.push(or_zero(&gradients[i], &types[i])?);
            }
        }
        Ok(results)
    })?;
    no_captures(traced)
}

/// Propagates the gradients of prepared values to the constants and slices they come from.
fn through_prepare(
    prepare: &Rc<Graph>,
    layout: &ScanLayout,
    constants: &[Tensor],
    slices: &[Tensor],
    gradients: &mut [Cotangent],
) -> Result<()> {
    let first = layout.constants + layout.carries;
    let cotangents: Vec<Cotangent> =
        (first..layout.slices()).map(|i| gradients[i].take()).collect();
    let arguments: Vec<Tensor> = constants.iter().chain(slices).cloned().collect();
    let positions: Vec<usize> =
        (0..layout.constants).chain(layout.slices()..gradients.len()).collect();
    let active: Vec<bool> = positions.iter().map(|&i| layout.active[i]).collect();
    let tape = Tape::record(prepare, &arguments, &active, &|_| None)?;
    for (position, gradient) in positions.into_iter().zip(tape.backward(&cotangents)?) {
        super::accumulate(&mut gradients[position], gradient)?;
    }
    Ok(())
}

/// The preparation for the backward pass, which has more slices than the forward pass.
fn backward_prepare(
    prepare: &Rc<Graph>,
    layout: &ScanLayout,
    inputs: &[Tensor],
    stacked: &[Tensor],
) -> Result<Graph> {
    let constants = inputs[..layout.constants].iter().map(|tensor| tensor.shared_type());
    let slices = stacked.iter().map(|tensor| crate::control::slice_type(tensor.ty()));
    let parameters: Vec<_> = constants.chain(slices).collect();
    let traced = trace_graph("prepare", &parameters, |values| {
        inline(prepare, &values[..prepare.parameters.len()])
    })?;
    no_captures(traced)
}

fn no_captures(traced: crate::trace::Traced) -> Result<Graph> {
    match traced.captured.is_empty() {
        true => Ok(traced.graph),
        false => Err(Error::new("scan", "the gradient captures values from outside the scan")),
    }
}
