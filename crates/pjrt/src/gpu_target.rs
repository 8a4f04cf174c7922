//! GPUs by the names people use, and their description for a compiler that has none at hand.
//!
//! The CUDA plugin compiles for a GPU that is not there from a text that says what it is like. We
//! write that text from the figures in NVIDIA's data sheets, architecture papers and the table of
//! compute capabilities in the CUDA programming guide.

use crate::error::{Error, Result};
use std::fmt::{self, Write};

/// A model of GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum GpuModel {
    /// The one with 80 GB, on an SXM4 board.
    A100,
    /// The one on an SXM5 board.
    H100,
    H200,
    B200,
}

/// Up to eight GPUs of one model in one host, all connected to all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuTarget {
    model: GpuModel,
    count: usize,
}

/// What is public of a model.
struct Figures {
    name: &'static str,
    /// What the driver calls it, which is what PJRT reports as the device's kind.
    kind: &'static str,
    /// The compute capability.
    capability: (u32, u32),
    /// Streaming multiprocessors.
    cores: u64,
    /// Lanes for `f32`, and those for `f64`, of each.
    lanes: (u64, u64),
    /// Multiplications with addition a clock, of each of the four matrix units of a
    /// multiprocessor, in `bf16`.
    products: u64,
    /// The same in `f64`.
    double_products: u64,
    /// Operations a second in `bf16`, without sparsity: at the clock that is sustained in products.
    peak: f64,
    /// The highest clock, in GHz.
    clock: f64,
    /// Bytes of memory read or written a second.
    bandwidth: u64,
    /// MiB of memory, as the driver lists them.
    memory: u64,
    /// MiB of second-level cache.
    cache: u64,
    /// KiB of first-level cache of a multiprocessor that may be shared memory.
    shared: u64,
    /// Links to the other GPUs.
    links: u64,
    /// Bytes a second to the host.
    host: u64,
}

const GIGA: u64 = 1_000_000_000;

impl GpuModel {
    /// Every model there is a description of.
    pub const ALL: [GpuModel; 4] = [GpuModel::A100, GpuModel::H100, GpuModel::H200, GpuModel::B200];

    /// Whether a name is that of GPUs of some model, however many.
    pub fn is_named_by(text: &str) -> bool {
        let lower = text.to_ascii_lowercase();
        let name = lower.split(':').next().unwrap_or_default();
        GpuModel::ALL.into_iter().any(|model| model.name() == name)
    }

    /// The usual name, such as `h200`.
    pub fn name(self) -> &'static str {
        self.figures().name
    }

    /// The kind that PJRT reports for a device of this model.
    pub fn kind(self) -> &'static str {
        self.figures().kind
    }

    /// Bytes of memory on it.
    pub fn memory(self) -> u64 {
        self.figures().memory << 20
    }

    fn figures(self) -> Figures {
        match self {
            GpuModel::A100 => Figures {
                name: "a100",
                kind: "NVIDIA A100-SXM4-80GB",
                capability: (8, 0),
                cores: 108,
                lanes: (64, 32),
                products: 256,
                double_products: 16,
                peak: 312e12,
                clock: 1.41,
                bandwidth: 2039 * GIGA,
                memory: 81_920,
                cache: 40,
                shared: 164,
                links: 12,
                host: 32 * GIGA,
            },
            GpuModel::H100 => Figures {
                name: "h100",
                kind: "NVIDIA H100 80GB HBM3",
                bandwidth: 3350 * GIGA,
                memory: 81_559,
                ..GpuModel::H200.figures()
            },
            GpuModel::H200 => Figures {
                name: "h200",
                kind: "NVIDIA H200",
                capability: (9, 0),
                cores: 132,
                lanes: (128, 64),
                products: 512,
                double_products: 32,
                peak: 989.4e12,
                clock: 1.98,
                bandwidth: 4800 * GIGA,
                memory: 143_771,
                cache: 50,
                shared: 228,
                links: 18,
                host: 64 * GIGA,
            },
            GpuModel::B200 => Figures {
                name: "b200",
                kind: "NVIDIA B200",
                capability: (10, 0),
                cores: 148,
                lanes: (128, 64),
                products: 1024,
                double_products: 16,
                peak: 2250e12,
                clock: 1.965,
                bandwidth: 8000 * GIGA,
                memory: 183_359,
                cache: 126,
                shared: 228,
                links: 18,
                host: 64 * GIGA,
            },
        }
    }
}

