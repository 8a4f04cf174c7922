//! GPUs: properties needed to compile without the device, and GPUs of one or several nodes by
//! name: `h200:8`, `h100:8x16`.

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

/// GPUs of one model: up to eight in a node, fully connected, and any number of equal nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GpuTarget {
    chip: &'static Chip,
    gpu: Gpu,
    per_node: usize,
    nodes: usize,
}

impl GpuTarget {
    /// The maximum number of GPUs per node.
    pub const MAX_PER_NODE: usize = 8;

    /// The maximum number of nodes: those of the 16,384 GPUs that Llama 3 was trained on.
    pub const MAX_NODES: usize = 2048;

    /// Reads counts, GPUs per node and nodes: `8` or `8x16`.
    pub fn parse_counts(text: &str) -> Option<(usize, usize)> {
        let (per_node, nodes) = text.split_once('x').unwrap_or((text, "1"));
        let within = |text: &str, max| text.parse().ok().filter(|count| (1..=max).contains(count));
        Some((within(per_node, Self::MAX_PER_NODE)?, within(nodes, Self::MAX_NODES)?))
    }

    /// The valid counts of a model, for error messages.
    pub fn counts_hint(name: &str) -> String {
        let (max, nodes) = (Self::MAX_PER_NODE, Self::MAX_NODES);
        format!(
            "from 1 to {max} GPUs of a node are written as {name}:1 to {name}:{max}, and from 1 to \
             {nodes} nodes of {max} as {name}:{max}x16"
        )
    }

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

    /// Reads `h200:8`, `h200:8x16` for 16 nodes of 8, or `h200` for one.
    pub fn parse(text: &str) -> Result<GpuTarget, UnknownAccelerator> {
        let unknown = |hint: String| UnknownAccelerator { name: text.to_owned(), hint };
        let lower = text.to_ascii_lowercase();
        let (name, count) = lower.split_once(':').unwrap_or((&lower, "1"));
        let named = Chip::named(name).and_then(|chip| Some((chip, chip.gpu?)));
        let (chip, gpu) = named.ok_or_else(|| {
            let known: Vec<&str> = GpuTarget::models().map(|chip| chip.short).collect();
            unknown(format!("the GPUs are {}", known.join(", ")))
        })?;
        let counts = Self::parse_counts(count);
        let (per_node, nodes) = counts.ok_or_else(|| unknown(Self::counts_hint(name)))?;
        Ok(GpuTarget { chip, gpu, per_node, nodes })
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
        self.per_node * self.nodes
    }

    /// The number of GPUs of one node.
    pub fn per_node(&self) -> usize {
        self.per_node
    }

    /// The number of nodes.
    pub fn nodes(&self) -> usize {
        self.nodes
    }
}

impl fmt::Display for GpuTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.chip.short, self.per_node)?;
        if self.nodes > 1 { write!(f, "x{}", self.nodes) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_counts() {
        for (text, shown, devices) in [
            ("h200", "h200:1", 1),
            ("H200:8", "h200:8", 8),
            ("a100:3", "a100:3", 3),
            ("h100:8x16", "h100:8x16", 128),
            ("h100:4x1", "h100:4", 4),
            ("h100:8x2048", "h100:8x2048", 16384),
        ] {
            let target = GpuTarget::parse(text).unwrap();
            assert_eq!((target.to_string(), target.devices()), (shown.to_owned(), devices));
        }
        for (text, hint) in [
            ("h300", "a100, h100, h100-96gb, h200, b200"),
            ("v4", "a100, h100, h100-96gb, h200, b200"),
            ("h200:0", "from 1 to 8"),
            ("h200:9", "h200:8"),
            ("h200:", "h200:1"),
            ("h200:-1", "h200:1"),
            ("h200:8x0", "h200:8x16"),
            ("h200:8x2049", "from 1 to 2048 nodes"),
            ("h200:16x2", "h200:8x16"),
            ("h200:8x2x2", "h200:8x16"),
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
