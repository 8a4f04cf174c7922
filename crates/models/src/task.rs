//! Tasks: the inputs and the loss of a model.
//!
//! A task defines the tensors of a batch by name, type and order, and the loss of a model's output.
//! [`CausalLm`] is built in; other crates can define their own.

mod causal_lm;

pub use causal_lm::CausalLm;

use crate::context_parallel::ContextAxis;
use fullshard_graph::{DType, Error, Result, Tensor, TensorType};

/// Inputs, labels and loss.
pub trait Task: std::fmt::Debug {
    /// The inputs of a model.
    type Inputs: FromTensors;
    /// The labels its output is compared with.
    type Labels: FromTensors;

    /// Its name, such as `causal-lm`.
    fn name(&self) -> &'static str;

    /// The inputs of one example, in order. Tasks without sequences ignore the length.
    fn inputs(&self, sequence: usize) -> Vec<InputSpec>;

    /// The labels of one example, in order.
    fn labels(&self, sequence: usize) -> Vec<InputSpec>;

    /// The number of labels that count, one `f32`. There may be more than one leading dimension:
    /// microbatches are stacked.
    fn label_count(&self, labels: &Self::Labels) -> Result<Tensor>;

    /// The tokens of the inputs that this device has, if sequences are sharded. Labels stay full.
    fn own_tokens(&self, context: &ContextAxis, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let _ = (context, inputs);
        let reason = format!("sequences of the task {} cannot be sharded", self.name());
        Err(Error::new("context", reason + "; leave `context` out of the mesh"))
    }

    /// The loss of a model's output on a batch.
    fn loss(&self, output: &Tensor, labels: &Self::Labels) -> Result<Loss>;
}

/// An input tensor, per example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputSpec {
    /// Its name, such as `input_ids`.
    pub name: &'static str,
    /// The type of its elements.
    pub dtype: DType,
    /// Its dimensions, without the batch dimension.
    pub dims: Vec<usize>,
}

/// A summed loss. The mean is `sum / count`, after summing both over devices and microbatches.
#[derive(Debug, Clone)]
pub struct Loss {
    /// The sum over the labels that count, `f32` (`f64` if the compute dtype is).
    pub sum: Tensor,
    /// The number of labels that count, of the same type.
    pub count: Tensor,
}

/// The typed inputs or labels of a task, built from tensors in the order of its specs.
pub trait FromTensors: Sized {
    /// Builds it from the tensors.
    fn from_tensors(tensors: &[Tensor]) -> Result<Self>;
}

/// A single tensor needs no struct.
impl FromTensors for Tensor {
    fn from_tensors(tensors: &[Tensor]) -> Result<Tensor> {
        let [tensor] = take_fields(tensors)?;
        Ok(tensor)
    }
}

/// The tensors as an array of the fields of a struct.
pub fn take_fields<const FIELDS: usize>(tensors: &[Tensor]) -> Result<[Tensor; FIELDS]> {
    tensors.to_vec().try_into().map_err(|found: Vec<Tensor>| {
        Error::new("batch", format!("{} tensors were given for {FIELDS} fields", found.len()))
    })
}

impl InputSpec {
    /// A tensor with a name.
    pub fn new(name: &'static str, dtype: DType, dims: &[usize]) -> InputSpec {
        InputSpec { name, dtype, dims: dims.to_vec() }
    }

    /// Its type with leading dimensions, such as the batch.
    pub fn batched(&self, leading: &[usize]) -> TensorType {
        TensorType::new(self.dtype, &[leading, &self.dims].concat())
    }
}
