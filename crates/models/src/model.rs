//! Models: the trait that an architecture implements, and its type-erased form.

use crate::declare::{Declared, declare};
use crate::layers::attention::Form;
use crate::layers::checkpoint::Checkpoint;
use crate::module::Module;
use crate::scope::Scope;
use crate::task::{CausalLm, FromTensors, InputSpec, Loss, Task};
use fullshard_graph::{Error, Result, Tensor};
use std::sync::Arc;

/// A model for a task. Sharding, scanning and rematerialization are up to the
/// [`Tracer`](crate::Tracer) behind the scope.
pub trait Model<T: Task = CausalLm>: std::fmt::Debug {
    /// The class of the model in Hugging Face's library, such as `GPT2LMHeadModel`.
    fn class(&self) -> &'static str;

    /// Its inputs and its loss.
    fn task(&self) -> T;

    /// Its sizes.
    fn dimensions(&self) -> Dimensions;

    /// The output for a batch, from which the task computes the loss: logits, for most tasks. All
    /// parameters are declared here.
    fn forward(&self, nn: &Scope<'_>, inputs: &T::Inputs) -> Result<Tensor>;

    /// The loss on a batch. A model may override it, for example to avoid materializing all logits,
    /// with the parameters that [`Model::forward`] declares.
    fn loss(&self, nn: &Scope<'_>, inputs: &T::Inputs, labels: &T::Labels) -> Result<Loss> {
        self.task().loss(&self.forward(nn, inputs)?, labels)
    }

    /// The sequence length that it is traced with to get its module tree: a short one, unless the
    /// model supports one length only.
    fn declared_sequence(&self) -> usize {
        self.dimensions().positions.min(2)
    }
}

/// The sizes that determine the cost of a model. Those that do not apply are zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dimensions {
    /// Number of layers.
    pub layers: usize,
    /// The hidden size.
    pub hidden: usize,
    /// Number of attention heads.
    pub heads: usize,
    /// The head dimension.
    pub head: usize,
    /// The hidden size of the MLP.
    pub inner: usize,
    /// The vocabulary size.
    pub vocabulary: usize,
    /// The maximum sequence length.
    pub positions: usize,
}

/// A [`Model`] of any task. [`boxed`] makes one.
pub trait AnyModel: std::fmt::Debug {
    /// The class of the model in Hugging Face's library, such as `GPT2LMHeadModel`.
    fn class(&self) -> &'static str;

    /// Its module tree.
    fn tree(&self) -> Arc<Module>;

    /// Its sizes.
    fn dimensions(&self) -> Dimensions;

    /// What a form of attention must support to compute its attention.
    fn attention_form(&self) -> Form;

    /// Whether it has buffers, such as rotary tables: tables that are not parameters.
    fn has_buffers(&self) -> bool;

    /// Whether it has a residual stream whose tokens can be sharded: sequence parallelism.
    fn has_residual_stream(&self) -> bool;

    /// What its layers name for remat policies, in the order it is computed.
    fn checkpoints(&self) -> &[Checkpoint];

    /// The name of its task, such as `causal-lm`.
    fn task(&self) -> &'static str;

    /// The tensors of one example, in order: inputs, then labels.
    fn batch(&self, sequence: usize) -> Vec<InputSpec>;

    /// The number of labels that count in a batch, one `f32`. Batches may be stacked.
    fn label_count(&self, batch: &[Tensor]) -> Result<Tensor>;

    /// The loss on a batch.
    fn loss(&self, nn: &Scope<'_>, batch: &[Tensor]) -> Result<Loss>;

    /// The output for the inputs of a batch.
    fn logits(&self, nn: &Scope<'_>, inputs: &[Tensor]) -> Result<Tensor>;
}

/// A model with its task's types erased. It is traced once, to get its module tree.
pub fn boxed<T: Task + 'static>(model: impl Model<T> + 'static) -> Result<Box<dyn AnyModel>> {
    let task = model.task();
    let tokens = model.declared_sequence();
    let specs = task.inputs(tokens);
    let Declared { tree, attention, has_buffers, has_residual_stream, checkpoints } =
        declare(model.class(), &specs, tokens, |nn, inputs| {
            model.forward(nn, &T::Inputs::from_tensors(&inputs)?)
        })?;
    Ok(Box::new(Erased {
        model,
        task,
        tree: Arc::new(tree),
        attention,
        has_buffers,
        has_residual_stream,
        checkpoints,
        inputs: specs.len(),
    }))
}

#[derive(Debug)]
struct Erased<M, T> {
    model: M,
    task: T,
    tree: Arc<Module>,
    attention: Form,
    has_buffers: bool,
    has_residual_stream: bool,
    checkpoints: Vec<Checkpoint>,
    /// The number of tensors of a batch that are inputs; the rest are labels.
    inputs: usize,
}

impl<M, T> Erased<M, T> {
    fn split<'b>(&self, batch: &'b [Tensor]) -> Result<(&'b [Tensor], &'b [Tensor])> {
        let too_few =
            || Error::new("batch", format!("{} tensors are too few to have labels", batch.len()));
        batch.split_at_checked(self.inputs).ok_or_else(too_few)
    }
}

impl<T: Task, M: Model<T>> AnyModel for Erased<M, T> {
    fn class(&self) -> &'static str {
        self.model.class()
    }

    fn tree(&self) -> Arc<Module> {
        self.tree.clone()
    }

    fn dimensions(&self) -> Dimensions {
        self.model.dimensions()
    }

    fn attention_form(&self) -> Form {
        self.attention
    }

    fn has_buffers(&self) -> bool {
        self.has_buffers
    }

    fn has_residual_stream(&self) -> bool {
        self.has_residual_stream
    }

    fn checkpoints(&self) -> &[Checkpoint] {
        &self.checkpoints
    }

    fn task(&self) -> &'static str {
        self.task.name()
    }

    fn batch(&self, sequence: usize) -> Vec<InputSpec> {
        [self.task.inputs(sequence), self.task.labels(sequence)].concat()
    }

    fn label_count(&self, batch: &[Tensor]) -> Result<Tensor> {
        self.task.label_count(&T::Labels::from_tensors(self.split(batch)?.1)?)
    }

    fn loss(&self, nn: &Scope<'_>, batch: &[Tensor]) -> Result<Loss> {
        let (inputs, labels) = self.split(batch)?;
        let inputs = match nn.context() {
            Some(context) => self.task.own_tokens(context, inputs)?,
            None => inputs.to_vec(),
        };
        self.model.loss(nn, &T::Inputs::from_tensors(&inputs)?, &T::Labels::from_tensors(labels)?)
    }

    fn logits(&self, nn: &Scope<'_>, inputs: &[Tensor]) -> Result<Tensor> {
        self.model.forward(nn, &T::Inputs::from_tensors(inputs)?)
    }
}
