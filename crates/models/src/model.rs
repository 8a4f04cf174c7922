//! What every language model can do.

use crate::layers::attention::Form;
use crate::module::Module;
use crate::scope::Scope;
use fullshard_graph::{Result, Tensor};

/// A model that predicts the next token.
pub trait CausalLm: std::fmt::Debug {
    /// What it is made of.
    fn tree(&self) -> Module;

    /// Its sizes.
    fn dimensions(&self) -> Dimensions;

    /// What its attention asks of the form that computes it.
    fn attention_form(&self) -> Form;

    /// The scores of each token of the vocabulary to come next, `[batch, sequence, vocabulary]`
    /// in the type to compute in, for tokens `[batch, sequence]` in `i32`.
    fn logits(&self, scope: &Scope<'_>, tokens: &Tensor) -> Result<Tensor>;

    /// The loss of predicting each token from those before it. Labels are `[batch, sequence]` in
    /// `i32` and not shifted; those that are no token of the vocabulary, such as -100, do not
    /// count.
    fn loss(&self, scope: &Scope<'_>, tokens: &Tensor, labels: &Tensor) -> Result<Loss>;
}

/// A summed loss. The mean is `sum / count`, over however many devices and steps are added up.
#[derive(Debug, Clone)]
pub struct Loss {
    /// The sum of the cross-entropies, `f32` (`f64` in a model computed in that).
    pub sum: Tensor,
    /// The number of labels that count, of the same type.
    pub count: Tensor,
}

/// The sizes of a model that its cost depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
