//! Gradients of loops over layers.

use super::partition::{Parts, differentiate};
use super::regions::{or_zero, place};
use super::{Cotangent, Inputs, RegionRule, Tape, inline};
use crate::control::emit_scan;
use crate::error::{Error, Result};
use crate::graph::{Graph, ValueId};
use crate::op::Scan;
use crate::ops::zeros;
use crate::tensor::Tensor;
use crate::trace::trace_graph;
use fullshard_core::TensorType;
use std::rc::Rc;

/// A loop: the forward loop also stacks what each step's way back needs, and the way back is a
/// loop in the opposite direction that carries the gradients of the carries and sums those of
/// the constants.
pub(super) fn scan(
    scan: &Rc<Scan>,
    inputs: &[Tensor],
    wanted: &[bool],
    reached: &[bool],
) -> Result<(Vec<Tensor>, RegionRule)> {
    let shape = LoopShape::new(scan, wanted, reached);
    let parts = differentiate(&scan.body, &shape.active, &shape.reached)?;
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
    let back = move |cotangents: &[Cotangent], _: Inputs<'_>| {
        backward_scan(&scan, &shape, &parts, &stacked_carries, &inputs, &residuals, cotangents)
    };
    Ok((outputs, Box::new(back)))
}

/// Where things stand among a loop's operands and its body's parameters.
struct LoopShape {
    constants: usize,
    carries: usize,
    prepared: usize,
    /// Which parameters of the body want gradients.
    active: Vec<bool>,
    /// Which results of the body have gradients.
    reached: Vec<bool>,
}

