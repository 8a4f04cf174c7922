//! How fast devices are in practice, by chip, and what that is known from.

use super::work::Passes;
use fullshard_pjrt::plugins::Platform;
use fullshard_step::Chip;

/// What of a chip's peaks a step reaches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Speeds {
    /// Operations a second of large matrix products.
    pub products: f64,
    /// Bytes a second of passes over memory.
    pub bandwidth: f64,
    /// Bytes beside the cores that hold what would else go through memory.
    pub on_chip: f64,
    /// The width of a head from which on attention's products are as fast as others.
    pub wide_head: f64,
    /// The share of what is sent that runs beside computing, if that is long enough.
    pub overlap: f64,
}

/// Shares of peak and bandwidth. Of TPUs they are what their compiler reckons with for a product
/// of 8192³ in `bf16` and for an addition (libtpu 0.0.51); of v2 and v3 only the product is known,
/// and the addition is taken from v4. Of the H200 they are measured, in products as wide as those
/// of models and in copies; other GPUs are taken to be alike.
const SHARES: &[(&str, f64, f64)] = &[
    ("v2", 22.6 / 23.0, 834.0 / 1200.0),
    ("v3", 59.7 / 61.5, 834.0 / 1200.0),
    ("v4", 255.0 / 275.0, 834.0 / 1200.0),
    ("v5e", 173.0 / 197.0, 471.0 / 819.0),
    ("v5p", 414.0 / 459.0, 1235.0 / 2765.0),
    ("v6e", 646.0 / 918.0, 725.0 / 1638.0),
];
/// The share of their speed that products of TPUs keep when the compiler fuses other work with
/// them, as in the post's 2B step for v4-8.
const FUSED: f64 = 0.945;

/// The share of the speed of products that cuDNN's attention reaches on the H200, both ways
/// together: 0.45 for GPT-2 2B with heads of 128, 0.41 for Llama 1B and 0.36 for GPT-2 124M with
/// heads of 64.
pub(super) const FUSED_ATTENTION: f64 = 0.42;

const GPU: (f64, f64) = (700.0 / 989.4, 0.85);

/// What v5e hides of its collectives in loops, as in the fitted steps: 29 and 44 %. The compilers
/// of other TPUs make none asynchronous unless told to.
const ASYNCHRONOUS: f64 = 0.35;

/// The vector memory of v5e and v6e.
const VECTOR_MEMORY: f64 = (128_u64 << 20) as f64;

/// Half of the traffic stays on the chip where four tensors as wide as the stream fit there, as
/// in the fitted steps, and less of it the larger they are.
const TENSORS_ON_CHIP: f64 = 4.0;

/// Operations a second of a CPU core in products: what is left of the 107 GFLOP/s that wide ones
/// reach on a 2.8 GHz Xeon, after narrow ones.
const CPU_CORE: f64 = 60e9;

impl Speeds {
    pub(super) fn of(chip: &Chip, kind: Platform, peak: Option<f64>) -> Speeds {
        let share = SHARES.iter().find(|(short, ..)| *short == chip.short);
        let (products, bandwidth) =
            share.map_or(GPU, |&(_, products, copies)| (FUSED * products, copies));
        // Where no peak is published for a type, that of bf16 is taken: XLA computes f32 products
        // of TPUs in one pass of bf16.
        let peak = peak.or(chip.bf16);
        Speeds {
            products: peak.map_or(CPU_CORE, |peak| peak * products),
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
    /// The share of the traffic of layers that goes through memory, where the stream is so large.
    pub(super) fn through_memory(&self, stream: f64) -> f64 {
        1.0 - 0.5 * (self.on_chip / (TENSORS_ON_CHIP * stream)).min(1.0)
    }
}

/// How often a step passes over things, which depends on what the compiler fuses. Of TPUs it is
/// what the schedules of the fitted steps come to, of the H200 what measured steps of the 2B model
/// do; of processors it is a guess.
pub(super) fn passes(kind: Platform) -> Passes {
    let (layer, scores, logits, state) = match kind {
        Platform::Tpu => ((2.5, 3.0), (4.0, 6.0), 3.0, 12.0),
        Platform::Cuda => ((1.0, 2.0), (4.0, 7.0), 2.0, 2.5),
        Platform::Cpu => ((2.0, 4.0), (4.0, 6.0), 6.0, 7.0),
    };
    Passes { layer, scores, logits, state }
}
