//! What the makers of accelerators say of them, by the kind that PJRT reports for a device.
//!
//! Figures are of one device as a program sees it: of v2 and v3 that is a core, half a chip.
//! Peaks are dense, without sparsity. A device that is not in the table has no peak here, and
//! nothing is guessed.

use fullshard_graph::DType;

/// An accelerator.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Chip {
    /// The kinds that PJRT reports for it.
    #[serde(skip)]
    kinds: &'static [&'static str],
    /// Its name.
    pub name: &'static str,
    /// Operations a second in `bf16` or `f16` with sums in `f32`.
    pub bf16: f64,
    /// Operations a second on `f32` tensors as XLA computes matrix products of them by default:
    /// through TF32 on GPUs. Not published for TPUs.
    pub f32: Option<f64>,
    /// Bytes of memory.
    pub memory: f64,
    /// Bytes of memory read or written a second.
    pub bandwidth: f64,
}

impl Chip {
    /// The accelerator of a kind of device, if it is known.
    pub fn of_kind(kind: &str) -> Option<&'static Chip> {
        CHIPS.iter().find(|chip| chip.kinds.contains(&kind))
    }

    /// Operations a second at most, when computing in a type.
    pub fn peak(&self, dtype: DType) -> Option<f64> {
        match dtype {
            DType::Bf16 | DType::F16 => Some(self.bf16),
            DType::F32 => self.f32,
            _ => None,
        }
    }
}

const GIB: f64 = (1_u64 << 30) as f64;

const fn tpu(
    kinds: &'static [&'static str],
    name: &'static str,
    teraflops: f64,
    gibibytes: f64,
    gigabytes_a_second: f64,
) -> Chip {
    Chip {
        kinds,
        name,
        bf16: teraflops * 1e12,
        f32: None,
        memory: gibibytes * GIB,
        bandwidth: gigabytes_a_second * 1e9,
    }
}

const fn gpu(
    kinds: &'static [&'static str],
    name: &'static str,
    (bf16, tf32): (f64, f64),
    gigabytes: f64,
    gigabytes_a_second: f64,
) -> Chip {
    Chip {
        kinds,
        name,
        bf16: bf16 * 1e12,
        f32: Some(tf32 * 1e12),
        memory: gigabytes * 1e9,
        bandwidth: gigabytes_a_second * 1e9,
    }
}

/// Everything known. TPUs: Cloud TPU's pages. GPUs: NVIDIA's data sheets.
const CHIPS: &[Chip] = &[
    tpu(&["TPU v2"], "TPU v2 core", 23.0, 8.0, 350.0),
    tpu(&["TPU v3"], "TPU v3 core", 61.5, 16.0, 450.0),
    tpu(&["TPU v4"], "TPU v4", 275.0, 32.0, 1200.0),
    tpu(&["TPU v5 lite", "TPU v5e"], "TPU v5e", 197.0, 16.0, 819.0),
    tpu(&["TPU v5", "TPU v5p"], "TPU v5p", 459.0, 95.0, 2765.0),
    tpu(&["TPU v6 lite", "TPU v6e"], "TPU v6e", 918.0, 32.0, 1638.0),
    gpu(
        &["NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB", "NVIDIA A100-SXM-40GB"],
        "A100 40 GB",
        (312.0, 156.0),
        40.0,
        1555.0,
    ),
    gpu(&["NVIDIA A100-SXM4-80GB"], "A100 80 GB SXM", (312.0, 156.0), 80.0, 2039.0),
    gpu(&["NVIDIA A100 80GB PCIe"], "A100 80 GB PCIe", (312.0, 156.0), 80.0, 1935.0),
    gpu(&["NVIDIA H100 80GB HBM3"], "H100 SXM", (989.4, 494.7), 80.0, 3350.0),
    gpu(&["NVIDIA H100 PCIe"], "H100 PCIe", (756.0, 378.0), 80.0, 2000.0),
    gpu(&["NVIDIA H200"], "H200 SXM", (989.4, 494.7), 141.0, 4800.0),
    gpu(&["NVIDIA B200"], "B200", (2250.0, 1125.0), 180.0, 8000.0),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chips_are_found_by_what_pjrt_calls_them() {
        let peak = |kind: &str, dtype| Chip::of_kind(kind).unwrap().peak(dtype);
        assert_eq!(peak("TPU v4", DType::Bf16), Some(275e12));
        assert_eq!(peak("TPU v5 lite", DType::Bf16), Some(197e12));
        assert_eq!(peak("TPU v5", DType::Bf16), Some(459e12));
        assert_eq!(peak("TPU v4", DType::F32), None);
        assert_eq!(peak("NVIDIA H200", DType::F16), Some(989.4e12));
        assert_eq!(peak("NVIDIA H200", DType::F32), Some(494.7e12));
        assert_eq!(peak("NVIDIA H200", DType::F64), None);
    }

    #[test]
    fn nothing_is_known_of_what_is_not_there() {
        for kind in ["cpu", "", "TPU v", "NVIDIA GeForce RTX 4090"] {
            assert_eq!(Chip::of_kind(kind), None);
        }
    }

    #[test]
    fn no_kind_is_of_two_chips() {
        let mut kinds: Vec<&str> = CHIPS.iter().flat_map(|chip| chip.kinds).copied().collect();
        let count = kinds.len();
        kinds.sort_unstable();
        kinds.dedup();
        assert_eq!(kinds.len(), count);
    }
}