impl GpuTarget {
    /// As many GPUs as one host has at most.
    const MOST: usize = 8;

    /// Reads `h200:8`, or `h200` for one.
    pub fn parse(text: &str) -> Result<GpuTarget> {
        let unknown = |hint: String| Error::UnknownAccelerator { name: text.to_owned(), hint };
        let lower = text.to_ascii_lowercase();
        let (name, count) = lower.split_once(':').unwrap_or((&lower, "1"));
        let model = GpuModel::ALL.into_iter().find(|model| model.name() == name);
        let model = model.ok_or_else(|| {
            unknown(format!("the GPUs are {}", GpuModel::ALL.map(GpuModel::name).join(", ")))
        })?;
        let count = count.parse().ok().filter(|count| (1..=Self::MOST).contains(count));
        let count = count.ok_or_else(|| {
            let most = Self::MOST;
            unknown(format!("from 1 to {most} GPUs are written as {name}:1 to {name}:{most}"))
        })?;
        Ok(GpuTarget { model, count })
    }

    /// The model of all of them.
    pub fn model(&self) -> GpuModel {
        self.model
    }

    /// How many there are.
    pub fn devices(&self) -> usize {
        self.count
    }

    /// How they are spread: over partitions, hosts of each, and devices of each of those.
    pub(crate) fn arrangement(&self) -> String {
        format!("1x1x{}", self.count)
    }

    /// What one of them is like, in the text form of XLA's `GpuTargetConfigProto`.
    pub(crate) fn description(&self) -> String {
        let figures = self.model.figures();
        let mut text = Text::default();
        text.nested("gpu_device_info", |text| figures.write(text));
        text.quoted("platform_name", "CUDA");
        text.quoted("device_description_str", figures.kind);
        text.0
    }
}

impl fmt::Display for GpuTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.model.name(), self.count)
    }
}

impl Figures {
    fn write(&self, text: &mut Text) {
        let shared = self.shared << 10;
        // One KiB of the shared memory of every block is the system's.
        let shared_for_one = shared - (1 << 10);
        let (major, minor) = self.capability;
        for (name, value) in [
            ("threads_per_block_limit", 1024),
            ("threads_per_warp", 32),
            ("shared_memory_per_block", 48 << 10),
            ("shared_memory_per_block_optin", shared_for_one),
            ("shared_memory_per_core", shared),
            ("threads_per_core_limit", 2048),
            ("core_count", self.cores),
            ("fpus_per_core", self.lanes.0),
            ("block_dim_limit_x", i32::MAX as u64),
            ("block_dim_limit_y", u64::from(u16::MAX)),
            ("block_dim_limit_z", u64::from(u16::MAX)),
            ("thread_dim_limit_x", 1024),
            ("thread_dim_limit_y", 1024),
            ("thread_dim_limit_z", 64),
            ("registers_per_core_limit", 1 << 16),
            ("registers_per_block_limit", 1 << 16),
            ("memory_bandwidth", self.bandwidth),
            ("l2_cache_size", self.cache << 20),
            ("device_memory_size", self.memory << 20),
            ("device_address_bits", 64),
            ("pcie_bandwidth", self.host),
        ] {
            text.field(name, value);
        }
        text.field("clock_rate_ghz", self.clock);
        text.field("ecc_enabled", true);
        text.nested("cuda_compute_capability", |text| {
            text.field("major", major);
            text.field("minor", minor);
            // From Hopper on there are instructions for one generation alone, and matrix
            // products use them.
            let extension = if major >= 9 { "ACCELERATED_FEATURES" } else { "NONE" };
            text.field("feature_extension", extension);
        });
        text.nested("scalar_unit_description", |text| self.write_scalar_rates(text));
        text.nested("matrix_unit_description", |text| self.write_product_rates(text));
        text.nested("device_interconnect_info", |text| text.field("active_links", self.links));
        text.quoted("device_vendor", "NVIDIA Corporation");
        text.quoted("name", self.kind);
        text.quoted("platform_version", &format!("Compute Capability {major}.{minor}"));
        // The versions our pinned companions have: the compiler avoids what older ones lack.
        text.quoted("driver_version", "13.0.0");
        text.quoted("runtime_version", "13.0.0");
        text.quoted("compile_time_toolkit_version", "13.0.0");
        text.quoted("dnn_version", "9.10.0");
    }

