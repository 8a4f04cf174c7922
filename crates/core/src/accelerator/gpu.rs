//! GPUs: what a compiler needs to know of one that is not there, and GPUs of one host by name.

use super::{Chip, UnknownAccelerator};
use std::fmt;

/// What a compiler needs to know of a GPU, beyond peaks, bandwidth and links. The figures are those
/// of NVIDIA's data sheets, architecture papers and the table of compute capabilities in the CUDA
/// programming guide.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gpu {
    /// The compute capability, major and minor.
    pub capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u64,
    /// Lanes for `f32` of each multiprocessor.
    pub f32_lanes: u64,
    /// Lanes for `f64` of each multiprocessor.
    pub f64_lanes: u64,
    /// Fused multiply-adds per clock of each matrix unit in `bf16`.
    pub bf16_fmas: u64,
    /// The same in `f64`.
    pub f64_fmas: u64,
    /// The highest clock, in GHz.
    pub boost_ghz: f64,
    /// MiB of memory, as the driver lists them.
    pub driver_mib: u64,
    /// MiB of second-level cache.
    pub l2_mib: u64,
    /// KiB of a multiprocessor's first-level cache that may be shared memory.
    pub shared_kib: u64,
    /// Bytes per second to the host.
    pub pcie: u64,
}

impl Gpu {
    /// Matrix units of each multiprocessor.
    pub const MATRIX_UNITS: u64 = 4;

    /// The clock, in GHz, at which the matrix units reach a peak in `bf16`: that which is sustained
    /// in matmuls.
    pub fn matmul_ghz(&self, peak: f64) -> f64 {
        let per_clock = 2 * self.multiprocessors * Gpu::MATRIX_UNITS * self.bf16_fmas;
        peak / per_clock as f64 / 1e9
    }
}

/// Up to eight GPUs of one model in one host, all connected to all.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GpuTarget {
    chip: &'static Chip,
    gpu: Gpu,
    count: usize,
}

impl GpuTarget {
    /// The most GPUs that one host has.
    pub const MAX_DEVICES: usize = 8;

    /// The models that programs can be compiled for.
    pub fn models() -> impl Iterator<Item = &'static Chip> {
        Chip::ALL.iter().filter(|chip| chip.gpu.is_some())
    }

    /// Whether a name is that of GPUs of some model, however many.
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
        let most = Self::MAX_DEVICES;
        let count = count.parse().ok().filter(|count| (1..=most).contains(count));
        let count = count.ok_or_else(|| {
            unknown(format!("from 1 to {most} GPUs are written as {name}:1 to {name}:{most}"))
        })?;
        Ok(GpuTarget { chip, gpu, count })
    }

    /// The model of all of them.
    pub fn chip(&self) -> &'static Chip {
        self.chip
    }

    /// What a compiler needs to know of each.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// How many there are.
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
    fn gpus_are_written_with_their_number() {
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
    fn names_of_gpus_are_told_from_others() {
        assert!(GpuTarget::is_named_by("H200:99") && GpuTarget::is_named_by("a100"));
        assert!(!GpuTarget::is_named_by("v4-8") && !GpuTarget::is_named_by("cpu:4"));
    }
}
