//! Attention as a cuDNN kernel, forward and backward, which saves no probabilities.
//!
//! The kernel is a custom call that XLA's GPU compiler supports. [`unsupported_reason`] reports
//! what it does not support, which is computed in blocks instead.
//!
//! The dropout mask is determined by a seed, which is part of the call, and by a counter, which the
//! runtime keeps per call in a program and advances each time the call runs. So calls with the same
//! seed that run equally often draw the same mask: in the forward pass, in its recomputation, and
//! in the backward pass. The seed is a hash of the name of the place, so every layer has its own.
//! With scanned layers the backward pass goes through the counter in the wrong order; and a CUDA
//! graph would freeze the counter at its recorded value, so programs with dropout in the kernel
//! need the flag [`GRAPHS_WITHOUT_CUDNN`]. Three things differ from the dropout of other forms: the
//! counter restarts with the process, the seed of the run is not used, and all devices use the same
//! mask for their own sequences.

use super::kernel::{Kernel, with_kernel};
use super::{Form, Heads, Pattern};
use crate::scope::Scope;
use fullshard_graph::{DType, Error, Key, Result, Tensor, TensorType, custom_call};
use serde_json::{Value, json};

/// The largest head dimension of the kernel on all GPUs that support it.
const MAX_HEAD: usize = 128;

/// The layout of the kernel's inputs: `[batch, sequence, heads, head]`, row-major.
const ROW_MAJOR: &[usize] = &[3, 2, 1, 0];

/// The layout of its `[batch, heads, sequence, head]` outputs: the same bytes as above.
const TRANSPOSED: &[usize] = &[3, 1, 2, 0];

/// The API version of custom calls with a JSON backend config.
const JSON_CONFIG: i32 = 2;

/// The compiler flag for programs with dropout in the kernel: everything that XLA puts into CUDA
/// graphs except cuDNN kernels.
pub const GRAPHS_WITHOUT_CUDNN: &str = "xla_gpu_enable_command_buffer=CONDITIONAL,CUBLAS,CUBLASLT,\
     CUSTOM_CALL,DYNAMIC_SLICE_FUSION,FUSION";

/// The seed without dropout, so that all such calls are identical to the compiler.
const DEFAULT_SEED: u32 = 42;

/// Why the kernel does not support a form, if so, for scanned or unrolled layers.
pub fn unsupported_reason(
    dtype: DType,
    sequence: usize,
    head: usize,
    scores: Form,
    scanned: bool,
) -> Option<String> {
    let reason = match () {
        () if !matches!(dtype, DType::Bf16 | DType::F16) => {
            format!("it supports bf16 and f16, not {}", dtype.name())
        }
        () if head > MAX_HEAD || !head.is_multiple_of(8) => {
            format!(
                "the head dimension is {head}, but must be a multiple of 8 and at most {MAX_HEAD}"
            )
        }
        () if !sequence.is_multiple_of(2) => format!("the sequence length {sequence} is odd"),
        () if scores.dropout > 0.0 && scanned => {
            "with scanned layers the backward pass would use another dropout mask".into()
        }
        () if head == 0 => "the model has no attention heads".into(),
        () if scores.pattern != Pattern::Causal => {
            format!("the mask is {}, but the kernel supports only causal ones", scores.pattern)
        }
        () if scores.padding => "keys can be padding, which the kernel does not mask".into(),
        () if scores.upcast => "f32 matmuls are requested".into(),
        () if scores.factor.is_none() => "the scale of scores depends on the layer".into(),
        () => return None,
    };
    Some(reason)
}

/// Causal attention, `[batch, heads, sequence, head]`, by the kernel. The name is that of the
/// dropout, and must be unique in the program.
pub fn fused(heads: &Heads, scores: Form, name: &str) -> Result<Tensor> {
    fused_per_shard(None, heads, scores, name)
}

/// The same in a scope, over whose automatic axes each device runs the kernel on its own heads.
pub(super) fn fused_per_shard(
    scope: Option<&Scope<'_>>,
    heads: &Heads,
    scores: Form,
    name: &str,
) -> Result<Tensor> {
    let factor = scores.factor.ok_or_else(|| invalid("scores with a static scale"))?;
    let seed = seed(scores.dropout, name);
    with_kernel(scope, heads, &Cudnn { factor, causal: true, dropout: scores.dropout, seed })
}

fn invalid(what: &str) -> Error {
    Error::new("attention", format!("the fused kernel: expected {what}"))
}

fn seed(dropout: f64, name: &str) -> u32 {
    if dropout > 0.0 { Key::hash(name)[0] } else { DEFAULT_SEED }
}

