//! What a model sees while it is traced: its parameters by name, its modules, its layers.

use crate::forms::Forms;
use crate::module::join;
use fullshard_graph::{DType, Error, Result, Tensor, constant, module};

/// Where in a model something is.
///
/// In a stack of equal layers the path has a `*` for the layer's number: `transformer.h.*.attn`.
#[derive(Debug, Clone, Default)]
pub struct Place {
    /// The path of the module, empty at the root.
    pub path: String,
    /// The layer, inside a stack of them.
    pub layer: Option<Layer>,
}

/// Which layer of a stack is being traced.
#[derive(Debug, Clone)]
pub enum Layer {
    /// This one: layers are written out.
    Known(usize),
    /// The one that a number says at run time: layers are a loop.
    Traced(Tensor),
}

/// A part of a model that a tracer runs.
pub type Body<'a> = Box<dyn FnOnce() -> Result<Vec<Tensor>> + 'a>;

/// One layer of a stack, as a function of the values that go from layer to layer.
pub type LayerBody<'a> = &'a dyn Fn(&Place, Vec<Tensor>) -> Result<Vec<Tensor>>;

/// Who traces a model: hands out its parameters and decides how its parts are run.
pub trait Tracer {
    /// Runs the module at a place.
    fn module(&self, place: &Place, body: Body<'_>) -> Result<Vec<Tensor>>;

    /// Runs a stack of equal layers, one after another. `place` is that of the list.
    fn layers(
        &self,
        place: &Place,
        count: usize,
        carries: Vec<Tensor>,
        body: LayerBody<'_>,
    ) -> Result<Vec<Tensor>>;

    /// A parameter of the module at a place, whole and in the type to compute in.
    fn parameter(&self, place: &Place, name: &str) -> Result<Tensor>;

    /// Dropout over a tensor whose first dimension is the batch, by a name unique in its module.
    /// When the model is not being trained, the tensor itself.
    fn dropout(&self, place: &Place, name: &str, x: &Tensor, probability: f64) -> Result<Tensor>;

    /// Whether the model is being trained, so that dropout drops.
    fn is_training(&self) -> bool;

    /// The type to compute in.
    fn compute_dtype(&self) -> DType;

    /// The type of tables that are no parameters, such as rotary angles.
    fn buffer_dtype(&self) -> DType {
        self.compute_dtype()
    }

    /// Which forms of the same mathematics suit the platform.
    fn forms(&self) -> Forms {
        Forms::default()
    }

    /// Whether all that is being traced is computed again on the way back.
    fn is_recomputed(&self) -> bool {
        false
    }

    /// Whether the matrix products of layers are of 8-bit numbers.
    fn has_eight_bit_products(&self) -> bool {
        false
    }
}

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

    /// Traces the module of a name inside this one.
    pub fn module(
        &self,
        name: &str,
        trace: impl FnOnce(&Scope<'_>) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let mut outputs = self.module_of_many(name, |scope| Ok(vec![trace(scope)?]))?;
        outputs.pop().ok_or_else(|| Error::new(name, "a module that gives nothing"))
    }

    /// Traces the module of a name inside this one, which gives several values.
    pub fn module_of_many(
        &self,
        name: &str,
        trace: impl FnOnce(&Scope<'_>) -> Result<Vec<Tensor>>,
    ) -> Result<Vec<Tensor>> {
        let inner = self.inside(name);
        module(name, || self.tracer.module(&inner.place, Box::new(|| trace(&inner))))
    }

    /// Traces a stack of `count` equal layers, each a function of what the one before gives.
    pub fn layers(
        &self,
        name: &str,
        count: usize,
        x: &Tensor,
        layer: impl Fn(&Scope<'_>, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let list = self.inside(name).place;
        let body = |place: &Place, carries: Vec<Tensor>| {
            let scope = Scope { tracer: self.tracer, place: place.clone() };
            Ok(vec![layer(&scope, &carries[0])?])
        };
        let run = || self.tracer.layers(&list, count, vec![x.clone()], &body);
        let mut carries = module(name, run)?;
        carries.pop().ok_or_else(|| Error::new(name, "layers that give nothing"))
    }

    /// A parameter of this module.
    pub fn parameter(&self, name: &str) -> Result<Tensor> {
        self.tracer.parameter(&self.place, name)
    }

    /// Dropout over a tensor whose first dimension is the batch; the name is this use's own in
    /// the module.
    pub fn dropout(&self, name: &str, x: &Tensor, probability: f64) -> Result<Tensor> {
        if probability == 0.0 {
            return Ok(x.clone());
        }
        self.tracer.dropout(&self.place, name, x, probability)
    }

    /// Whether the model is being trained, so that dropout drops.
    pub fn is_training(&self) -> bool {
        self.tracer.is_training()
    }

    /// Whether this is in a loop over layers, where one text stands for all of them.
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

    /// Which forms of the same mathematics suit the platform.
    pub fn forms(&self) -> Forms {
        self.tracer.forms()
    }

    /// Whether all of this is computed again on the way back.
    pub fn is_recomputed(&self) -> bool {
        self.tracer.is_recomputed()
    }

    /// Whether the matrix products here are of 8-bit numbers: those of layers, where asked for.
    pub fn has_eight_bit_products(&self) -> bool {
        self.place.layer.is_some() && self.tracer.has_eight_bit_products()
    }

    /// A table that is no parameter, rounded to the type such tables have.
    pub fn buffer(&self, table: &Tensor) -> Result<Tensor> {
        table.convert(self.tracer.buffer_dtype())
    }

    fn inside(&self, name: &str) -> Scope<'a> {
        let path = join(&self.place.path, name);
        Scope { tracer: self.tracer, place: Place { path, layer: self.place.layer.clone() } }
    }
}

impl Place {
    /// A layer of the list at this place.
    pub fn layer(&self, layer: Layer) -> Place {
        Place { path: join(&self.path, "*"), layer: Some(layer) }
    }

    /// The path of the module: as the tree has it if the layer is known, with a `*` for the
    /// layer if it is not.
    pub fn module_path(&self) -> String {
        match &self.layer {
            Some(Layer::Known(index)) => self.path.replacen('*', &index.to_string(), 1),
            _ => self.path.clone(),
        }
    }

    /// The full name of something in the module.
    pub fn name(&self, name: &str) -> String {
        join(&self.module_path(), name)
    }
}
