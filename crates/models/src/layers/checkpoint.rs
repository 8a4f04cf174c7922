//! Names of values that a rematerialization policy can save while the rest of a layer is
//! recomputed: outputs of matmuls and attention that the backward pass needs, after the bias and
//! the residual are added, so that these can be fused into the matmul epilogue.
//!
//! The output of the MLP has no name: the backward pass does not use it.

use fullshard_graph::{NamedValues, Program};

/// Queries, keys and values: the inputs of attention.
pub const QKV: &str = "qkv";

/// The output of attention, before the output projection, with the softmax statistics that a fused
/// kernel saves for its backward pass.
pub const ATTN_OUT: &str = "attn_out";

/// The output projection of attention, added to the residual stream.
pub const OUT_PROJ: &str = "out_proj";

/// The input of the activation function of the MLP; with a gate, what the gate multiplies.
pub const MLP_IN: &str = "mlp_in";

/// The gate of the MLP, before its activation function.
pub const MLP_GATE: &str = "mlp_gate";

/// What norms compute of each row. Every policy saves it: a few numbers per token that take a pass
/// over all activations to recompute.
pub const NORM_STATS: &str = "norm_stats";

/// The names that a policy can choose.
pub const ALL: &[&str] = &[QKV, ATTN_OUT, OUT_PROJ, MLP_IN, MLP_GATE];

/// The sizes of what a layer of a model names, per token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The name.
    pub name: String,
    /// The elements to save.
    pub width: usize,
    /// The elements of the weights of the matmuls that compute them: two FLOPs each.
    pub weights: usize,
    /// Whether attention computes them.
    pub attention: bool,
}

impl Checkpoint {
    /// What a program of one layer names for policies to choose, traced on a number of tokens with
    /// constants as weights.
    pub(crate) fn of_program(program: &Program, tokens: usize) -> Vec<Checkpoint> {
        let tokens = tokens.max(1);
        let checkpoint = |values: NamedValues| Checkpoint {
            width: values.elements / tokens,
            weights: (values.constant_flops / (2 * tokens) as f64) as usize,
            attention: values.input_flops > 0.0,
            name: values.name,
        };
        let chosen = program.named_values().into_iter().filter(|values| values.name != NORM_STATS);
        chosen.map(checkpoint).collect()
    }
}
