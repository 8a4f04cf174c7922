//! Roofline model of instructions on a GPU, for which the compiler reports no estimates.
//!
//! A kernel takes as long as its matmuls or its memory traffic, whichever is more, plus the launch
//! time. Neither peak is reached: the constants below are the achieved shares. They were measured
//! on an H200, and other GPUs are assumed to reach the same shares of their peaks.
//!
//! Shares of the bandwidth are those of all kernels of a kind together in one profiled step
//! (GPT-2 2B, AdamW, batch 16). In a step of Llama 1B, which was not used for fitting, elementwise
//! kernels, reductions and Triton kernels reached 0.75, 0.69 and 0.31 instead of 0.80, 0.64 and
//! 0.38, and matmuls 0.70 of the peak.

use super::cost;
use fullshard_pjrt::hlo::{Computation, DotDims, ElementType, Instruction, Module, Shape};
use fullshard_step::Chip;

/// The share of the peak that matmuls reach under load, where power limits the clock: all
/// matmuls of JAX's fastest step of GPT-2 2B on an H200 together ran at 729 of 989 TFLOP/s.
const MATMULS: f64 = 0.737;

/// The share of the bandwidth that memory-bound (thin) matmuls reach.
const THIN_MATMULS: f64 = 0.80;

/// The share of the bandwidth that elementwise kernels reach. A plain copy reaches 0.90.
const LOOPS: f64 = 0.80;

/// The share of the bandwidth that reductions reach.
const REDUCTIONS: f64 = 0.64;

/// The share of the bandwidth that XLA's Triton kernels other than matmuls reach: softmax and
/// norms, whose tiles are not autotuned.
const TRITON: f64 = 0.38;

/// The share of the bandwidth that our own kernels reach: 0.67 for the backward pass of norms to
/// 0.78 for rounding to FP8.
const KERNELS: f64 = 0.74;

/// The shares of the peak that cuDNN's attention reaches forward and backward, counting the causal
/// half of the matmuls: 9 and 33 ms in JAX's step of GPT-2 2B on an H200.
const ATTENTION: [f64; 2] = [0.42, 0.28];

/// Launch time of a kernel in a CUDA graph in seconds: that of the shortest kernels.
const LAUNCH: f64 = 2e-6;

/// Seconds that one instruction takes.
pub(crate) fn seconds(module: &Module, instruction: &Instruction, chip: &Chip) -> f64 {
    if cost::is_free(instruction) {
        return 0.0;
    }
    if let Some(seconds) = attention(module, instruction, chip) {
        return LAUNCH + seconds;
    }
    let matmuls = Matmuls::of(module, instruction);
    let traffic = traffic(module, instruction) as f64;
    let memory = traffic / (chip.bandwidth * bandwidth_share(instruction, matmuls.is_some()));
    let compute = matmuls.and_then(|matmuls| matmuls.seconds(chip)).unwrap_or(0.0);
    LAUNCH + memory.max(compute)
}

/// Bytes that a kernel reads and writes, without the workspace of library calls.
pub(crate) fn traffic(module: &Module, instruction: &Instruction) -> u64 {
    match instruction.opcode.as_str() {
        "custom-call" => called_traffic(module, instruction),
        _ => cost::traffic(module, instruction),
    }
}

/// FLOPs of the matmuls of an instruction, if it has any.
pub(crate) fn matmul_flops(module: &Module, instruction: &Instruction) -> Option<f64> {
    Matmuls::of(module, instruction).map(|matmuls| matmuls.flops)
}

/// Seconds of attention by cuDNN: two matmuls forward and five backward, half of each if it is
/// causal.
fn attention(module: &Module, call: &Instruction, chip: &Chip) -> Option<f64> {
    let target = call.custom_call_target.as_deref()?;
    let backward = target.strip_prefix("__cudnn$fmha")?.ends_with("Backward");
    let mut operands = module.computation(call.computation)?.operands(call);
    let [batch, queries, heads, head] = operands.next()?.shape.as_array()?.dims[..] else {
        return None;
    };
    let [_, keys, ..] = operands.next()?.shape.as_array()?.dims[..] else { return None };
    let flops = [batch, queries, heads, head, keys].map(|dim| dim as f64).iter().product::<f64>();
    let flops = if is_causal(call) { flops } else { 2.0 * flops };
    let (matmuls, share) = if backward { (5.0, ATTENTION[1]) } else { (2.0, ATTENTION[0]) };
    Some(matmuls * flops / (share * chip.bf16?))
}

