//! The figures of all accelerators.
//!
//! Sources:
//!
//! - TPUs: peaks, memory and its bandwidth from Cloud TPU's pages. Links are achieved rates: from
//!   v4 on those of the JAX Scaling Book, about nine tenths of the nominal 50 and 100 GB/s; for v3
//!   the 80 GB/s that ASTRA-sim validates against measured all-reduces. Its nominal 656 Gb/s are
//!   82 GB/s, which the 340 TB/s of a pod's all-reduce confirm; the Scaling Book's 100 follow from
//!   its bisection instead. v2's nominal 496 Gb/s is from the paper on v2 and v3. Clocks of v2 to
//!   v4 are from their papers, v5e's from the Scaling Book, those of v5p and v6e follow from peak
//!   and matrix units. Usable memory is what libtpu 0.0.51 reports for a device. The data-center
//!   network is the Scaling Book's: for v4, which it does not list, its usual 25 GB/s per host over
//!   4 chips. Slices of v2 and v3 cannot be combined. So is the PCIe link to the host, which it
//!   states for v5e, v5p and v6e; v4 is taken to have v5p's. Host memory is that of Cloud TPU's
//!   machines with four chips.
//! - GPUs: NVIDIA's data sheets, architecture papers and the CUDA programming guide. Usable memory
//!   is what CUDA reports, less half a GiB for its context. Between nodes every GPU has its own
//!   adapter, of 200 Gb/s in a DGX A100 and of 400 Gb/s in DGX H100, H200 and B200.
//! - The H100 with 96 GB of HBM2e and a limit of 500 W, which torchtitan measured on, has no data
//!   sheet. Memory and its bandwidth are as torchtitan states; the peak is between NVIDIA's 835
//!   for the H100 NVL at 400 W and 989.4 for the SXM at 700 W, in proportion: 886. If the clock
//!   follows the cube root of the power, the peak is 0.894 of the SXM's: 884.
//! - The CPU is one core with its share of a machine; it has no peak. Its memory and link bandwidth
//!   are what two cores of a 2.8 GHz Xeon copy.

use super::{Chip, Gpu, TpuGeneration};
use crate::Platform;

const GIB: f64 = (1_u64 << 30) as f64;
const fn giga(figure: Option<f64>) -> Option<f64> {
    match figure {
        Some(figure) => Some(figure * 1e9),
        None => None,
    }
}

/// The figures of a TPU.
struct TpuFigures {
    teraflops: f64,
    gibibytes: f64,
    /// `device_memory_bytes_limit`, in units of 1e9.
    usable: f64,
    /// GB/s of memory.
    memory_rate: f64,
    gigahertz: f64,
    /// GB/s one way.
    link: f64,
    /// GB/s one way between slices.
    dcn: Option<f64>,
    /// GB/s one way to host memory.
    host: Option<f64>,
    /// Its share of the memory of a host of four chips, in GB.
    host_memory: Option<f64>,
}

const fn tpu(
    tpu: &'static TpuGeneration,
    kinds: &'static [&'static str],
    name: &'static str,
    figures: TpuFigures,
) -> Chip {
    Chip {
        kinds,
        platform: Platform::Tpu,
        short: tpu.name,
        name,
        bf16: Some(figures.teraflops * 1e12),
        fp8: None,
        f32: None,
        memory: figures.gibibytes * GIB,
        usable: figures.usable * 1e9,
        bandwidth: figures.memory_rate * 1e9,
        clock: Some(figures.gigahertz * 1e9),
        link: figures.link * 1e9,
        links: 2 * tpu.torus_rank,
        dcn: giga(figures.dcn),
        host_link: giga(figures.host),
        host_memory: giga(figures.host_memory),
        gpu: None,
        tpu: Some(tpu),
    }
}

/// The figures of a GPU.
struct GpuFigures {
    /// Teraflops in `bf16` and in TF32.
    teraflops: (f64, f64),
    /// Whether there are FP8 units, twice as fast as those for `bf16`.
    fp8: bool,
    gigabytes: f64,
    /// What CUDA reports, in GiB.
    gibibytes: f64,
    /// GB/s of memory.
    memory_rate: f64,
    /// GB/s one way per link, and the number of links.
    link: (f64, usize),
    /// GB/s one way of its network adapter.
    nic: Option<f64>,
    /// For those that programs are compiled for without the device.
    gpu: Option<Gpu>,
}

