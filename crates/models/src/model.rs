//! Models: what an architecture implements, and the same with its task's types erased.

use crate::declare::{Declared, declare};
use crate::layers::attention::Form;
use crate::module::Module;
use crate::scope::Scope;
use crate::task::{CausalLm, FromTensors, InputSpec, Loss, Task};
use fullshard_graph::{Error, Result, Tensor};
use std::sync::Arc;

/// A model for a task. It does not know whether it is sharded, scanned or recomputed: that is the
/// business of the [`Tracer`](crate::Tracer) behind the scope.
pub trait Model<T: Task = CausalLm>: std::fmt::Debug {
    /// The class of the model in Hugging Face's library, such as `GPT2LMHeadModel`.
    fn class(&self) -> &'static str;

    /// What it is fed and what is minimised.
    fn task(&self) -> T;

    /// Its sizes.
    fn dimensions(&self) -> Dimensions;

    /// The output for a batch, which the task's loss is of: logits, for most tasks. All parameters
    /// are declared here.
    fn forward(&self, nn: &Scope<'_>, inputs: &T::Inputs) -> Result<Tensor>;

    /// The loss on a batch. A model may compute it in a way of its own, such as without ever having
    /// all logits in memory, from the parameters that [`Model::forward`] declares.
    fn loss(&self, nn: &Scope<'_>, inputs: &T::Inputs, labels: &T::Labels) -> Result<Loss> {
        self.task().loss(&self.forward(nn, inputs)?, labels)
    }

    /// The length of sequence that it is traced with to learn its module tree: a short one, unless
    /// it is made for one length only.
    fn declared_sequence(&self) -> usize {
        self.dimensions().positions.min(2)
    }
}

/// The sizes of a model that its cost depends on. Those that a model does not have are zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dimensions {
    /// Layers.
    pub layers: usize,
    /// The width of the stream between layers.
    pub hidden: usize,
    /// Attention heads.
    pub heads: usize,
    /// The width of a head.
    pub head: usize,
    /// The width inside the feed-forward part.
    pub inner: usize,
    /// Tokens in the vocabulary.
    pub vocabulary: usize,
    /// The longest sequence.
    pub positions: usize,
}

/// A [`Model`] of any task. [`boxed`] makes one.
pub trait AnyModel: std::fmt::Debug {
    /// The class of the model in Hugging Face's library, such as `GPT2LMHeadModel`.
    fn class(&self) -> &'static str;

    /// What it is made of.
    fn tree(&self) -> Arc<Module>;

    /// Its sizes.
    fn dimensions(&self) -> Dimensions;

    /// What its attention asks of the form that computes it.
    fn attention_form(&self) -> Form;

    /// The name of its task, such as `causal-lm`.
    fn task(&self) -> &'static str;

    /// What one example is fed as, in order: inputs, then labels.
    fn batch(&self, sequence: usize) -> Vec<InputSpec>;

    /// The number of labels that count in a batch, one `f32`. Batches may be stacked.
    fn label_count(&self, batch: &[Tensor]) -> Result<Tensor>;

    /// The loss on a batch.
    fn loss(&self, nn: &Scope<'_>, batch: &[Tensor]) -> Result<Loss>;

    /// The output for the inputs of a batch.
    fn logits(&self, nn: &Scope<'_>, inputs: &[Tensor]) -> Result<Tensor>;
}

/// A model with its task's types erased. It is traced once, to learn its module tree.
pub fn boxed<T: Task + 'static>(model: impl Model<T> + 'static) -> Result<Box<dyn AnyModel>> {
    let task = model.task();
    let specs = task.inputs(model.declared_sequence());
    let Declared { tree, attention } = declare(model.class(), &specs, |nn, inputs| {
        model.forward(nn, &T::Inputs::from_tensors(&inputs)?)
    })?;
    Ok(Box::new(Erased { model, task, tree: Arc::new(tree), attention, inputs: specs.len() }))
}

#[derive(Debug)]
struct Erased<M, T> {
    model: M,
    task: T,
    tree: Arc<Module>,
    attention: Form,
    /// How many tensors of a batch are inputs; the rest are labels.
    inputs: usize,
}

impl<M, T> Erased<M, T> {
    fn split<'b>(&self, batch: &'b [Tensor]) -> Result<(&'b [Tensor], &'b [Tensor])> {
        let few = || Error::new("batch", format!("{} tensors have no labels", batch.len()));
        batch.split_at_checked(self.inputs).ok_or_else(few)
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
        self.model.loss(nn, &T::Inputs::from_tensors(inputs)?, &T::Labels::from_tensors(labels)?)
    }

    fn logits(&self, nn: &Scope<'_>, inputs: &[Tensor]) -> Result<Tensor> {
        self.model.forward(nn, &T::Inputs::from_tensors(inputs)?)
    }
}
