//! Kinds of work by kernel.

use crate::compiled::{OPTIMIZER, Owner, is_kernel, matmul_flops};
use fullshard_pjrt::hlo::{Computation, Instruction, Module, collective};
use serde::Serialize;

/// A kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Matmuls, including those inside fusions.
    Matmuls,
    /// Attention: cuDNN's kernel where it runs, otherwise everything that attention modules
    /// compute themselves except copies.
    Attention,
    /// Everything after the gradients: their norm, clipping, and the update.
    Optimizer,
    /// Reductions: norms, softmax, the gradients of biases and embeddings.
    Reductions,
    /// Elementwise work.
    Elementwise,
    /// Data movement and casts: transposes, slices, conversions, memset.
    Copies,
    /// Collectives.
    Collectives,
    /// Gaps between kernels.
    Idle,
}

impl Kind {
    /// The name to print.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Matmuls => "matmuls",
            Kind::Attention => "attention",
            Kind::Optimizer => "optimizer update",
            Kind::Reductions => "reductions",
            Kind::Elementwise => "elementwise fusions",
            Kind::Copies => "copies and casts",
            Kind::Collectives => "collectives",
            Kind::Idle => "idle gaps",
        }
    }
}

/// Names of attention modules.
const ATTENTION: [&str; 2] = ["attn", "self_attn"];

/// The call target prefix of cuDNN's attention.
const FUSED_ATTENTION: &str = "__cudnn$fmha";

/// Opcodes that only move data.
const MOVES: &[&str] = &[
    "bitcast",
    "broadcast",
    "concatenate",
    "constant",
    "convert",
    "copy",
    "dynamic-slice",
    "dynamic-update-slice",
    "get-tuple-element",
    "iota",
    "pad",
    "parameter",
    "reshape",
    "reverse",
    "slice",
    "transpose",
    "tuple",
];

/// Opcodes that reduce.
const REDUCES: &[&str] = &["reduce", "reduce-window", "scatter", "sort"];

/// Classifies the instructions of a program.
pub struct Kinds<'a> {
    module: &'a Module,
    has_fused_attention: bool,
}

impl<'a> Kinds<'a> {
    pub fn new(module: &'a Module) -> Kinds<'a> {
        Kinds { module, has_fused_attention: module.instructions().any(is_fused_attention) }
    }

    /// The kind of an instruction, given its owner.
    pub fn of(&self, instruction: &Instruction, owner: &Owner) -> Kind {
        let opcodes = opcodes(self.module, instruction);
        let any = |known: &[&str]| opcodes.iter().any(|opcode| known.contains(opcode));
        let moves = opcodes.iter().all(|opcode| MOVES.contains(opcode));
        let last = owner.module.rsplit('.').next().unwrap_or_default();
        if is_fused_attention(instruction) {
            Kind::Attention
        } else if collective(self.module, instruction).is_some() {
            Kind::Collectives
        } else if owner.module == OPTIMIZER {
            Kind::Optimizer
        } else if moves {
            Kind::Copies
        } else if !self.has_fused_attention && ATTENTION.contains(&last) {
            Kind::Attention
        } else if matmul_flops(self.module, instruction).is_some() {
            Kind::Matmuls
        } else if any(REDUCES) || sums_rows(instruction) {
            Kind::Reductions
        } else {
            Kind::Elementwise
        }
    }
}

fn is_fused_attention(instruction: &Instruction) -> bool {
    let target = instruction.custom_call_target.as_deref();
    target.is_some_and(|target| target.starts_with(FUSED_ATTENTION))
}

/// Whether it is a kernel of ours that sums: one with results besides the matrix.
fn sums_rows(instruction: &Instruction) -> bool {
    is_kernel(instruction) && instruction.shape.leaves().len() > 1
}

/// The opcodes of an instruction; for a fusion those of everything fused.
pub fn opcodes<'a>(module: &'a Module, instruction: &'a Instruction) -> Vec<&'a str> {
    if instruction.opcode != "fusion" {
        return vec![&instruction.opcode];
    }
    let fused = instruction.called.iter().filter_map(|&id| module.computation(id));
    let fused = fused.flat_map(Computation::instructions);
    fused.flat_map(|inner| opcodes(module, inner)).collect()
}

/// The kind of a kernel by its name, where the name identifies it.
pub fn of_name(name: &str) -> Option<Kind> {
    let name = name.to_ascii_lowercase();
    let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    match () {
        () if has(&["memset", "memcpy"]) => Some(Kind::Copies),
        () if has(&["nccl"]) => Some(Kind::Collectives),
        () if has(&["fmha", "sdpa", "flash", "dot_do_o", "convert_dq"]) => Some(Kind::Attention),
        () if has(&["nvjet", "gemm", "cutlass", "cublas", "xmma"]) => Some(Kind::Matmuls),
        () => None,
    }
}
