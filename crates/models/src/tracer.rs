//! Tracers: return the parameters of a model and decide how its modules and layers are run.

use crate::annotations::Annotations;
use crate::context_parallel::ContextAxis;
use crate::layers::attention::Form;
use crate::lowering::LoweringOptions;
use crate::module::{Parameter, join};
use crate::tensor_parallel::TensorParallel;
use fullshard_graph::{DType, Key, Result, Tensor};

/// A place in a model.
///
/// In a stack of layers the path has a `*` for the layer index: `transformer.h.*.attn`.
#[derive(Debug, Clone, Default)]
pub struct Place {
    /// The path of the module, empty at the root.
    pub path: String,
    /// The layer, inside a stack of layers.
    pub layer: Option<Layer>,
}

/// Which layer of a stack is being traced.
#[derive(Debug, Clone)]
pub enum Layer {
    /// A static index: layers are unrolled.
    Known(usize),
    /// A traced index: layers are scanned.
    Traced(Tensor),
}

/// A module body that a tracer runs.
pub type Body<'a> = Box<dyn FnOnce() -> Result<Vec<Tensor>> + 'a>;

/// One layer of a stack, as a function of its carries.
pub type LayerBody<'a> = &'a dyn Fn(&Place, Vec<Tensor>) -> Result<Vec<Tensor>>;

/// Metadata that a model declares. Only its module tree depends on it, not what is computed.
#[derive(Debug, Clone, Copy)]
pub enum Declaration<'a> {
    /// A child module.
    Module {
        /// Its name.
        name: &'a str,
        /// Its class, such as `GPT2Attention`.
        class: &'static str,
    },
    /// A stack of identical layers in this module.
    Layers {
        /// The name of the list.
        name: &'a str,
        /// The class of each layer.
        class: &'static str,
        /// The number of layers.
        count: usize,
    },
    /// The order of the child modules, if not the order of use. Those that are not listed follow.
    Order(&'a [&'a str]),
    /// This module computes attention.
    Attention(Form),
    /// The model has a residual stream whose tokens can be sharded.
    ResidualStream,
}

/// Which dimensions of activations may be sharded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activations {
    /// The residual stream, `[tokens, width]` or `[batch, sequence, width]`.
    Residual,
    /// Attention probabilities, `[batch, key heads, group, queries, keys]`.
    Attention,
}

/// Traces a model.
pub trait Tracer {
    /// Runs the module at a place.
    fn module(&self, place: &Place, body: Body<'_>) -> Result<Vec<Tensor>>;

    /// Runs a stack of identical layers in sequence. `place` is that of the list.
    fn layers(
        &self,
        place: &Place,
        count: usize,
        carries: Vec<Tensor>,
        body: LayerBody<'_>,
    ) -> Result<Vec<Tensor>>;

    /// A parameter of the module at a place, in the compute dtype: full, or this device's slice if
    /// tensor parallelism slices one of its dims. With [`Annotations`], a dim that they shard may
    /// be padded, and one of fused parts is two.
    fn parameter(&self, place: &Place, parameter: &Parameter) -> Result<Tensor>;

    /// Dropout over activations, with a name unique in its module. Returns the tensor unchanged
    /// when not training.
    fn dropout(
        &self,
        place: &Place,
        name: &str,
        x: &Tensor,
        of: Activations,
        probability: f64,
    ) -> Result<Tensor>;

    /// Whether the model is being trained, so that dropout is active.
    fn is_training(&self) -> bool;

    /// The compute dtype.
    fn compute_dtype(&self) -> DType;

    /// Records a declaration of the module at a place.
    fn declare(&self, _: &Place, _: Declaration<'_>) -> Result<()> {
        Ok(())
    }

    /// The dtype of buffers, such as rotary tables.
    fn buffer_dtype(&self) -> DType {
        self.compute_dtype()
    }

    /// The lowering options of the platform.
    fn lowering(&self) -> LoweringOptions {
        LoweringOptions::default()
    }

    /// Whether everything being traced is recomputed in the backward pass.
    fn is_recomputed(&self) -> bool {
        false
    }

    /// The devices that share sequences, if each has only some tokens of them.
    fn context(&self) -> Option<&ContextAxis> {
        None
    }

    /// The key of a dropout with a name unique in its module; none when not training.
    fn dropout_key(&self, _: &Place, _: &str) -> Result<Option<Key>> {
        Ok(None)
    }

    /// The slices of layers that devices compute with, if they do not have full ones.
    fn tensor_parallel(&self) -> Option<&TensorParallel> {
        None
    }

    /// The automatic axes of the mesh, if there are any.
    fn annotations(&self) -> Option<&Annotations> {
        None
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

    /// The path of the module: as in the tree if the layer index is static, else with a `*` for the
    /// layer.
    pub fn module_path(&self) -> String {
        match &self.layer {
            Some(Layer::Known(index)) => self.path.replacen('*', &index.to_string(), 1),
            _ => self.path.clone(),
        }
    }

    /// The full name of a name in the module.
    pub fn name(&self, name: &str) -> String {
        join(&self.module_path(), name)
    }
}
