//! Achieved rates by chip, and their sources.

use super::work::Passes;
use fullshard_pjrt::plugins::Platform;
use fullshard_step::Chip;

/// The rates that a step reaches on a chip.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Speeds {
    /// FLOP/s of large matmuls.
    pub matmul_rate: f64,
    /// Bytes/s of memory traffic.
    pub bandwidth: f64,
    /// Bytes of on-chip memory that holds tensors instead of main memory.
    pub on_chip: f64,
    /// The head size from which attention's matmuls are as fast as others.
    pub wide_head: f64,
    /// The share of communication that overlaps with compute, if compute is long enough.
    pub overlap: f64,
}

/// Shares of peak and bandwidth. For TPUs they are what the compiler estimates for a matmul of
/// 8192³ in `bf16` and for an addition (libtpu 0.0.51); for v2 and v3 only the matmul is known,
/// and the addition is taken from v4. For the H200 they are measured, in matmuls as wide as those
/// of models and in copies; other GPUs are assumed to be similar.
const SHARES: &[(&str, f64, f64)] = &[
    ("v2", 22.6 / 23.0, 834.0 / 1200.0),
    ("v3", 59.7 / 61.5, 834.0 / 1200.0),
    ("v4", 255.0 / 275.0, 834.0 / 1200.0),
    ("v5e", 173.0 / 197.0, 471.0 / 819.0),
    ("v5p", 414.0 / 459.0, 1235.0 / 2765.0),
    ("v6e", 646.0 / 918.0, 725.0 / 1638.0),
];
/// The share of their rate that matmuls on TPUs keep when the compiler fuses other work with
/// them, as in the blog post's 2B step for v4-8.
const FUSED: f64 = 0.945;

/// The share of the matmul rate that cuDNN's attention reaches on the H200, forward and backward
/// together: 0.45 for GPT-2 2B with heads of 128, 0.41 for Llama 1B and 0.36 for GPT-2 124M with
/// heads of 64.
pub(super) const FUSED_ATTENTION: f64 = 0.42;

const GPU: (f64, f64) = (700.0 / 989.4, 0.85);

/// The share of collectives in scans that v5e overlaps, as in the fitted steps: 29 and 44 %. The
/// compilers of other TPUs make none asynchronous by default.
const ASYNCHRONOUS: f64 = 0.35;

/// The vector memory of v5e and v6e.
const VECTOR_MEMORY: f64 = (128_u64 << 20) as f64;

/// Half of the traffic stays on the chip where four tensors as wide as the residual stream fit
/// there, as in the fitted steps, and less of it the larger they are.
const TENSORS_ON_CHIP: f64 = 4.0;

/// FLOP/s of a CPU core in matmuls: wide ones reach 107 GFLOP/s on a 2.8 GHz Xeon, narrow ones
/// less.
const CPU_CORE: f64 = 60e9;

impl Speeds {
    pub(super) fn of(chip: &Chip, kind: Platform, peak: Option<f64>) -> Speeds {
        let share = SHARES.iter().find(|(short, ..)| *short == chip.short);
        let (matmuls, bandwidth) =
            share.map_or(GPU, |&(_, matmuls, copies)| (FUSED * matmuls, copies));
        // Where no peak is published for a dtype, that of bf16 is used: XLA computes f32 matmuls
        // on TPUs in one pass of bf16.
        let peak = peak.or(chip.bf16);
        Speeds {
            matmul_rate: peak.map_or(CPU_CORE, |peak| peak * matmuls),
            bandwidth: chip.bandwidth * bandwidth,
            on_chip: if matches!(chip.short, "v5e" | "v6e") { VECTOR_MEMORY } else { 0.0 },
            wide_head: if chip.short == "v6e" { 256.0 } else { 128.0 },
            overlap: match kind {
                Platform::Cuda => 1.0,
                _ if chip.short == "v5e" => ASYNCHRONOUS,
                _ => 0.0,
            },
        }
    }
}

impl Speeds {
    /// The share of the layers' traffic that goes through memory, for the bytes of the residual
    /// stream.
    pub(super) fn through_memory(&self, residual: f64) -> f64 {
        1.0 - 0.5 * (self.on_chip / (TENSORS_ON_CHIP * residual)).min(1.0)
    }
}

/// Number of passes over tensors in a step, which depends on what the compiler fuses. For TPUs it
/// is from the schedules of the fitted steps, for the H200 from measured steps of the 2B model;
/// for CPUs it is a guess.
pub(super) fn passes(kind: Platform) -> Passes {
    let (layer, scores, logits, state) = match kind {
        Platform::Tpu => ((2.5, 3.0), (4.0, 6.0), 3.0, 12.0),
        Platform::Cuda => ((1.0, 2.0), (4.0, 7.0), 2.0, 2.5),
        Platform::Cpu => ((2.0, 4.0), (4.0, 6.0), 6.0, 7.0),
    };
    Passes { layer, scores, logits, state }
}