    /// What the lanes of a multiprocessor do, by element type.
    fn write_scalar_rates(&self, text: &mut Text) {
        let (single, double) = self.lanes;
        // Two halves in one lane.
        for (element, lanes, operations) in [
            (element::S32, 64, 1),
            (element::U32, 64, 1),
            (element::F16, single, 2),
            (element::BF16, single, 2),
            (element::F32, single, 1),
            (element::F64, double, 1),
        ] {
            text.rate(element, self.clock, lanes, operations);
        }
    }

    /// What the matrix units of a multiprocessor do, by element type.
    fn write_product_rates(&self, text: &mut Text) {
        const UNITS: u64 = 4;
        let a_clock = (2 * self.cores * UNITS * self.products) as f64;
        let clock = self.peak / a_clock / GIGA as f64;
        let mut rates = vec![
            (element::S8, 2 * self.products),
            (element::F16, self.products),
            (element::BF16, self.products),
            // Through TF32.
            (element::F32, self.products / 2),
            (element::F64, self.double_products),
        ];
        if self.capability.0 >= 9 {
            rates.push((element::F8E5M2, 2 * self.products));
            rates.push((element::F8E4M3FN, 2 * self.products));
        }
        for (element, operations) in rates {
            text.rate(element, clock, UNITS, operations);
        }
    }
}

/// XLA's numbers of element types.
mod element {
    pub const S8: i32 = 2;
    pub const S32: i32 = 4;
    pub const U32: i32 = 8;
    pub const F16: i32 = 10;
    pub const F32: i32 = 11;
    pub const F64: i32 = 12;
    pub const BF16: i32 = 16;
    pub const F8E5M2: i32 = 19;
    pub const F8E4M3FN: i32 = 20;
}

/// A protocol buffer as text.
#[derive(Default)]
struct Text(String);

impl Text {
    fn field(&mut self, name: &str, value: impl fmt::Display) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "{name}: {value}");
    }

    fn quoted(&mut self, name: &str, value: &str) {
        self.field(name, format_args!("{value:?}"));
    }

    fn nested(&mut self, name: &str, inside: impl FnOnce(&mut Text)) {
        self.0.push_str(name);
        self.0.push_str(" {\n");
        inside(self);
        self.0.push_str("}\n");
    }

    fn rate(&mut self, element: i32, clock: f64, units: u64, operations: u64) {
        self.nested("rate_infos", |text| {
            text.field("key", element);
            text.nested("value", |text| {
                text.field("clock_rate_ghz", clock);
                text.field("units_per_core", units);
                text.field("ops_per_clock", operations);
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_written_with_their_number() {
        for (text, shown, arrangement) in [
            ("h200", "h200:1", "1x1x1"),
            ("H200:8", "h200:8", "1x1x8"),
            ("a100:3", "a100:3", "1x1x3"),
        ] {
            let target = GpuTarget::parse(text).unwrap();
            assert_eq!(target.to_string(), shown);
            assert_eq!(target.arrangement(), arrangement);
        }
        for (text, hint) in [
            ("h300", "a100, h100, h200, b200"),
            ("h200:0", "from 1 to 8"),
            ("h200:9", "h200:8"),
            ("h200:", "h200:1"),
            ("h200:-1", "h200:1"),
        ] {
            let error = GpuTarget::parse(text).unwrap_err().to_string();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }

    /// The peak that the compiler works out from the description is the data sheet's.
    #[test]
    fn descriptions_hold_the_peak() {
        for model in GpuModel::ALL {
            let figures = model.figures();
            let mut text = Text::default();
            figures.write_product_rates(&mut text);
            let of_bf16 = text.0.split("key: 16\n").nth(1).unwrap();
            let number = |name: &str| -> f64 {
                let line = of_bf16.lines().find(|line| line.starts_with(name)).unwrap();
                line.split(": ").nth(1).unwrap().parse().unwrap()
            };
            let peak = 2e9
                * figures.cores as f64
                * number("clock_rate_ghz")
                * number("units_per_core")
                * number("ops_per_clock");
            assert!((peak / figures.peak - 1.0).abs() < 1e-9, "{}: {peak}", figures.name);
            // No clock beyond the highest, but for rounding: else a figure is wrong.
            assert!(number("clock_rate_ghz") <= 1.001 * figures.clock, "{}", figures.name);
        }
    }
}
