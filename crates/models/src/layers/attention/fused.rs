//! Attention as one kernel of cuDNN, forward and backward, which saves no probabilities.
//!
//! The kernel is a custom call that XLA's GPU compiler knows. What it cannot do is reported by
//! [`unsupported_reason`], and computed in blocks instead.
//!
//! What it drops follows from a seed, which stands in the call, and from a counter, which the
//! runtime keeps for each call in a program and moves on each time the call runs. So calls with one
//! seed that run equally often drop the same: in the forward pass, when that is recomputed, and in
//! the backward pass. The seed is made from the name of the place, which makes every layer's its own. In
//! a loop over layers the backward pass runs through the counter in the wrong order; and a CUDA graph
//! would keep the counter as it was when it was recorded, so programs with calls that drop need the
//! flag [`GRAPHS_WITHOUT_CUDNN`]. Three things differ from the dropout of other forms: the
//! counter begins anew with the process, the seed of the run plays no part, and all devices drop
//! the same of the sequences they each have.

use super::{Form, Heads, Pattern};
use crate::layers::checkpoint;
use fullshard_graph::{
    DType, Error, Key, Result, Tensor, TensorType, custom_call, custom_vjp, zeros,
};
use serde_json::{Value, json};

/// The widest head of the kernel on all GPUs that have it.
const WIDEST: usize = 128;

/// The dimension order in which the kernel reads: `[batch, sequence, heads, head]` as written.
const STRAIGHT: &[usize] = &[3, 2, 1, 0];

/// The order in which it writes `[batch, heads, sequence, head]`: the same bytes as above.
const SWAPPED: &[usize] = &[3, 1, 2, 0];

/// The version of the calling convention with configurations in JSON.
const JSON_CONFIG: i32 = 2;

/// The compiler's flag for programs in which the kernel drops: all that XLA puts into CUDA graphs
/// but for cuDNN's kernels.
pub const GRAPHS_WITHOUT_CUDNN: &str = "xla_gpu_enable_command_buffer=CONDITIONAL,CUBLAS,CUBLASLT,\
     CUSTOM_CALL,DYNAMIC_SLICE_FUSION,FUSION";

/// What the seed is where nothing is dropped, so that all such calls are the same to the compiler.
const NO_SEED: u32 = 42;

/// Why the kernel cannot compute it, if it cannot, for layers that are scanned or not.
pub fn unsupported_reason(
    dtype: DType,
    sequence: usize,
    head: usize,
    scores: Form,
    looped: bool,
) -> Option<String> {
    let reason = match () {
        () if !matches!(dtype, DType::Bf16 | DType::F16) => {
            format!("it computes in bf16 and f16, not in {}", dtype.name())
        }
        () if head > WIDEST || !head.is_multiple_of(8) => {
            format!("heads are {head} wide, but must be a multiple of 8 and at most {WIDEST}")
        }
        () if !sequence.is_multiple_of(2) => format!("{sequence} tokens are an odd number"),
        () if scores.dropout > 0.0 && looped => {
            "in a loop over layers it would drop other probabilities in the backward pass".into()
        }
        () if head == 0 => "the model has no attention heads".into(),
        () if scores.pattern != Pattern::Causal => {
            format!("the mask is {}, but the kernel here is for causal ones", scores.pattern)
        }
        () if scores.padding => "keys can be padding, which the kernel here does not mask".into(),
        () if scores.upcast => "matmuls in f32 are requested".into(),
        () if scores.factor.is_none() => "scores are scaled by the layer".into(),
        () => return None,
    };
    Some(reason)
}

/// Causal attention, `[batch, heads, sequence, head]`, by the kernel. The name is that of what is
/// dropped, and no other's in the program.
pub fn fused(heads: &Heads, scores: Form, name: &str) -> Result<Tensor> {
    let factor = scores.factor.ok_or_else(|| wrong("scores of a known scale"))?;
    let kernel = Kernel { factor, dropout: scores.dropout, seed: seed(scores.dropout, name) };
    let straight = |x: &Tensor| x.transpose(&[0, 2, 1, 3]);
    let inputs = [straight(&heads.query)?, straight(&heads.key)?, straight(&heads.value)?];
    let [query, key, value] = &inputs;
    let constants = [query.stop_gradient()?, key.stop_gradient()?, value.stop_gradient()?];
    let (attn_out, sums) = kernel.forward(&constants)?;
    let (attn_out, sums) =
        (attn_out.named(checkpoint::ATTN_OUT)?, sums.named(checkpoint::ATTN_STATS)?);
    // The results go in, and the kernel's gradients are those of what they were made of: so they
    // are values like any other, which may be saved where all around is recomputed.
    let mut results = custom_vjp(
        &[query, key, value, &sums, &attn_out],
        |inputs| Ok(vec![result(&inputs)?]),
        |inputs| Ok((vec![result(&inputs)?], inputs)),
        |kept, gradients| kernel.gradients(&kept, &gradients[0]),
    )?;
    straight(&results.pop().ok_or_else(|| wrong("one result"))?)
}

/// The last of what goes into the gradient's rule.
fn result(inputs: &[Tensor]) -> Result<Tensor> {
    inputs.last().cloned().ok_or_else(|| wrong("five inputs"))
}

fn wrong(what: &str) -> Error {
    Error::new("attention", format!("the fused kernel has {what}"))
}

fn seed(dropout: f64, name: &str) -> u32 {
    if dropout > 0.0 { Key::hash(name)[0] } else { NO_SEED }
}

