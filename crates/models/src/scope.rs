//! What a model sees while it is traced: its parameters by name, its modules, its layers.
//!
//! A parameter is declared where it is used: its name, shape and initializer stand in one place,
//! and the module tree comes from tracing the model once without values.

use crate::lowering::LoweringOptions;
use crate::module::{Initializer, Parameter, join};
use crate::tracer::{Declaration, Layer, Place, Tracer};
use fullshard_graph::{DType, Error, Result, Tensor, constant, module};

/// A module being traced.
pub struct Scope<'a> {
    tracer: &'a dyn Tracer,
    place: Place,
}

impl<'a> Scope<'a> {
    /// Traces a model from its root.
    pub fn root(
        tracer: &'a dyn Tracer,
        trace: impl FnOnce(&Scope<'_>) -> Result<Vec<Tensor>>,
    ) -> Result<Vec<Tensor>> {
        let scope = Scope { tracer, place: Place::default() };
        tracer.module(&scope.place, Box::new(|| trace(&scope)))
    }

    /// Traces a module inside this one, of a name and a class such as `GPT2Attention`.
    pub fn module(
        &self,
        name: &str,
        class: &'static str,
        trace: impl FnOnce(&Scope<'_>) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let mut outputs = self.module_of_many(name, class, |scope| Ok(vec![trace(scope)?]))?;
        outputs.pop().ok_or_else(|| Error::new(name, "a module that gives nothing"))
    }

    /// Traces a module inside this one that gives several values.
    pub fn module_of_many(
        &self,
        name: &str,
        class: &'static str,
        trace: impl FnOnce(&Scope<'_>) -> Result<Vec<Tensor>>,
    ) -> Result<Vec<Tensor>> {
        self.declare(Declaration::Module { name, class })?;
        let inner = self.inside(name);
        module(name, || self.tracer.module(&inner.place, Box::new(|| trace(&inner))))
    }

    /// Traces a stack of `count` equal layers of a class, each a function of what the one before
    /// gives.
    pub fn layers(
        &self,
        name: &str,
        class: &'static str,
        count: usize,
        x: &Tensor,
        layer: impl Fn(&Scope<'_>, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        self.declare(Declaration::Layers { name, class, count })?;
        let list = self.inside(name).place;
        let body = |place: &Place, carries: Vec<Tensor>| {
            let scope = Scope { tracer: self.tracer, place: place.clone() };
            Ok(vec![layer(&scope, &carries[0])?])
        };
        let run = || self.tracer.layers(&list, count, vec![x.clone()], &body);
        let mut carries = module(name, run)?;
        carries.pop().ok_or_else(|| Error::new(name, "layers that give nothing"))
    }

    /// Declares a module without parameters, such as a `Dropout`, of which nothing is traced.
    pub fn leaf(&self, name: &str, class: &'static str) -> Result<()> {
        self.declare(Declaration::Module { name, class })
    }

    /// States the order of the modules inside this one, which decides that of the parameters.
    /// Without it, it is the order of their use. Modules that are not named follow.
    pub fn children(&self, names: &[&str]) -> Result<()> {
        self.declare(Declaration::Order(names))
    }

    /// A parameter of this module.
    pub fn parameter(
        &self,
        name: &'static str,
        dims: &[usize],
        initializer: Initializer,
    ) -> Result<Tensor> {
        self.get(&Parameter::new(name, dims, initializer))
    }

    /// A parameter of this module that is the same tensor as another, given by its full name.
    pub fn tied(&self, name: &'static str, dims: &[usize], other: &str) -> Result<Tensor> {
        self.get(&Parameter::tied(name, dims, other))
    }

    /// A parameter of this module, declared in full.
    pub fn get(&self, parameter: &Parameter) -> Result<Tensor> {
        let tensor = self.tracer.parameter(&self.place, parameter)?;
        if tensor.dims() == parameter.dims {
            return Ok(tensor);
        }
        let (name, dims) = (self.name(parameter.name), &parameter.dims);
        let reason = format!("`{name}` is declared as {dims:?} here, but is {}", tensor.ty());
        Err(Error::new("parameter", reason))
    }

    /// A `Dropout` module over a tensor whose first dimension is the batch.
    pub fn dropout(&self, name: &str, x: &Tensor, probability: f64) -> Result<Tensor> {
        self.leaf(name, "Dropout")?;
        self.drop_values(name, x, probability)
    }

    /// Dropout that is no module; the name is this use's own in the module.
    pub fn drop_values(&self, name: &str, x: &Tensor, probability: f64) -> Result<Tensor> {
        if probability == 0.0 {
            return Ok(x.clone());
        }
        self.tracer.dropout(&self.place, name, x, probability)
    }

    /// Whether the model is being trained, so that dropout drops.
    pub fn is_training(&self) -> bool {
        self.tracer.is_training()
    }

    /// Whether this is in a scan over layers, where one text stands for all of them.
    pub fn is_looped(&self) -> bool {
        matches!(self.place.layer, Some(Layer::Traced(_)))
    }

    /// The full name of something in this module.
    pub fn name(&self, name: &str) -> String {
        self.place.name(name)
    }

    /// The number of the layer this is in, from zero, as an `i32`.
    pub fn layer(&self) -> Result<Tensor> {
        match &self.place.layer {
            Some(Layer::Known(index)) => constant(&[], &[*index as i32]),
            Some(Layer::Traced(index)) => Ok(index.clone()),
            None => Err(Error::new("layer", "not inside a stack of layers")),
        }
    }

    /// The type to compute in.
    pub fn compute_dtype(&self) -> DType {
        self.tracer.compute_dtype()
    }

    /// Which of several forms that agree suit the platform.
    pub fn lowering(&self) -> LoweringOptions {
        self.tracer.lowering()
    }

    /// Whether all of this is recomputed in the backward pass.
    pub fn is_recomputed(&self) -> bool {
        self.tracer.is_recomputed()
    }

    /// Whether the matmuls here are in FP8: those of layers, where requested.
    pub fn uses_fp8(&self) -> bool {
        self.place.layer.is_some() && self.tracer.uses_fp8()
    }

    /// A table that is no parameter, rounded to the type such tables have.
    pub fn buffer(&self, table: &Tensor) -> Result<Tensor> {
        table.convert(self.tracer.buffer_dtype())
    }

    pub(crate) fn declare(&self, declaration: Declaration<'_>) -> Result<()> {
        self.tracer.declare(&self.place, declaration)
    }

    fn inside(&self, name: &str) -> Scope<'a> {
        let path = join(&self.place.path, name);
        Scope { tracer: self.tracer, place: Place { path, layer: self.place.layer.clone() } }
    }
}
