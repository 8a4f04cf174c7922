//! Who traces a model: hands out its parameters and decides how its parts are run.

use crate::layers::attention::Form;
use crate::lowering::LoweringOptions;
use crate::module::{Parameter, join};
use fullshard_graph::{DType, Result, Tensor};

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
    /// This one: layers are unrolled.
    Known(usize),
    /// The one that a number says at run time: layers are scanned.
    Traced(Tensor),
}

/// A part of a model that a tracer runs.
pub type Body<'a> = Box<dyn FnOnce() -> Result<Vec<Tensor>> + 'a>;

/// One layer of a stack, as a function of the values that go from layer to layer.
pub type LayerBody<'a> = &'a dyn Fn(&Place, Vec<Tensor>) -> Result<Vec<Tensor>>;

/// What a model says of itself beside its mathematics. Nothing that is computed depends on it:
/// only its module tree does.
#[derive(Debug, Clone, Copy)]
pub enum Declaration<'a> {
    /// A module inside this one.
    Module {
        /// Its name.
        name: &'a str,
        /// Its class, such as `GPT2Attention`.
        class: &'static str,
    },
    /// A stack of equal layers inside this module.
    Layers {
        /// The name of the list.
        name: &'a str,
        /// The class of each layer.
        class: &'static str,
        /// The number of layers.
        count: usize,
    },
    /// The order of the modules inside this one, where it is not that of their use. Those that are
    /// not named follow.
    Order(&'a [&'a str]),
    /// That this module computes attention.
    Attention(Form),
}

/// Who traces a model.
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

    /// A parameter of the module at a place: full, and in the type to compute in.
    fn parameter(&self, place: &Place, parameter: &Parameter) -> Result<Tensor>;

    /// Dropout over a tensor whose first dimension is the batch, by a name unique in its module.
    /// When the model is not being trained, the tensor itself.
    fn dropout(&self, place: &Place, name: &str, x: &Tensor, probability: f64) -> Result<Tensor>;

    /// Whether the model is being trained, so that dropout drops.
    fn is_training(&self) -> bool;

    /// The type to compute in.
    fn compute_dtype(&self) -> DType;

    /// Takes note of what the module at a place says of itself.
    fn declare(&self, _: &Place, _: Declaration<'_>) -> Result<()> {
        Ok(())
    }

    /// The type of tables that are no parameters, such as rotary angles.
    fn buffer_dtype(&self) -> DType {
        self.compute_dtype()
    }

    /// Which of several forms that agree suit the platform.
    fn lowering(&self) -> LoweringOptions {
        LoweringOptions::default()
    }

    /// Whether all that is being traced is recomputed in the backward pass.
    fn is_recomputed(&self) -> bool {
        false
    }

    /// Whether the matmuls of layers are in FP8.
    fn uses_fp8(&self) -> bool {
        false
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
