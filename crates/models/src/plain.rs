//! The simplest tracer: full parameters, unrolled layers, no dropout.

use crate::module::{Module, Parameter};
use crate::tracer::{Activations, Body, Layer, LayerBody, Place, Tracer};
use fullshard_graph::{DType, Error, Result, Tensor};
use std::collections::HashMap;

/// Traces a model on one device with full parameters.
pub struct Plain {
    parameters: HashMap<String, Tensor>,
    dtype: DType,
}

impl Plain {
    /// With the parameters of a tree in order, without the tied ones.
    pub fn new(tree: &Module, parameters: &[Tensor], dtype: DType) -> Result<Plain> {
        let named = tree.named_parameters();
        let untied: Vec<_> = named.iter().filter(|(_, p)| p.tied_to.is_none()).collect();
        if untied.len() != parameters.len() {
            let reason = format!("{} tensors for {} parameters", parameters.len(), untied.len());
            return Err(Error::new("plain", reason));
        }
        let mut known: HashMap<String, Tensor> = HashMap::new();
        for ((name, _), tensor) in untied.iter().zip(parameters) {
            known.insert(name.clone(), tensor.clone());
        }
        for (name, parameter) in &named {
            if let Some(tensor) = parameter.tied_to.as_ref().and_then(|other| known.get(other)) {
                known.insert(name.clone(), tensor.clone());
            }
        }
        Ok(Plain { parameters: known, dtype })
    }
}

impl Tracer for Plain {
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
        (0..count)
            .try_fold(carries, |carries, index| body(&place.layer(Layer::Known(index)), carries))
    }

    fn parameter(&self, place: &Place, parameter: &Parameter) -> Result<Tensor> {
        let name = place.name(parameter.name);
        match self.parameters.get(&name) {
            Some(tensor) => tensor.convert(self.dtype),
            None => Err(Error::new("parameter", format!("the model has no `{name}`"))),
        }
    }

    fn dropout(&self, _: &Place, _: &str, x: &Tensor, _: Activations, _: f64) -> Result<Tensor> {
        Ok(x.clone())
    }

    fn is_training(&self) -> bool {
        false
    }

    fn compute_dtype(&self) -> DType {
        self.dtype
    }
}