/// What the kernel is given in both directions.
#[derive(Clone, Copy)]
struct Kernel {
    /// What scores are multiplied by.
    factor: f64,
    /// The probability that a probability is dropped.
    dropout: f64,
    /// What is dropped follows from this and from how often the call ran.
    seed: u32,
}

impl Kernel {
    /// The values weighed, `[batch, sequence, heads, head]`, and what the backward pass needs of the
    /// sums.
    fn forward(&self, inputs: &[Tensor]) -> Result<(Tensor, Tensor)> {
        let &[batch, sequence, heads, _] = inputs[0].dims() else { return Err(wrong("four dims")) };
        let sums = TensorType::new(DType::F32, &[batch, heads, sequence]);
        let results = custom_call(&self.target(""))
            .backend_config(&self.config(inputs, &FORWARD_PRODUCTS), JSON_CONFIG)
            .layouts(&[STRAIGHT; 3], &[SWAPPED, &[2, 1, 0], &[0]])
            .call(
                &[&inputs[0], &inputs[1], &inputs[2]],
                &[swapped(&inputs[0]), sums, workspace()],
            )?;
        Ok((results[0].transpose(&[0, 2, 1, 3])?, results[1].clone()))
    }

    /// The gradients of queries, keys and values, and zeros for what was made of them.
    fn gradients(&self, kept: &[Tensor], gradient: &Tensor) -> Result<Vec<Tensor>> {
        let [query, key, value, sums, attn_out] = kept else {
            return Err(wrong("five kept values"));
        };
        let types = [swapped(query), swapped(key), swapped(value), workspace()];
        let operands = [STRAIGHT, STRAIGHT, STRAIGHT, &[2, 1, 0], STRAIGHT, STRAIGHT];
        let results = custom_call(&self.target("Backward"))
            .backend_config(&self.config(kept, &BACKWARD_PRODUCTS), JSON_CONFIG)
            .layouts(&operands, &[SWAPPED, SWAPPED, SWAPPED, &[0]])
            .call(&[query, key, value, sums, gradient, attn_out], &types)?;
        let gradients = results[..3].iter().map(|gradient| gradient.transpose(&[0, 2, 1, 3]));
        let zeros = [sums, attn_out].map(|made| zeros(made.dtype(), made.dims()));
        gradients.chain(zeros).collect()
    }

    /// What is called in a direction.
    fn target(&self, direction: &str) -> String {
        let dropout = if self.dropout > 0.0 { "Dropout" } else { "" };
        format!("__cudnn$fmhaSoftmax{dropout}{direction}")
    }

    /// What the compiler is given of the kernel.
    fn config(&self, inputs: &[Tensor], products: &[Product]) -> String {
        let (query, key) = (inputs[0].dims(), inputs[1].dims());
        let strings = |numbers: &[usize]| -> Vec<String> {
            numbers.iter().map(ToString::to_string).collect()
        };
        let element = if inputs[0].dtype() == DType::F16 { "F16" } else { "BF16" };
        let mut kernel = json!({
            "algorithm": {
                "algo_id": "0",
                "math_type": "TENSOR_OP_MATH",
                "tuning_knobs": {"17": "1", "24": "0"},
                "is_cudnn_frontend": true,
                "workspace_size": "0",
            },
            "fmha_scale": self.factor,
            "intermediate_tensor_shape": {
                "element_type": element,
                "dimensions": strings(&[query[0], query[2], query[1], key[1]]),
                "tuple_shapes": [],
                "layout": {"minor_to_major": strings(STRAIGHT)},
                "is_dynamic_dimension": [false, false, false, false],
            },
            "is_flash_attention": true,
            "mask_type": "CAUSAL",
            "dropout_rate": self.dropout,
            "seed": self.seed,
            "sliding_window_length": 0,
            "max_seg_per_batch": 1,
            "is_paged_attention": false,
        });
        for &(name, lhs_batch, lhs, rhs_batch, rhs) in products {
            kernel[name] = json!({
                "lhs_contracting_dimensions": strings(&[lhs]),
                "rhs_contracting_dimensions": strings(&[rhs]),
                "lhs_batch_dimensions": strings(&lhs_batch),
                "rhs_batch_dimensions": strings(&rhs_batch),
            });
        }
        let config: Value = json!({"operation_queue_id": "0", "cudnn_fmha_backend_config": kernel});
        config.to_string()
    }
}

/// The type of `[batch, sequence, heads, head]` with heads before the sequence.
fn swapped(x: &Tensor) -> TensorType {
    let dims = x.dims();
    TensorType::new(x.dtype(), &[dims[0], dims[2], dims[1], dims[3]])
}

/// Scratch memory, whose size the compiler fills in.
fn workspace() -> TensorType {
    TensorType::new(DType::U8, &[0])
}

/// A product of the kernel: its name, and the batch and contracted dims of its operands.
type Product = (&'static str, [usize; 2], usize, [usize; 2], usize);

const FORWARD_PRODUCTS: [Product; 2] = [
    ("bmm1_dot_dimension_numbers", [0, 2], 3, [0, 2], 3),
    ("bmm2_dot_dimension_numbers", [0, 1], 3, [0, 2], 1),
];

const BACKWARD_PRODUCTS: [Product; 4] = [
    ("bmm1_grad_gemm1_dot_dimension_numbers", [0, 1], 2, [0, 2], 1),
    ("bmm1_grad_gemm2_dot_dimension_numbers", [0, 1], 3, [0, 2], 1),
    ("bmm2_grad_gemm1_dot_dimension_numbers", [0, 1], 2, [0, 2], 1),
    ("bmm2_grad_gemm2_dot_dimension_numbers", [0, 2], 3, [0, 2], 3),
];
