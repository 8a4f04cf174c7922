//! Accelerators: published specifications, each figure once.
//!
//! A [`Chip`] has the figures of one device as a program sees it: for TPU v2 and v3 that is a core,
//! half a chip. Peaks are dense, without sparsity. A device that is not in the table has no peak,
//! and nothing is guessed. [`Gpu`] adds the properties needed to compile for a GPU that is not
//! available, [`TpuGeneration`] how chips form slices.

mod gpu;
mod table;
mod tpu;

use crate::{DType, Platform};
pub use gpu::{Gpu, GpuTarget};
use table::CHIPS;
pub use tpu::{TpuGeneration, TpuSlice};

/// An accelerator.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Chip {
    /// The device kinds that PJRT reports for it.
    #[serde(skip)]
    pub kinds: &'static [&'static str],
    /// The platform it belongs to.
    #[serde(skip)]
    pub platform: Platform,
    /// Its short name, such as `v4` or `h200`.
    pub short: &'static str,
    /// Its name.
    pub name: &'static str,
    /// FLOP per second in `bf16` or `f16` with `f32` accumulation. Unknown for CPUs.
    pub bf16: Option<f64>,
    /// FLOP per second in FP8, where there are units for it.
    pub fp8: Option<f64>,
    /// FLOP per second of `f32` matmuls as XLA computes them by default: in TF32 on GPUs. Not
    /// published for TPUs.
    pub f32: Option<f64>,
    /// Bytes of memory, nominal.
    pub memory: f64,
    /// Bytes of memory that a program may use.
    pub usable: f64,
    /// Bytes of memory read or written per second.
    pub bandwidth: f64,
    /// Cycles per second that compilers count in; known for TPUs.
    pub clock: Option<f64>,
    /// Bytes per second over one of its links, one way.
    pub link: f64,
    /// Number of links: on TPUs two per dimension of the torus, on GPUs to the switch.
    pub links: usize,
    /// Bytes per second to devices of other nodes or slices, one way: its share of its host's
    /// network adapters. Unknown where nothing was published.
    pub dcn: Option<f64>,
    /// Bytes per second between its memory and that of the host, one way. Unknown where nothing was
    /// published.
    pub host_link: Option<f64>,
    /// Bytes of host memory for each device, nominal. Unknown where machines differ.
    pub host_memory: Option<f64>,
    /// The properties of a GPU that a compiler needs.
    #[serde(skip)]
    pub gpu: Option<Gpu>,
    /// The generation of a TPU.
    #[serde(skip)]
    pub tpu: Option<&'static TpuGeneration>,
}

/// A name that is not an accelerator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown accelerator `{name}`: {hint}")]
pub struct UnknownAccelerator {
    /// The name given.
    pub name: String,
    /// The valid names.
    pub hint: String,
}

impl Chip {
    /// All known accelerators.
    pub const ALL: &[Chip] = CHIPS;

    /// The accelerator of a PJRT device kind, if it is known.
    pub fn of_kind(kind: &str) -> Option<&'static Chip> {
        CHIPS.iter().find(|chip| chip.kinds.contains(&kind))
    }

    /// The accelerator with a short name such as `v4` or `h200`.
    pub fn named(short: &str) -> Option<&'static Chip> {
        CHIPS.iter().find(|chip| chip.short == short)
    }

    /// The peak in FLOP per second in a type.
    pub fn peak(&self, dtype: DType) -> Option<f64> {
        match dtype {
            DType::Bf16 | DType::F16 => self.bf16,
            DType::F32 => self.f32,
            DType::F8E4M3FN | DType::F8E5M2 => self.fp8,
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_chips_by_pjrt_kind() {
        let peak = |kind: &str, dtype| Chip::of_kind(kind).unwrap().peak(dtype);
        assert_eq!(peak("TPU v4", DType::Bf16), Some(275e12));
        assert_eq!(peak("TPU v5 lite", DType::Bf16), Some(197e12));
        assert_eq!(peak("TPU v5", DType::Bf16), Some(459e12));
        assert_eq!(peak("TPU v4", DType::F32), None);
        assert_eq!(peak("NVIDIA H200", DType::F16), Some(989.4e12));
        assert_eq!(peak("NVIDIA H200", DType::F32), Some(494.7e12));
        assert_eq!(peak("NVIDIA H200", DType::F8E4M3FN), Some(1978.8e12));
        assert_eq!(peak("NVIDIA H200", DType::F64), None);
        assert_eq!(peak("NVIDIA A100-SXM4-80GB", DType::F8E4M3FN), None);
        assert_eq!(peak("TPU v4", DType::F8E5M2), None);
    }

    #[test]
    fn unknown_kinds_have_no_chip() {
        for kind in ["cpu", "", "TPU v", "NVIDIA GeForce RTX 4090"] {
            assert_eq!(Chip::of_kind(kind), None);
        }
    }

    #[test]
    fn kinds_and_short_names_are_unique() {
        let kinds: Vec<&str> = CHIPS.iter().flat_map(|chip| chip.kinds).copied().collect();
        let shorts: Vec<&str> = CHIPS.iter().map(|chip| chip.short).collect();
        for mut names in [kinds, shorts] {
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count);
        }
    }

    /// All links of a GPU together have the data sheet's bandwidth, half of it each way.
    #[test]
    fn links_add_up_to_the_data_sheet_bandwidth() {
        for (short, gigabytes) in [
            ("a100", 300.0),
            ("h100", 450.0),
            ("h100-96gb", 450.0),
            ("h200", 450.0),
            ("b200", 900.0),
        ] {
            let chip = Chip::named(short).unwrap();
            assert_eq!(chip.link * chip.links as f64, gigabytes * 1e9, "{short}");
        }
    }

    /// The clock at which the matrix units reach the peak is at most the boost clock, except for
    /// rounding: otherwise a figure is wrong.
    #[test]
    fn peaks_agree_with_matrix_units_and_clocks() {
        for target in GpuTarget::models() {
            let gpu = target.gpu.unwrap();
            let ghz = gpu.matmul_ghz(target.bf16.unwrap());
            assert!(ghz <= 1.001 * gpu.boost_ghz, "{}: {ghz}", target.short);
        }
    }

    #[test]
    fn cpu_has_no_peak() {
        let cpu = Chip::named("cpu").unwrap();
        assert_eq!((cpu.peak(DType::Bf16), cpu.peak(DType::F32)), (None, None));
    }
}
