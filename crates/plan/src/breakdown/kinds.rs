//! What kind of work a kernel does.

use crate::compiled::{Belongs, OPTIMIZER, operations};
use fullshard_pjrt::hlo::{Computation, Instruction, Module, collective};
use serde::Serialize;

/// A kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Matrix products, those inside fusions as well.
    Products,
    /// Attention: cuDNN's kernel where it runs, else all that attention modules compute
    /// themselves, but for copies.
    Attention,
    /// Everything after the gradients: their norm, clipping, and the update.
    Optimizer,
    /// Sums and maxima: norms, softmax, the gradients of biases and embeddings.
    Reductions,
    /// Work element by element.
    Elementwise,
    /// What only moves values or changes their type: transposes, slices, casts, clearing.
    Copies,
    /// Exchanges between devices.
    Collectives,
    /// Nothing at all, while the step was not done.
    Idle,
}

impl Kind {
    /// What people read.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Products => "matrix products",
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

/// What attention modules are called.
const ATTENTION: [&str; 2] = ["attn", "self_attn"];

/// What cuDNN's attention is called.
const FUSED_ATTENTION: &str = "__cudnn$fmha";

/// Opcodes of fusions that compute nothing.
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

/// Opcodes that make few numbers of many.
const REDUCES: &[&str] = &["reduce", "reduce-window", "scatter", "sort"];

/// Tells the kinds of a program's instructions.
pub struct Kinds<'a> {
    module: &'a Module,
    has_fused_attention: bool,
}

impl<'a> Kinds<'a> {
    pub fn new(module: &'a Module) -> Kinds<'a> {
        Kinds { module, has_fused_attention: module.instructions().any(is_fused_attention) }
    }

    /// The kind of an instruction in a module.
    pub fn of(&self, instruction: &Instruction, belongs: &Belongs) -> Kind {
        let opcodes = opcodes(self.module, instruction);
        let any = |known: &[&str]| opcodes.iter().any(|opcode| known.contains(opcode));
        let moves = opcodes.iter().all(|opcode| MOVES.contains(opcode));
        let last = belongs.module.rsplit('.').next().unwrap_or_default();
        if is_fused_attention(instruction) {
            Kind::Attention
        } else if collective(self.module, instruction).is_some() {
            Kind::Collectives
        } else if belongs.module == OPTIMIZER {
            Kind::Optimizer
        } else if moves {
            Kind::Copies
        } else if !self.has_fused_attention && ATTENTION.contains(&last) {
            Kind::Attention
        } else if operations(self.module, instruction).is_some() {
            Kind::Products
        } else if any(REDUCES) {
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

/// What an instruction does: of a fusion, all that is fused.
pub fn opcodes<'a>(module: &'a Module, instruction: &'a Instruction) -> Vec<&'a str> {
    if instruction.opcode != "fusion" {
        return vec![&instruction.opcode];
    }
    let fused = instruction.called.iter().filter_map(|&id| module.computation(id));
    let fused = fused.flat_map(Computation::instructions);
    fused.flat_map(|inner| opcodes(module, inner)).collect()
}

/// What a kernel is by its name alone, where that says it.
pub fn of_name(name: &str) -> Option<Kind> {
    let name = name.to_ascii_lowercase();
    let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    match () {
        () if has(&["memset", "memcpy"]) => Some(Kind::Copies),
        () if has(&["nccl"]) => Some(Kind::Collectives),
        () if has(&["fmha", "sdpa", "flash", "dot_do_o", "convert_dq"]) => Some(Kind::Attention),
        () if has(&["nvjet", "gemm", "cutlass", "cublas", "xmma"]) => Some(Kind::Products),
        () => None,
    }
}
