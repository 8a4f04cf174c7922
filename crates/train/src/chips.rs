//! What the makers of accelerators say of them, by the kind that PJRT reports for a device.
//!
//! Figures are of one device as a program sees it: of v2 and v3 that is a core, half a chip.
//! Peaks are dense, without sparsity. A device that is not in the table has no peak here, and
//! nothing is guessed.
//!
//! Where the figures come from:
//!
//! - TPUs: peaks, memory and its bandwidth from Cloud TPU's pages. Links are rates that are
//!   reached: from v4 on those of the JAX Scaling Book, about nine tenths of the nominal 50 and
//!   100 GB/s; of v3 the 80 GB/s that ASTRA-sim holds against measured sums. Its nominal 656 Gb/s
//!   are 82 GB/s, which the 340 TB/s of a pod's all-reduce confirm; the Scaling Book's 100 follow
//!   from its bisection instead. v2's nominal 496 Gb/s is from the paper on v2 and v3. Clocks of
//!   v2 to v4 are their papers', v5e's the Scaling Book's, those of v5p and v6e follow from peak
//!   and matrix units. Usable memory is what libtpu 0.0.51 says of a device.
//! - GPUs: NVIDIA's data sheets. Usable memory is what CUDA says there is, less half a GiB for
//!   its context.
//! - The CPU is one core with its share of a machine; it has no peak. Its bandwidth and what it
//!   sends to another are what two cores of a 2.8 GHz Xeon copy.

use fullshard_graph::DType;

/// An accelerator.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Chip {
    /// The kinds that PJRT reports for it.
    #[serde(skip)]
    kinds: &'static [&'static str],
    /// What people write for it, such as `v4` or `h200`.
    pub short: &'static str,
    /// Its name.
    pub name: &'static str,
    /// Operations a second in `bf16` or `f16` with sums in `f32`. Not known of CPUs.
    pub bf16: Option<f64>,
    /// Operations a second in 8-bit floating point, where there are units for it.
    pub fp8: Option<f64>,
    /// Operations a second on `f32` tensors as XLA computes matrix products of them by default:
    /// through TF32 on GPUs. Not published for TPUs.
    pub f32: Option<f64>,
    /// Bytes of memory.
    pub memory: f64,
    /// Bytes of memory that a program may use.
    pub usable: f64,
    /// Bytes of memory read or written a second.
    pub bandwidth: f64,
    /// Cycles a second; known of TPUs.
    pub clock: Option<f64>,
    /// Bytes a second over one of its links, one way.
    pub link: f64,
    /// How many links there are: of TPUs two for each dimension of the torus, of GPUs to the
    /// switch.
    pub links: usize,
}

impl Chip {
    /// Every accelerator that is known.
    pub const ALL: &[Chip] = CHIPS;

    /// The accelerator of a kind of device, if it is known.
    pub fn of_kind(kind: &str) -> Option<&'static Chip> {
        CHIPS.iter().find(|chip| chip.kinds.contains(&kind))
    }

    /// The accelerator that people mean by a short name such as `v4` or `h200`.
    pub fn named(short: &str) -> Option<&'static Chip> {
        CHIPS.iter().find(|chip| chip.short == short)
    }

    /// Operations a second at most, when computing in a type.
    pub fn peak(&self, dtype: DType) -> Option<f64> {
        match dtype {
            DType::Bf16 | DType::F16 => self.bf16,
            DType::F32 => self.f32,
            DType::F8E4M3FN | DType::F8E5M2 => self.fp8,
            _ => None,
        }
    }
}

const GIB: f64 = (1_u64 << 30) as f64;

/// What TPUs differ in.
struct Tpu {
    teraflops: f64,
    gibibytes: f64,
    /// `device_memory_bytes_limit`, in units of 1e9.
    usable: f64,
    gigabytes_a_second: f64,
    gigahertz: f64,
    /// GB/s one way.
    link: f64,
    links: usize,
}

