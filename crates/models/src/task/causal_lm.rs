//! Causal language modeling.

use super::{InputSpec, Loss, Task};
use crate::context_parallel::ContextAxis;
use crate::layers::loss;
use fullshard_graph::{DType, Result, Tensor};

/// Predicts each token from those before it. Inputs are tokens `[batch, sequence]`; labels have the
/// same shape and are not shifted. Labels outside the vocabulary, such as -100, are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CausalLm {
    /// The vocabulary size.
    pub vocabulary: usize,
}

impl Task for CausalLm {
    type Inputs = Tensor;
    type Labels = Tensor;

    fn name(&self) -> &'static str {
        "causal-lm"
    }

    fn inputs(&self, sequence: usize) -> Vec<InputSpec> {
        vec![InputSpec::new("input_ids", DType::I32, &[sequence])]
    }

    fn labels(&self, sequence: usize) -> Vec<InputSpec> {
        vec![InputSpec::new("labels", DType::I32, &[sequence])]
    }

    fn label_count(&self, labels: &Tensor) -> Result<Tensor> {
        loss::label_count(labels, self.vocabulary)
    }

    fn own_tokens(&self, context: &ContextAxis, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        inputs.iter().map(|tokens| context.own_tokens(tokens, 1)).collect()
    }

    /// From logits `[batch, sequence, vocabulary]`.
    fn loss(&self, logits: &Tensor, labels: &Tensor) -> Result<Loss> {
        loss::reference(logits, labels)
    }
}
