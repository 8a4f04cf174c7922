//! Gradients of manual regions: a region for the forward part and one for the backward part.
//!
//! Inside, gradients are those of the sum of the results of all devices. So a result that an axis
//! does not shard, which all devices along it have, counts as their mean; and the gradient of an
//! input that an axis does not shard is the sum of theirs.

use super::partition::{Parts, differentiate};
use super::regions::{of_reached, scatter_gradients};
use super::{Cotangent, Inputs, RegionRule, inline};
use crate::error::Result;
use crate::graph::Graph;
use crate::manual::{emit_region, names};
use crate::mesh::MeshExt;
use crate::op::Manual;
use crate::tensor::Tensor;
use crate::trace::{trace_graph, with_manual};
use fullshard_core::{MeshError, Sharding, TensorType};
use std::rc::Rc;

/// The forward part of a region, which also returns residuals, and its backward rule.
pub(super) fn manual(
    region: &Rc<Manual>,
    inputs: &[Tensor],
    needs_grad: &[bool],
    reached: &[bool],
) -> Result<(Vec<Tensor>, RegionRule)> {
    let axes = || names(&region.mesh, &region.axes);
    let parts = with_manual(axes(), || differentiate(&region.body, needs_grad, reached))?;
    let body = with_manual(axes(), || forward_body(region, &parts))?;
    let residuals = parts.residuals.iter().map(|ty| of_residual(region, ty));
    let residuals = residuals.collect::<Result<Vec<_>>>()?;
    let outputs = region.outputs.iter().chain(&residuals).cloned().collect();
    let forward = region.with(region.inputs.clone(), outputs, body);
    let mut results = emit_region(forward, &inputs.iter().collect::<Vec<_>>())?;
    let saved = results.split_off(region.outputs.len());
    let types: Vec<_> = results.iter().map(|result| result.shared_type()).collect();
    let (region, reached) = (region.clone(), reached.to_vec());
    let rule = move |cotangents: &[Cotangent], input: Inputs<'_>| {
        let mut operands =
            parts.parameters.iter().map(|&i| input(i)).collect::<Result<Vec<Tensor>>>()?;
        operands.extend(saved.iter().cloned());
        operands.extend(of_reached(cotangents, &types, &reached)?);
        let of_results = region.outputs.iter().zip(&reached).filter(|(_, reached)| **reached);
        let of_results: Vec<Sharding> = of_results.map(|(sharding, _)| sharding.clone()).collect();
        let of_parameters = parts.parameters.iter().map(|&i| &region.inputs[i]);
        let shardings: Vec<Sharding> =
            of_parameters.chain(&residuals).chain(&of_results).cloned().collect();
        let of_inputs = region.inputs.iter().zip(&parts.has_gradient).filter(|(_, has)| **has);
        let gradients: Vec<Sharding> = of_inputs.map(|(sharding, _)| sharding.clone()).collect();
        let axes = names(&region.mesh, &region.axes);
        let body = with_manual(axes, || backward_body(&region, &parts, &of_results, &gradients))?;
        let backward = region.with(shardings, gradients, body);
        let gradients = emit_region(backward, &operands.iter().collect::<Vec<_>>())?;
        Ok(scatter_gradients(gradients, &parts.has_gradient))
    };
    Ok((results, Box::new(rule)))
}

/// The forward part, with every residual as a tensor that can be sharded.
fn forward_body(region: &Manual, parts: &Parts) -> Result<Graph> {
    let parameters = region.body.parameter_types();
    let traced = trace_graph(&region.body.name, &parameters, |values| {
        let mut results = inline(&parts.forward, &values)?;
        let residuals = results.split_off(region.outputs.len());
        for residual in residuals {
            results.push(residual.reshape(&shardable(residual.ty()).dims)?);
        }
        Ok(results)
    })?;
    Ok(traced.graph)
}

/// The backward part: from the parameters it needs, residuals and gradients of the results to the
/// gradients of the inputs.
fn backward_body(
    region: &Manual,
    parts: &Parts,
    of_results: &[Sharding],
    of_inputs: &[Sharding],
) -> Result<Graph> {
    let mut types = parts.backward.parameter_types();
    let residuals = parts.parameters.len()..parts.parameters.len() + parts.residuals.len();
    for ty in &mut types[residuals.clone()] {
        *ty = Rc::new(shardable(ty));
    }
    let traced = trace_graph(&parts.backward.name, &types, |mut values| {
        for (value, ty) in values[residuals.clone()].iter_mut().zip(&parts.residuals) {
            *value = value.reshape(&ty.dims)?;
        }
        for (value, sharding) in values[residuals.end..].iter_mut().zip(of_results) {
            let copies = region.mesh.group_size(&unnamed(region, sharding));
            if copies > 1 {
                *value = (&*value * (1.0 / copies as f64))?;
            }
        }
        let gradients = inline(&parts.backward, &values)?.into_iter().zip(of_inputs);
        gradients
            .map(|(gradient, sharding)| match unnamed(region, sharding) {
                axes if axes.is_empty() => Ok(gradient),
                axes => region.mesh.group(&axes).sum(&gradient),
            })
            .collect()
    })?;
    Ok(traced.graph)
}

/// The axes of a region that a sharding does not name.
fn unnamed(region: &Manual, sharding: &Sharding) -> Vec<usize> {
    let named = |axis: &usize| sharding.dims().iter().any(|dim| dim.contains(axis));
    region.axes.iter().copied().filter(|axis| !named(axis)).collect()
}

/// A residual is different on each device: the shards follow each other along its first dimension.
fn of_residual(region: &Manual, ty: &TensorType) -> Result<Sharding> {
    let mut dims = vec![Vec::new(); shardable(ty).rank()];
    dims[0] = region.axes.clone();
    let error = |error: MeshError| crate::Error::new("manual", error.to_string());
    region.mesh.sharding_over(dims).map_err(error)
}

/// A type with at least one dimension.
fn shardable(ty: &TensorType) -> TensorType {
    match ty.rank() {
        0 => TensorType::new(ty.dtype, &[1]),
        _ => ty.clone(),
    }
}

impl Manual {
    /// A region over the same axes.
    fn with(&self, inputs: Vec<Sharding>, outputs: Vec<Sharding>, body: Graph) -> Manual {
        let (mesh, axes) = (self.mesh.clone(), self.axes.clone());
        Manual { mesh, axes, inputs, outputs, body: Rc::new(body) }
    }
}