const fn tpu(
    kinds: &'static [&'static str],
    short: &'static str,
    name: &'static str,
    figures: Tpu,
) -> Chip {
    Chip {
        kinds,
        short,
        name,
        bf16: Some(figures.teraflops * 1e12),
        fp8: None,
        f32: None,
        memory: figures.gibibytes * GIB,
        usable: figures.usable * 1e9,
        bandwidth: figures.gigabytes_a_second * 1e9,
        clock: Some(figures.gigahertz * 1e9),
        link: figures.link * 1e9,
        links: figures.links,
    }
}

/// What GPUs differ in.
struct Gpu {
    /// Teraflops in `bf16` and through TF32.
    teraflops: (f64, f64),
    /// Whether there are units for 8-bit floating point, twice as fast as those for `bf16`.
    fp8: bool,
    gigabytes: f64,
    /// What CUDA says there is, in GiB.
    gibibytes: f64,
    gigabytes_a_second: f64,
    /// GB/s one way over a link, and links.
    link: (f64, usize),
}

/// What a CUDA context keeps.
const CONTEXT: f64 = 0.5 * GIB;

const fn gpu(
    kinds: &'static [&'static str],
    short: &'static str,
    name: &'static str,
    figures: Gpu,
) -> Chip {
    Chip {
        kinds,
        short,
        name,
        bf16: Some(figures.teraflops.0 * 1e12),
        fp8: if figures.fp8 { Some(2.0 * figures.teraflops.0 * 1e12) } else { None },
        f32: Some(figures.teraflops.1 * 1e12),
        memory: figures.gigabytes * 1e9,
        usable: figures.gibibytes * GIB - CONTEXT,
        bandwidth: figures.gigabytes_a_second * 1e9,
        clock: None,
        link: figures.link.0 * 1e9,
        links: figures.link.1,
    }
}

/// PCIe of the fourth and fifth generation, 16 lanes.
const PCIE_4: (f64, usize) = (32.0, 1);
const PCIE_5: (f64, usize) = (64.0, 1);

