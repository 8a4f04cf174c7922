//! Models with scanned layers match those with unrolled layers.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Recording, difference, eval, model, weights};
use fullshard_graph::{
    DType, Error, Policy, Result, Tensor, concatenate, iota, remat, scan, value_and_grad,
};
use fullshard_models::{
    Activations, AnyModel, Body, Layer, LayerBody, Parameter, Place, Plain, Scope, Tracer,
};
use std::collections::HashMap;

/// Scans layers over stacked parameters, each rematerialized in the backward pass.
struct ScanTracer {
    parameters: HashMap<String, Tensor>,
}

impl ScanTracer {
    /// Takes parameters in the order of [`Plain`].
    fn new(model: &dyn AnyModel, parameters: &[Tensor]) -> Result<ScanTracer> {
        let tree = model.tree();
        let layers = model.dimensions().layers;
        let named = tree.named_parameters();
        let own = named.iter().filter(|(_, p)| p.tied_to.is_none()).map(|(name, _)| name.clone());
        let mut known: HashMap<String, Tensor> = own.zip(parameters.iter().cloned()).collect();
        for (name, parameter) in &named {
            if let Some(other) = &parameter.tied_to {
                known.insert(name.clone(), known[other].clone());
            }
            if name.contains(".0.") {
                let rows = (0..layers)
                    .map(|i| known[&name.replacen(".0.", &format!(".{i}."), 1)].expand(0))
                    .collect::<Result<Vec<_>>>()?;
                let stacked = concatenate(&rows.iter().collect::<Vec<_>>(), 0)?;
                known.insert(name.replacen(".0.", ".*.", 1), stacked);
            }
        }
        Ok(ScanTracer { parameters: known })
    }
}

impl Tracer for ScanTracer {
    fn module(&self, _: &Place, body: Body<'_>) -> Result<Vec<Tensor>> {
        body()
    }

    fn layers(
        &self,
        place: &Place,
        count: usize,
        carries: Vec<Tensor>,
        body: LayerBody<'_>,
    ) -> Result<Vec<Tensor>> {
        let carries: Vec<&Tensor> = carries.iter().collect();
        let indices = iota(DType::I32, &[count], 0)?;
        let results = scan(&carries, &[&indices]).run(|carries, slices| {
            let inputs: Vec<&Tensor> = carries.iter().chain(&slices).collect();
            let carries = remat(Policy::Nothing, &inputs, |mut inputs| {
                let index = inputs.pop().ok_or_else(|| Error::new("layers", "no index"))?;
                body(&place.layer(Layer::Traced(index)), inputs)
            })?;
            Ok((carries, vec![]))
        })?;
        Ok(results.carries)
    }

    fn parameter(&self, place: &Place, parameter: &Parameter) -> Result<Tensor> {
        let known = &self.parameters[&place.name(parameter.name)];
        match &place.layer {
            Some(Layer::Traced(index)) => known.at(0, index),
            _ => Ok(known.clone()),
        }
    }

    fn dropout(&self, _: &Place, _: &str, x: &Tensor, _: Activations, _: f64) -> Result<Tensor> {
        Ok(x.clone())
    }

    fn is_training(&self) -> bool {
        false
    }

    fn compute_dtype(&self) -> DType {
        DType::F32
    }
}

#[test]
fn scanned_layers_match_unrolled_layers() {
    for case in ["gpt2_inverse", "llama_grouped"] {
        let recording = Recording::load(case);
        let model = model(&recording);
        let (names, mut inputs): (Vec<_>, Vec<_>) = weights(&recording).into_iter().unzip();
        inputs.push(recording.batch("tokens", 0));
        inputs.push(recording.batch("labels", 0));
        let results = eval(&inputs, |inputs| {
            let (weights, batch) = inputs.split_at(names.len());
            let weights: Vec<&Tensor> = weights.iter().collect();
            let loss = |tracer: &dyn Tracer| {
                let loss = Scope::root(tracer, |scope| Ok(vec![model.loss(scope, batch)?.sum]))?;
                Ok(loss[0].clone())
            };
            let tree = model.tree();
            let (plain, mut results) = value_and_grad(&weights, |weights| {
                loss(&Plain::new(&tree, &weights, DType::F32)?)
            })?;
            let (scanned, gradients) =
                value_and_grad(&weights, |weights| loss(&ScanTracer::new(&*model, &weights)?))?;
            results.push(plain);
            results.extend(gradients);
            results.push(scanned);
            Ok(results)
        });
        let (plain, scanned) = results.split_at(results.len() / 2);
        for (i, (plain, scanned)) in plain.iter().zip(scanned).enumerate() {
            let apart = difference(&scanned.to_f64().unwrap(), &plain.to_f64().unwrap());
            let name = names.get(i).map_or("the loss", String::as_str);
            assert!(apart < 1e-5, "{case}: {name} by {apart}");
        }
    }
}