/// The memory of a CUDA context.
const CONTEXT: f64 = 0.5 * GIB;

const fn gpu(
    short: &'static str,
    kinds: &'static [&'static str],
    name: &'static str,
    figures: GpuFigures,
) -> Chip {
    Chip {
        kinds,
        platform: Platform::Cuda,
        short,
        name,
        bf16: Some(figures.teraflops.0 * 1e12),
        fp8: if figures.fp8 { Some(2.0 * figures.teraflops.0 * 1e12) } else { None },
        f32: Some(figures.teraflops.1 * 1e12),
        memory: figures.gigabytes * 1e9,
        usable: figures.gibibytes * GIB - CONTEXT,
        bandwidth: figures.memory_rate * 1e9,
        clock: None,
        link: figures.link.0 * 1e9,
        links: figures.link.1,
        dcn: giga(figures.nic),
        host_link: match figures.gpu {
            Some(gpu) => Some(gpu.pcie as f64),
            None => None,
        },
        host_memory: None,
        gpu: figures.gpu,
        tpu: None,
    }
}

/// Network adapters of 200 and 400 Gb/s, in GB/s.
const NIC_200: f64 = 25.0;
const NIC_400: f64 = 50.0;
/// PCIe 4.0 and 5.0, 16 lanes, in GB/s.
const PCIE_4: u64 = 32;
const PCIE_5: u64 = 64;
const GIGA: u64 = 1_000_000_000;

const AMPERE: Gpu = Gpu {
    capability: (8, 0),
    multiprocessors: 108,
    f32_lanes: 64,
    f64_lanes: 32,
    bf16_fmas: 256,
    f64_fmas: 16,
    boost_ghz: 1.41,
    driver_mib: 81_920,
    l2_mib: 40,
    shared_kib: 164,
    pcie: PCIE_4 * GIGA,
};

const HOPPER: Gpu = Gpu {
    capability: (9, 0),
    multiprocessors: 132,
    f32_lanes: 128,
    f64_lanes: 64,
    bf16_fmas: 512,
    f64_fmas: 32,
    boost_ghz: 1.98,
    driver_mib: 143_771,
    l2_mib: 50,
    shared_kib: 228,
    pcie: PCIE_5 * GIGA,
};

const BLACKWELL: Gpu = Gpu {
    capability: (10, 0),
    multiprocessors: 148,
    f32_lanes: 128,
    f64_lanes: 64,
    bf16_fmas: 1024,
    f64_fmas: 16,
    boost_ghz: 1.965,
    driver_mib: 183_359,
    l2_mib: 126,
    shared_kib: 228,
    pcie: PCIE_5 * GIGA,
};