/// Everything known.
const CHIPS: &[Chip] = &[
    tpu(
        &["TPU v2"],
        "v2",
        "TPU v2 core",
        Tpu {
            teraflops: 23.0,
            gibibytes: 8.0,
            usable: 8.03,
            gigabytes_a_second: 350.0,
            gigahertz: 0.7,
            link: 62.0,
            links: 4,
        },
    ),
    tpu(
        &["TPU v3"],
        "v3",
        "TPU v3 core",
        Tpu {
            teraflops: 61.5,
            gibibytes: 16.0,
            usable: 16.62,
            gigabytes_a_second: 450.0,
            gigahertz: 0.94,
            link: 80.0,
            links: 4,
        },
    ),
    tpu(
        &["TPU v4"],
        "v4",
        "TPU v4",
        Tpu {
            teraflops: 275.0,
            gibibytes: 32.0,
            usable: 33.01,
            gigabytes_a_second: 1200.0,
            gigahertz: 1.05,
            link: 45.0,
            links: 6,
        },
    ),
    tpu(
        &["TPU v5 lite", "TPU v5e"],
        "v5e",
        "TPU v5e",
        Tpu {
            teraflops: 197.0,
            gibibytes: 16.0,
            usable: 16.91,
            gigabytes_a_second: 819.0,
            gigahertz: 1.5,
            link: 45.0,
            links: 4,
        },
    ),
    tpu(
        &["TPU v5", "TPU v5p"],
        "v5p",
        "TPU v5p",
        Tpu {
            teraflops: 459.0,
            gibibytes: 95.0,
            usable: 102.79,
            gigabytes_a_second: 2765.0,
            gigahertz: 1.75,
            link: 90.0,
            links: 6,
        },
    ),
    tpu(
        &["TPU v6 lite", "TPU v6e"],
        "v6e",
        "TPU v6e",
        Tpu {
            teraflops: 918.0,
            gibibytes: 32.0,
            usable: 33.55,
            gigabytes_a_second: 1638.0,
            gigahertz: 1.75,
            link: 90.0,
            links: 4,
        },
    ),
    gpu(
        &["NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB", "NVIDIA A100-SXM-40GB"],
        "a100-40gb",
        "A100 40 GB",
        Gpu {
            teraflops: (312.0, 156.0),
            fp8: false,
            gigabytes: 40.0,
            gibibytes: 39.5,
            gigabytes_a_second: 1555.0,
            link: (25.0, 12),
        },
    ),
    gpu(
        &["NVIDIA A100-SXM4-80GB"],
        "a100",
        "A100 80 GB SXM",
        Gpu {
            teraflops: (312.0, 156.0),
            fp8: false,
            gigabytes: 80.0,
            gibibytes: 79.2,
            gigabytes_a_second: 2039.0,
            link: (25.0, 12),
        },
    ),
    gpu(
        &["NVIDIA A100 80GB PCIe"],
        "a100-pcie",
        "A100 80 GB PCIe",
        Gpu {
            teraflops: (312.0, 156.0),
            fp8: false,
            gigabytes: 80.0,
            gibibytes: 79.2,
            gigabytes_a_second: 1935.0,
            link: PCIE_4,
        },
    ),
    gpu(
        &["NVIDIA H100 80GB HBM3"],
        "h100",
        "H100 SXM",
        Gpu {
            teraflops: (989.4, 494.7),
            fp8: true,
            gigabytes: 80.0,
            gibibytes: 79.2,
            gigabytes_a_second: 3350.0,
            link: (25.0, 18),
        },
    ),
    gpu(
        &["NVIDIA H100 PCIe"],
        "h100-pcie",
        "H100 PCIe",
        Gpu {
            teraflops: (756.0, 378.0),
            fp8: true,
            gigabytes: 80.0,
            gibibytes: 79.2,
            gigabytes_a_second: 2000.0,
            link: PCIE_5,
        },
    ),
    gpu(
        &["NVIDIA H200"],
        "h200",
        "H200 SXM",
        Gpu {
            teraflops: (989.4, 494.7),
            fp8: true,
            gigabytes: 141.0,
            gibibytes: 139.8,
            gigabytes_a_second: 4800.0,
            link: (25.0, 18),
        },
    ),
    gpu(
        &["NVIDIA B200"],
        "b200",
        "B200",
        Gpu {
            teraflops: (2250.0, 1125.0),
            fp8: true,
            gigabytes: 180.0,
            gibibytes: 178.4,
            gigabytes_a_second: 8000.0,
            link: (50.0, 18),
        },
    ),
    Chip {
        kinds: &[],
        short: "cpu",
        name: "CPU core",
        bf16: None,
        fp8: None,
        f32: None,
        memory: 8.0 * GIB,
        usable: 8.0 * GIB,
        bandwidth: 10e9,
        clock: None,
        link: 5e9,
        links: 1,
    },
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
        assert_eq!(peak("NVIDIA H200", DType::F8E4M3FN), Some(1978.8e12));
        assert_eq!(peak("NVIDIA H200", DType::F64), None);
        assert_eq!(peak("NVIDIA A100-SXM4-80GB", DType::F8E4M3FN), None);
        assert_eq!(peak("TPU v4", DType::F8E5M2), None);
    }

    #[test]
    fn nothing_is_known_of_what_is_not_there() {
        for kind in ["cpu", "", "TPU v", "NVIDIA GeForce RTX 4090"] {
            assert_eq!(Chip::of_kind(kind), None);
        }
    }

    #[test]
    fn no_kind_and_no_short_name_is_of_two_chips() {
        let kinds: Vec<&str> = CHIPS.iter().flat_map(|chip| chip.kinds).copied().collect();
        let shorts: Vec<&str> = CHIPS.iter().map(|chip| chip.short).collect();
        for mut names in [kinds, shorts] {
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count);
        }
    }

    /// All links of a GPU together are what its data sheet says, half of it each way.
    #[test]
    fn links_add_up_to_what_data_sheets_say() {
        for (short, gigabytes) in
            [("a100", 300.0), ("h100", 450.0), ("h200", 450.0), ("b200", 900.0)]
        {
            let chip = Chip::named(short).unwrap();
            assert_eq!(chip.link * chip.links as f64, gigabytes * 1e9, "{short}");
        }
    }

    #[test]
    fn a_cpu_has_no_peak() {
        let cpu = Chip::named("cpu").unwrap();
        assert_eq!((cpu.peak(DType::Bf16), cpu.peak(DType::F32)), (None, None));
    }
}