/// Whether a call of cuDNN's attention skips future keys. Blocks of keys of other devices have no
/// mask, which may be left out of the config.
fn is_causal(call: &Instruction) -> bool {
    let Some(config) = call.backend_config_json() else { return true };
    let config = config.get("cudnn_fmha_backend_config").unwrap_or(&config);
    let mask = config.get("mask_type").and_then(|mask| mask.as_str());
    mask.is_some_and(|mask| mask.contains("CAUSAL"))
}

/// The share of the bandwidth that an instruction reaches.
fn bandwidth_share(instruction: &Instruction, matmuls: bool) -> f64 {
    match instruction.fusion_kind.as_deref() {
        _ if matmuls => THIN_MATMULS,
        Some("kCustom") if is_triton(instruction) => TRITON,
        None if is_kernel(instruction) => KERNELS,
        Some("kInput") => REDUCTIONS,
        None if instruction.opcode.starts_with("reduce") => REDUCTIONS,
        _ => LOOPS,
    }
}

/// Whether an instruction is a kernel of ours.
pub(crate) fn is_kernel(instruction: &Instruction) -> bool {
    instruction.custom_call_target.as_deref() == Some(fullshard_graph::triton::TARGET)
}

fn is_triton(fusion: &Instruction) -> bool {
    fusion.backend_config_str().is_some_and(|config| config.contains("\"__triton"))
}

/// The matmuls of an instruction.
struct Matmuls {
    /// FLOPs.
    flops: f64,
    /// The element type of the operands.
    element: ElementType,
}

impl Matmuls {
    /// The matmuls of an instruction or in the computations it calls.
    fn of(module: &Module, instruction: &Instruction) -> Option<Matmuls> {
        let computation = module.computation(instruction.computation)?;
        if let Some(dims) = &instruction.dot_dims {
            return Matmuls::of_dims(computation, instruction, &instruction.shape, dims);
        }
        match instruction.opcode.as_str() {
            "custom-call" => {
                let dims = library_dims(instruction)?;
                // The other results are workspace.
                let result = instruction.shape.leaves().into_iter().next()?;
                Matmuls::of_dims(computation, instruction, result, &dims)
            }
            "fusion" => {
                let fused = instruction.called.iter().filter_map(|&id| module.computation(id));
                let inner = fused.flat_map(Computation::instructions);
                let all = inner.filter_map(|inner| Matmuls::of(module, inner));
                all.reduce(|sum, next| Matmuls { flops: sum.flops + next.flops, ..sum })
            }
            _ => None,
        }
    }

    fn of_dims(
        computation: &Computation,
        matmul: &Instruction,
        result: &Shape,
        dims: &DotDims,
    ) -> Option<Matmuls> {
        let lhs = computation.operands(matmul).next()?.shape.as_array()?;
        let contracted =
            dims.lhs_contracting.iter().map(|&dim| lhs.dims.get(usize::try_from(dim).ok()?));
        let contracted = contracted.map(|dim| dim.map(|&dim| dim as f64));
        let contracted = contracted.product::<Option<f64>>()?;
        let flops = 2.0 * result.as_array()?.elements() as f64 * contracted;
        Some(Matmuls { flops, element: lhs.element })
    }

    fn seconds(&self, chip: &Chip) -> Option<f64> {
        let peak = match self.element.bits()? {
            8 => chip.fp8.or(chip.bf16)?,
            32 => chip.f32?,
            _ => chip.bf16?,
        };
        Some(self.flops / (MATMULS * peak))
    }
}

/// The dimension numbers of a cuBLAS matmul.
fn library_dims(call: &Instruction) -> Option<DotDims> {
    let config = call.backend_config_json()?;
    let dims = config.get("gemm_backend_config")?.get("dot_dimension_numbers")?;
    let list = |name: &str| -> Vec<i64> {
        let list = dims.get(name).and_then(|list| list.as_array());
        let integer = |value: &serde_json::Value| value.as_str()?.parse().ok().or(value.as_i64());
        list.map_or_else(Vec::new, |list| list.iter().filter_map(integer).collect())
    };
    Some(DotDims {
        lhs_contracting: list("lhs_contracting_dimensions"),
        rhs_contracting: list("rhs_contracting_dimensions"),
        lhs_batch: list("lhs_batch_dimensions"),
        rhs_batch: list("rhs_batch_dimensions"),
    })
}