/// All accelerators.
pub(super) const CHIPS: &[Chip] = &[
    tpu(
        &TpuGeneration::V2,
        &["TPU v2"],
        "TPU v2 core",
        TpuFigures {
            teraflops: 23.0,
            gibibytes: 8.0,
            usable: 8.03,
            memory_rate: 350.0,
            gigahertz: 0.7,
            link: 62.0,
            dcn: None,
            host: None,
            host_memory: None,
        },
    ),
    tpu(
        &TpuGeneration::V3,
        &["TPU v3"],
        "TPU v3 core",
        TpuFigures {
            teraflops: 61.5,
            gibibytes: 16.0,
            usable: 16.62,
            memory_rate: 450.0,
            gigahertz: 0.94,
            link: 80.0,
            dcn: None,
            host: None,
            host_memory: None,
        },
    ),
    tpu(
        &TpuGeneration::V4,
        &["TPU v4"],
        "TPU v4",
        TpuFigures {
            teraflops: 275.0,
            gibibytes: 32.0,
            usable: 33.01,
            memory_rate: 1200.0,
            gigahertz: 1.05,
            link: 45.0,
            dcn: Some(6.25),
            host: Some(16.0),
            host_memory: Some(407.0 / 4.0),
        },
    ),
    tpu(
        &TpuGeneration::V5E,
        &["TPU v5 lite", "TPU v5e"],
        "TPU v5e",
        TpuFigures {
            teraflops: 197.0,
            gibibytes: 16.0,
            usable: 16.91,
            memory_rate: 819.0,
            gigahertz: 1.5,
            link: 45.0,
            dcn: Some(3.125),
            host: Some(16.0),
            host_memory: Some(192.0 / 4.0),
        },
    ),
    tpu(
        &TpuGeneration::V5P,
        &["TPU v5", "TPU v5p"],
        "TPU v5p",
        TpuFigures {
            teraflops: 459.0,
            gibibytes: 95.0,
            usable: 102.79,
            memory_rate: 2765.0,
            gigahertz: 1.75,
            link: 90.0,
            dcn: Some(6.25),
            host: Some(16.0),
            host_memory: Some(448.0 / 4.0),
        },
    ),
    tpu(
        &TpuGeneration::V6E,
        &["TPU v6 lite", "TPU v6e"],
        "TPU v6e",
        TpuFigures {
            teraflops: 918.0,
            gibibytes: 32.0,
            usable: 33.55,
            memory_rate: 1638.0,
            gigahertz: 1.75,
            link: 90.0,
            dcn: Some(12.5),
            host: Some(32.0),
            host_memory: Some(720.0 / 4.0),
        },
    ),
    gpu(
        "a100-40gb",
        &["NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB", "NVIDIA A100-SXM-40GB"],
        "A100 40 GB",
        GpuFigures {
            teraflops: (312.0, 156.0),
            fp8: false,
            gigabytes: 40.0,
            gibibytes: 39.5,
            memory_rate: 1555.0,
            link: (25.0, 12),
            nic: Some(NIC_200),
            gpu: None,
        },
    ),
    gpu(
        "a100",
        &["NVIDIA A100-SXM4-80GB"],
        "A100 80 GB SXM",
        GpuFigures {
            teraflops: (312.0, 156.0),
            fp8: false,
            gigabytes: 80.0,
            gibibytes: 79.2,
            memory_rate: 2039.0,
            link: (25.0, 12),
            nic: Some(NIC_200),
            gpu: Some(AMPERE),
        },
    ),
    gpu(
        "a100-pcie",
        &["NVIDIA A100 80GB PCIe"],
        "A100 80 GB PCIe",
        GpuFigures {
            teraflops: (312.0, 156.0),
            fp8: false,
            gigabytes: 80.0,
            gibibytes: 79.2,
            memory_rate: 1935.0,
            link: (PCIE_4 as f64, 1),
            nic: None,
            gpu: None,
        },
    ),
    gpu(
        "h100",
        &["NVIDIA H100 80GB HBM3"],
        "H100 SXM",
        GpuFigures {
            teraflops: (989.4, 494.7),
            fp8: true,
            gigabytes: 80.0,
            gibibytes: 79.2,
            memory_rate: 3350.0,
            link: (25.0, 18),
            nic: Some(NIC_400),
            gpu: Some(Gpu { driver_mib: 81_559, ..HOPPER }),
        },
    ),
    gpu(
        "h100-96gb",
        &[],
        "H100 96 GB at 500 W",
        GpuFigures {
            teraflops: (886.0, 443.0),
            fp8: true,
            gigabytes: 96.0,
            gibibytes: 95.0,
            memory_rate: 2400.0,
            link: (25.0, 18),
            nic: Some(NIC_400),
            gpu: Some(Gpu { driver_mib: 97_280, ..HOPPER }),
        },
    ),
    gpu(
        "h100-pcie",
        &["NVIDIA H100 PCIe"],
        "H100 PCIe",
        GpuFigures {
            teraflops: (756.0, 378.0),
            fp8: true,
            gigabytes: 80.0,
            gibibytes: 79.2,
            memory_rate: 2000.0,
            link: (PCIE_5 as f64, 1),
            nic: None,
            gpu: None,
        },
    ),
    gpu(
        "h200",
        &["NVIDIA H200"],
        "H200 SXM",
        GpuFigures {
            teraflops: (989.4, 494.7),
            fp8: true,
            gigabytes: 141.0,
            gibibytes: 139.8,
            memory_rate: 4800.0,
            link: (25.0, 18),
            nic: Some(NIC_400),
            gpu: Some(HOPPER),
        },
    ),
    gpu(
        "b200",
        &["NVIDIA B200"],
        "B200",
        GpuFigures {
            teraflops: (2250.0, 1125.0),
            fp8: true,
            gigabytes: 180.0,
            gibibytes: 178.4,
            memory_rate: 8000.0,
            link: (50.0, 18),
            nic: Some(NIC_400),
            gpu: Some(BLACKWELL),
        },
    ),
    Chip {
        kinds: &[],
        platform: Platform::Cpu,
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
        dcn: None,
        host_link: None,
        host_memory: None,
        gpu: None,
        tpu: None,
    },
];
