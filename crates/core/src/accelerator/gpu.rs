//! GPUs: properties needed to compile without the device, and GPUs of one host by name.

use super::{Chip, UnknownAccelerator};
use std::fmt;

/// Properties of a GPU that a compiler needs, beyond peaks, bandwidth and links. The figures are
/// from NVIDIA's data sheets, architecture papers and the table of compute capabilities in the CUDA
/// programming guide.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gpu {
    /// The compute capability, major and minor.
    pub capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u64,
    /// `f32` lanes per multiprocessor.
    pub f32_lanes: u64,
    /// `f64` lanes per multiprocessor.
    pub f64_lanes: u64,
    /// Fused multiply-adds per clock per matrix unit in `bf16`.
    pub bf16_fmas: u64,
    /// The same in `f64`.
    pub f64_fmas: u64,
    /// The highest clock, in GHz.
    pub boost_ghz: f64,
    /// MiB of memory, as the driver reports.
    pub driver_mib: u64,
    /// MiB of L2 cache.
    pub l2_mib: u64,
    /// KiB of a multiprocessor's L1 cache that can be shared memory.
    pub shared_kib: u64,
    /// Bytes per second to the host.
    pub pcie: u64,
}

impl Gpu {
    /// Matrix units per multiprocessor.
    pub const MATRIX_UNITS: u64 = 4;

    /// The clock, in GHz, at which the matrix units reach a peak in `bf16`: the one sustained in
    /// matmuls.
    pub fn matmul_ghz(&self, peak: f64) -> f64 {
        let per_clock = 2 * self.multiprocessors * Gpu::MATRIX_UNITS * self.bf16_fmas;
        peak / per_clock as f64 / 1e9
    }
}

/// Up to eight GPUs of one model in one host, fully connected.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GpuTarget {
    chip: &'static Chip,
    gpu: Gpu,
    count: usize,
}

impl GpuTarget {
    /// The maximum number of GPUs per host.
    pub const MAX_DEVICES: usize = 8;

    /// The models that programs can be compiled for.
    pub fn models() -> impl Iterator<Item = &'static Chip> {
        Chip::ALL.iter().filter(|chip| chip.gpu.is_some())
    }

    /// Whether a name is that of a GPU model, with any count.
    pub fn is_named_by(text: &str) -> bool {
        let lower = text.to_ascii_lowercase();
        let name = lower.split(':').next().unwrap_or_default();
        GpuTarget::models().any(|chip| chip.short == name)
    }

    /// Reads `h200:8`, or `h200` for one.
    pub fn parse(text: &str) -> Result<GpuTarget, UnknownAccelerator> {
        let unknown = |hint: String| UnknownAccelerator { name: text.to_owned(), hint };
        let lower = text.to_ascii_lowercase();
        let (name, count) = lower.split_once(':').unwrap_or((&lower, "1"));
        let named = Chip::named(name).and_then(|chip| Some((chip, chip.gpu?)));
        let (chip, gpu) = named.ok_or_else(|| {
            let known: Vec<&str> = GpuTarget::models().map(|chip| chip.short).collect();
            unknown(format!("the GPUs are {}", known.join(", ")))
        })?;
        let max = Self::MAX_DEVICES;
        let count = count.parse().ok().filter(|count| (1..=max).contains(count));
        let count = count.ok_or_else(|| {
            unknown(format!("from 1 to {max} GPUs are written as {name}:1 to {name}:{max}"))
        })?;
        Ok(GpuTarget { chip, gpu, count })
    }

    /// The model.
    pub fn chip(&self) -> &'static Chip {
        self.chip
    }

    /// The properties that a compiler needs.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The number of GPUs.
    pub fn devices(&self) -> usize {
        self.count
    }
}

impl fmt::Display for GpuTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.chip.short, self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_counts() {
        for (text, shown) in [("h200", "h200:1"), ("H200:8", "h200:8"), ("a100:3", "a100:3")] {
            assert_eq!(GpuTarget::parse(text).unwrap().to_string(), shown);
        }
        for (text, hint) in [
            ("h300", "a100, h100, h200, b200"),
            ("v4", "a100, h100, h200, b200"),
            ("h200:0", "from 1 to 8"),
            ("h200:9", "h200:8"),
            ("h200:", "h200:1"),
            ("h200:-1", "h200:1"),
        ] {
            let error = GpuTarget::parse(text).unwrap_err().to_string();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }

    #[test]
    fn recognizes_gpu_names() {
        assert!(GpuTarget::is_named_by("H200:99") && GpuTarget::is_named_by("a100"));
        assert!(!GpuTarget::is_named_by("v4-8") && !GpuTarget::is_named_by("cpu:4"));
    }
}
