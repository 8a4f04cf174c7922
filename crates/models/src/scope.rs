//! The interface of a model while it is traced: parameters by name, modules and layers.
//!
//! A parameter is declared where it is used, with its name, shape and initializer. The module tree
//! comes from tracing the model once without values.

use crate::annotations::{Annotations, as_declared};
use crate::context_parallel::ContextAxis;
use crate::lowering::LoweringOptions;
use crate::module::{Initializer, Parameter, join};
use crate::tensor_parallel::TensorParallel;
use crate::tracer::{Activations, Declaration, Layer, Place, Tracer};
use fullshard_graph::{DType, Error, Key, Result, Tensor, constant, module};

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

    /// Traces a child module with a name and a class such as `GPT2Attention`.
    pub fn module(
        &self,
        name: &str,
        class: &'static str,
        trace: impl FnOnce(&Scope<'_>) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let mut outputs = self.module_outputs(name, class, |scope| Ok(vec![trace(scope)?]))?;
        outputs.pop().ok_or_else(|| Error::new(name, "a module without outputs"))
    }

    /// Traces a child module with several outputs.
    pub fn module_outputs(
        &self,
        name: &str,
        class: &'static str,
        trace: impl FnOnce(&Scope<'_>) -> Result<Vec<Tensor>>,
    ) -> Result<Vec<Tensor>> {
        self.declare(Declaration::Module { name, class })?;
        let inner = self.child(name);
        module(name, || self.tracer.module(&inner.place, Box::new(|| trace(&inner))))
    }

    /// Traces a stack of `count` identical layers of a class, each a function of the output of the
    /// previous one.
    pub fn layers(
        &self,
        name: &str,
        class: &'static str,
        count: usize,
        x: &Tensor,
        layer: impl Fn(&Scope<'_>, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        self.declare(Declaration::Layers { name, class, count })?;
        let list = self.child(name).place;
        let body = |place: &Place, carries: Vec<Tensor>| {
            let scope = Scope { tracer: self.tracer, place: place.clone() };
            Ok(vec![layer(&scope, &scope.constrain_residual(&carries[0])?)?])
        };
        let run = || self.tracer.layers(&list, count, vec![x.clone()], &body);
        let mut carries = module(name, run)?;
        carries.pop().ok_or_else(|| Error::new(name, "layers without outputs"))
    }

    /// Declares a module without parameters, such as a `Dropout`, without tracing it.
    pub fn leaf(&self, name: &str, class: &'static str) -> Result<()> {
        self.declare(Declaration::Module { name, class })
    }

    /// Sets the order of the child modules, and so of the parameters. The default is the order of
    /// use. Modules that are not listed follow.
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

    /// A parameter of this module that is tied to another, given by its full name.
    pub fn tied(&self, name: &'static str, dims: &[usize], other: &str) -> Result<Tensor> {
        self.get(&Parameter::tied(name, dims, other))
    }

    /// A parameter of this module, by its full declaration.
    pub fn get(&self, parameter: &Parameter) -> Result<Tensor> {
        let tensor = self.stored(parameter)?;
        if self.annotations().is_some() { as_declared(&tensor, parameter) } else { Ok(tensor) }
    }

    /// A parameter as it is stored: over automatic axes a sharded dim may be padded, and one of
    /// fused parts is two.
    pub(crate) fn stored(&self, parameter: &Parameter) -> Result<Tensor> {
        let tensor = self.tracer.parameter(&self.place, parameter)?;
        let stored = self.annotations().map(|annotations| annotations.stored_dims(parameter));
        if stored.is_some_and(|dims| tensor.dims() == dims) {
            return Ok(tensor);
        }
        let fits = |(dim, (&found, &size)): (usize, (&usize, &usize))| {
            let slice = || {
                let name = parameter.dim_names.get(dim)?;
                Some(self.tensor_parallel()?.local(name, size))
            };
            found == size || slice() == Some(found)
        };
        let sizes = tensor.dims().iter().zip(&parameter.dims).enumerate();
        if tensor.rank() == parameter.dims.len() && sizes.into_iter().all(fits) {
            return Ok(tensor);
        }
        let (name, dims) = (self.name(parameter.name), &parameter.dims);
        let reason = format!("`{name}` is declared as {dims:?} here, but is {}", tensor.ty());
        Err(Error::new("parameter", reason))
    }

    /// A `Dropout` module over the residual stream.
    pub fn dropout(&self, name: &str, x: &Tensor, probability: f64) -> Result<Tensor> {
        self.leaf(name, "Dropout")?;
        self.functional_dropout(name, x, Activations::Residual, probability)
    }

    /// Dropout without a module; the name must be unique in this module.
    pub fn functional_dropout(
        &self,
        name: &str,
        x: &Tensor,
        of: Activations,
        probability: f64,
    ) -> Result<Tensor> {
        if probability == 0.0 {
            return Ok(x.clone());
        }
        self.tracer.dropout(&self.place, name, x, of, probability)
    }

    /// Whether the model is being trained, so that dropout is active.
    pub fn is_training(&self) -> bool {
        self.tracer.is_training()
    }

    /// Whether this is in a scan over layers, where one body is traced for all of them.
    pub fn is_scanned(&self) -> bool {
        matches!(self.place.layer, Some(Layer::Traced(_)))
    }

    /// The full name of a name in this module.
    pub fn name(&self, name: &str) -> String {
        self.place.name(name)
    }

    /// The index of the current layer, from 0, as an `i32`.
    pub fn layer(&self) -> Result<Tensor> {
        match &self.place.layer {
            Some(Layer::Known(index)) => constant(&[], &[*index as i32]),
            Some(Layer::Traced(index)) => Ok(index.clone()),
            None => Err(Error::new("layer", "not inside a stack of layers")),
        }
    }

    /// The compute dtype.
    pub fn compute_dtype(&self) -> DType {
        self.tracer.compute_dtype()
    }

    /// The lowering options of the platform.
    pub fn lowering(&self) -> LoweringOptions {
        self.tracer.lowering()
    }

    /// Whether all of this is recomputed in the backward pass.
    pub fn is_recomputed(&self) -> bool {
        self.tracer.is_recomputed()
    }

    /// The devices that share sequences, if each has only some tokens of them.
    pub fn context(&self) -> Option<&ContextAxis> {
        self.tracer.context()
    }

    /// The key of a dropout with a name unique in this module; none when not training.
    pub(crate) fn dropout_key(&self, name: &str) -> Result<Option<Key>> {
        self.tracer.dropout_key(&self.place, name)
    }

    /// The slices of layers that devices compute with, if they do not have full ones.
    pub fn tensor_parallel(&self) -> Option<&TensorParallel> {
        self.tracer.tensor_parallel()
    }

    /// The automatic axes of the mesh, if there are any. Layers then have full sizes.
    pub fn annotations(&self) -> Option<&Annotations> {
        self.tracer.annotations()
    }

    /// Whether matmuls here are in FP8: those of layers, if enabled.
    pub fn uses_fp8(&self) -> bool {
        self.place.layer.is_some() && self.tracer.uses_fp8()
    }

    /// A buffer (a table that is not a parameter), converted to the buffer dtype.
    pub fn buffer(&self, table: &Tensor) -> Result<Tensor> {
        table.convert(self.tracer.buffer_dtype())
    }

    pub(crate) fn declare(&self, declaration: Declaration<'_>) -> Result<()> {
        self.tracer.declare(&self.place, declaration)
    }

    fn child(&self, name: &str) -> Scope<'a> {
        let path = join(&self.place.path, name);
        Scope { tracer: self.tracer, place: Place { path, layer: self.place.layer.clone() } }
    }
}