/// Bytes that a library call reads and writes, without its workspace.
fn called_traffic(module: &Module, call: &Instruction) -> u64 {
    let computation = module.computation(call.computation);
    let operands = computation.into_iter().flat_map(|it| it.operands(call)).map(|it| &it.shape);
    let mut results = call.shape.leaves();
    // The last of several results of a library is the workspace.
    if !is_kernel(call) {
        results.truncate(results.len().saturating_sub(1).max(1));
    }
    operands.chain(results).map(cost::bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: &[u8] = include_bytes!("../../tests/data/gpu_h200.pb");

    /// Seconds of the one instruction whose result has this shape, on a chip.
    fn seconds_of(shape: &str, chip: &str) -> f64 {
        let module = Module::decode("hlo_with_config", H200).unwrap();
        let chip = Chip::named(chip).unwrap();
        let instructions = module.entry().instructions().iter();
        let matching = instructions.filter(|it| it.shape.to_string().starts_with(shape));
        matching.map(|it| seconds(&module, it, chip)).sum()
    }

    fn assert_near(seconds: f64, measured: f64, tolerance: f64) {
        assert!((seconds / measured - 1.0).abs() < tolerance, "{seconds} vs {measured}");
    }

    /// `fullshard exec examples/programs/matmul.mlir` took 1.537 to 1.559 ms on an H200.
    #[test]
    fn large_matmul_matches_measurement() {
        assert_near(seconds_of("bf16[8192,8192]", "h200"), 1.552e-3, 0.05);
    }

    /// Matmuls of this shape took 86.9 µs in the attention of a profiled step, mostly for memory.
    #[test]
    fn thin_matmul_matches_measurement() {
        let seconds = seconds_of("bf16[384,256,1024]", "h200");
        assert_near(seconds, 86.9e-6, 0.05);
        // The H100 has the same peak but slower memory.
        assert_near(seconds_of("bf16[384,256,1024]", "h100") / seconds, 4800.0 / 3350.0, 0.03);
        assert_near(seconds_of("bf16[8192,8192]", "h100"), 1.552e-3, 0.05);
    }

    #[test]
    fn other_ops_are_memory_bound() {
        let bytes = 3.0 * 4.0 * 16384.0 * 16384.0;
        // Two arguments have the same shape and take no time.
        assert_near(seconds_of("f32[16384,16384]", "h200"), bytes / (LOOPS * 4.8e12), 0.01);
        let bytes = 4.0 * 1024.0 * 16384.0;
        assert_near(seconds_of("f32[1024]", "h200") - LAUNCH, bytes / (REDUCTIONS * 4.8e12), 0.01);
    }

    #[test]
    fn only_causal_attention_skips_keys() {
        let module = Module::decode("hlo_with_config", H200).unwrap();
        let mut call = module.entry().instructions()[0].clone();
        let masks = [("CAUSAL", true), ("PADDING_CAUSAL", true), ("NO_MASK", false)];
        for (mask, causal) in masks {
            let config = format!(r#"{{"cudnn_fmha_backend_config": {{"mask_type": "{mask}"}}}}"#);
            call.backend_config = config.into_bytes().into();
            assert_eq!(is_causal(&call), causal, "{mask}");
        }
        call.backend_config = (*br#"{"cudnn_fmha_backend_config": {}}"#).into();
        assert!(!is_causal(&call));
    }

    #[test]
    fn library_matmul_dims_come_from_backend_config() {
        let module = Module::decode("hlo_with_config", H200).unwrap();
        let mut call = module.entry().instructions()[0].clone();
        call.backend_config = (*br#"{"gemm_backend_config": {"dot_dimension_numbers":
            {"lhs_contracting_dimensions": ["2"], "lhs_batch_dimensions": ["0"]}}}"#)
            .into();
        let dims = library_dims(&call).unwrap();
        assert_eq!((dims.lhs_contracting, dims.lhs_batch), (vec![2], vec![0]));
        call.backend_config = (*b"{}").into();
        assert_eq!(library_dims(&call), None);
    }
}
