//! The figures of accelerators, one by one.
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

use super::Chip;

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
pub(super) const CHIPS: &[Chip] = &[
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