impl LoopShape {
    fn new(scan: &Scan, wanted: &[bool], reached: &[bool]) -> LoopShape {
        let types = scan.body.parameter_types();
        let prepared = scan.prepare.as_ref().map_or(0, |prepare| prepare.results.len());
        let slices = scan.constants + scan.carries + prepared;
        let active = types.iter().enumerate().map(|(i, ty)| {
            let by_operand = match i {
                i if i < scan.constants => wanted[i],
                i if i < slices => true,
                i => wanted[i - prepared],
            };
            by_operand && ty.dtype.is_float()
        });
        let results = scan.body.result_types();
        LoopShape {
            constants: scan.constants,
            carries: scan.carries,
            prepared,
            active: active.collect(),
            // A carry reaches the next step's results, whether or not its last value is used.
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

    /// The constants that want gradients.
    fn wanted_constants(&self) -> Vec<usize> {
        (0..self.constants).filter(|&i| self.active[i]).collect()
    }
}

/// The forward body, giving also the carries that the way back needs, which it sees one by one.
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
    shape: &LoopShape,
    parts: &Parts,
    stacked_carries: &[usize],
    inputs: &[Tensor],
    residuals: &[Tensor],
    cotangents: &[Cotangent],
) -> Result<Vec<Cotangent>> {
    let results = scan.body.result_types();
    let float_carries = shape.float_carries();
    let wanted_constants = shape.wanted_constants();
    let mut carries = Vec::new();
    for &i in &float_carries {
        carries.push(or_zero(&cotangents[i], &results[i])?);
    }
    for &i in &wanted_constants {
        carries.push(zeros(inputs[i].dtype(), inputs[i].dims())?);
    }
    let mut stacked: Vec<Tensor> = inputs[shape.constants + shape.carries..].to_vec();
    let own_inputs = stacked.len();
    stacked.extend_from_slice(residuals);
    for (i, ty) in results.iter().enumerate().skip(shape.carries) {
        if shape.reached[i] {
            let mut dims = ty.dims.clone();
            dims.insert(0, scan.length);
            stacked.push(or_zero(&cotangents[i], &TensorType::new(ty.dtype, &dims))?);
        }
    }
    let body = backward_body(scan, shape, parts, stacked_carries, &carries, &stacked)?;
    let wanted_inputs: Vec<usize> =
        (0..own_inputs).filter(|&i| shape.active[shape.slices() + i]).collect();
    let prepare =
        scan.prepare.as_ref().map(|prepare| backward_prepare(prepare, shape, inputs, &stacked));
    let backward = Scan {
        length: scan.length,
        reverse: !scan.reverse,
        constants: shape.constants,
        carries: carries.len(),
        body: Rc::new(body),
        prepare: prepare.transpose()?.map(Rc::new),
    };
    let operands: Vec<&Tensor> =
        inputs[..shape.constants].iter().chain(&carries).chain(&stacked).collect();
    let gradients = emit_scan(backward, &operands)?;

    let mut placed: Vec<Cotangent> = vec![None; inputs.len()];
    let places = float_carries.iter().map(|&i| shape.constants + i).chain(wanted_constants);
    let places = places.chain(wanted_inputs.iter().map(|&i| shape.constants + shape.carries + i));
    for (place, gradient) in places.zip(gradients) {
        placed[place] = Some(gradient);
    }
    Ok(placed)
}

/// One step of the way back, from constants, carried gradients, prepared values and slices.
fn backward_body(
    scan: &Scan,
    shape: &LoopShape,
    parts: &Parts,
    stacked_carries: &[usize],
    carries: &[Tensor],
    stacked: &[Tensor],
) -> Result<Graph> {
    let types = scan.body.parameter_types();
    let prepared = &types[shape.constants + shape.carries..shape.slices()];
    let mut parameters: Vec<Rc<TensorType>> = types[..shape.constants].to_vec();
    parameters.extend(carries.iter().map(|tensor| tensor.shared_type()));
    parameters.extend_from_slice(prepared);
    parameters.extend(stacked.iter().map(|tensor| crate::control::slice_type(tensor.ty())));
    let own_slices = types.len() - shape.slices();
    let float_carries = shape.float_carries();
    let wanted_constants = shape.wanted_constants();
    let traced = trace_graph("backward", &parameters, |values| {
        let (constants, rest) = values.split_at(shape.constants);
        let (carried, rest) = rest.split_at(carries.len());
        let (prepared, rest) = rest.split_at(shape.prepared);
        let (slices, rest) = rest.split_at(own_slices);
        let (residuals, rest) = rest.split_at(parts.residuals.len());
        let (carry_values, cotangents) = rest.split_at(stacked_carries.len());
        let parameter = |&i: &usize| match i {
            i if i < shape.constants => constants[i].clone(),
            i if i < shape.constants + shape.carries => {
                let place = stacked_carries.iter().position(|&known| known == i).unwrap_or(0);
                carry_values[place].clone()
            }
            i if i < shape.slices() => prepared[i - shape.constants - shape.carries].clone(),
            i => slices[i - shape.slices()].clone(),
        };
        let mut arguments: Vec<Tensor> = parts.parameters.iter().map(parameter).collect();
        arguments.extend_from_slice(residuals);
        arguments.extend_from_slice(&carried[..float_carries.len()]);
        arguments.extend_from_slice(cotangents);
        let mut gradients = place(inline(&parts.backward, &arguments)?, &parts.has_gradient);
        if let Some(prepare) = &scan.prepare {
            through_prepare(prepare, shape, constants, slices, &mut gradients)?;
        }
        let mut results = Vec::new();
        for &i in &float_carries {
            results.push(or_zero(&gradients[shape.constants + i], &types[shape.constants + i])?);
        }
        for (&i, sum) in wanted_constants.iter().zip(&carried[float_carries.len()..]) {
            results.push(match &gradients[i] {
                Some(gradient) => (sum + gradient)?,
                None => sum.clone(),
            });
        }
        for i in shape.slices()..types.len() {
            if shape.active[i] {
                results.push(or_zero(&gradients[i], &types[i])?);
            }
        }
        Ok(results)
    })?;
    no_captures(traced)
}

/// Takes the gradients of prepared values back to the constants and slices they were made of.
fn through_prepare(
    prepare: &Rc<Graph>,
    shape: &LoopShape,
    constants: &[Tensor],
    slices: &[Tensor],
    gradients: &mut [Cotangent],
) -> Result<()> {
    let first = shape.constants + shape.carries;
    let cotangents: Vec<Cotangent> = (first..shape.slices()).map(|i| gradients[i].take()).collect();
    let arguments: Vec<Tensor> = constants.iter().chain(slices).cloned().collect();
    let places: Vec<usize> = (0..shape.constants).chain(shape.slices()..gradients.len()).collect();
    let active: Vec<bool> = places.iter().map(|&i| shape.active[i]).collect();
    let tape = Tape::record(prepare, &arguments, &active, &|_| None)?;
    for (place, gradient) in places.into_iter().zip(tape.backward(&cotangents)?) {
        super::accumulate(&mut gradients[place], gradient)?;
    }
    Ok(())
}

/// The preparation for the way back, which has more slices than the way forth.
fn backward_prepare(
    prepare: &Rc<Graph>,
    shape: &LoopShape,
    inputs: &[Tensor],
    stacked: &[Tensor],
) -> Result<Graph> {
    let constants = inputs[..shape.constants].iter().map(|tensor| tensor.shared_type());
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
        false => Err(Error::new("scan", "a gradient that uses values from outside the loop")),
    }
}