/// The parameters of cuDNN's kernel in both directions.
#[derive(Clone, Copy)]
pub(super) struct Cudnn {
    /// The scale of scores.
    factor: f64,
    /// Whether the mask is causal; otherwise there is none.
    causal: bool,
    /// The dropout probability.
    dropout: f64,
    /// The dropout mask is determined by this and the number of runs of the call.
    seed: u32,
}

impl Kernel for Cudnn {
    fn forward(&self, inputs: &[Tensor]) -> Result<(Tensor, Tensor)> {
        let &[batch, sequence, heads, _] = inputs[0].dims() else {
            return Err(invalid("four dims"));
        };
        let stats = TensorType::new(DType::F32, &[batch, heads, sequence]);
        let results = custom_call(&self.target(""))
            .backend_config(&self.config(inputs, &FORWARD_MATMULS), JSON_CONFIG)
            .layouts(&[ROW_MAJOR; 3], &[TRANSPOSED, &[2, 1, 0], &[0]])
            .call(
                &[&inputs[0], &inputs[1], &inputs[2]],
                &[transposed(&inputs[0]), stats, workspace()],
            )?;
        Ok((results[0].transpose(&[0, 2, 1, 3])?, results[1].clone()))
    }

    fn gradients(&self, residuals: &[Tensor], gradient: &Tensor) -> Result<[Tensor; 3]> {
        let [query, key, value, stats, attn_out] = residuals else {
            return Err(invalid("five residuals"));
        };
        let types = [transposed(query), transposed(key), transposed(value), workspace()];
        let operands = [ROW_MAJOR, ROW_MAJOR, ROW_MAJOR, &[2, 1, 0], ROW_MAJOR, ROW_MAJOR];
        let results = custom_call(&self.target("Backward"))
            .backend_config(&self.config(residuals, &BACKWARD_MATMULS), JSON_CONFIG)
            .layouts(&operands, &[TRANSPOSED, TRANSPOSED, TRANSPOSED, &[0]])
            .call(&[query, key, value, stats, gradient, attn_out], &types)?;
        let swap_heads = |i: usize| results[i].transpose(&[0, 2, 1, 3]);
        Ok([swap_heads(0)?, swap_heads(1)?, swap_heads(2)?])
    }
}

impl Cudnn {
    /// The kernel of a block of scores without dropout.
    pub(super) fn block(factor: f64, causal: bool) -> Cudnn {
        Cudnn { factor, causal, dropout: 0.0, seed: DEFAULT_SEED }
    }

    /// The call target of a direction.
    fn target(&self, direction: &str) -> String {
        let dropout = if self.dropout > 0.0 { "Dropout" } else { "" };
        format!("__cudnn$fmhaSoftmax{dropout}{direction}")
    }

    /// The backend config of the call.
    fn config(&self, inputs: &[Tensor], matmuls: &[Matmul]) -> String {
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
                "layout": {"minor_to_major": strings(ROW_MAJOR)},
                "is_dynamic_dimension": [false, false, false, false],
            },
            "is_flash_attention": true,
            "mask_type": if self.causal { "CAUSAL" } else { "NO_MASK" },
            "dropout_rate": self.dropout,
            "seed": self.seed,
            "sliding_window_length": 0,
            "max_seg_per_batch": 1,
            "is_paged_attention": false,
        });
        for &(name, lhs_batch, lhs, rhs_batch, rhs) in matmuls {
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

/// The type of `[batch, sequence, heads, head]` as `[batch, heads, sequence, head]`.
fn transposed(x: &Tensor) -> TensorType {
    let dims = x.dims();
    TensorType::new(x.dtype(), &[dims[0], dims[2], dims[1], dims[3]])
}

/// The workspace, whose size the compiler sets.
fn workspace() -> TensorType {
    TensorType::new(DType::U8, &[0])
}

/// A matmul of the kernel: its name, and the batch and contracting dims of its operands.
type Matmul = (&'static str, [usize; 2], usize, [usize; 2], usize);

const FORWARD_MATMULS: [Matmul; 2] = [
    ("bmm1_dot_dimension_numbers", [0, 2], 3, [0, 2], 3),
    ("bmm2_dot_dimension_numbers", [0, 1], 3, [0, 2], 1),
];

const BACKWARD_MATMULS: [Matmul; 4] = [
    ("bmm1_grad_gemm1_dot_dimension_numbers", [0, 1], 2, [0, 2], 1),
    ("bmm1_grad_gemm2_dot_dimension_numbers", [0, 1], 3, [0, 2], 1),
    ("bmm2_grad_gemm1_dot_dimension_numbers", [0, 1], 2, [0, 2], 1),
    ("bmm2_grad_gemm2_dot_dimension_numbers", [0, 2], 3, [0, 2], 3),
];
