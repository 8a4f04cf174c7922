//! Ahead-of-time GPU targets for the CUDA plugin's compiler.
//!
//! The plugin compiles for a GPU that is not present from a text description of it. That text is
//! generated here, from the figures in [`fullshard_core::accelerator`].

use fullshard_core::{Chip, Gpu, GpuTarget};
use std::fmt::{self, Write};

/// The topology as partitions x hosts per partition x devices per host.
pub(crate) fn arrangement(target: &GpuTarget) -> String {
    format!("1x{}x{}", target.nodes(), target.per_node())
}

/// The description of one GPU, in the text form of XLA's `GpuTargetConfigProto`.
pub(crate) fn description(target: &GpuTarget) -> String {
    let figures = Figures { chip: target.chip(), gpu: target.gpu() };
    let mut text = Text::default();
    text.nested("gpu_device_info", |text| figures.write(text));
    text.quoted("platform_name", "CUDA");
    text.quoted("device_description_str", figures.kind());
    text.0
}

/// The published specifications of a model.
struct Figures<'a> {
    chip: &'static Chip,
    gpu: &'a Gpu,
}

impl Figures<'_> {
    /// The driver's name for it, which PJRT reports as the device kind.
    fn kind(&self) -> &'static str {
        self.chip.kinds.first().copied().unwrap_or(self.chip.name)
    }

    fn write(&self, text: &mut Text) {
        let shared = self.gpu.shared_kib << 10;
        // One KiB of the shared memory of every block is reserved for the system.
        let shared_for_one = shared - (1 << 10);
        let (major, minor) = self.gpu.capability;
        for (name, value) in [
            ("threads_per_block_limit", 1024),
            ("threads_per_warp", 32),
            ("shared_memory_per_block", 48 << 10),
            ("shared_memory_per_block_optin", shared_for_one),
            ("shared_memory_per_core", shared),
            ("threads_per_core_limit", 2048),
            ("core_count", self.gpu.multiprocessors),
            ("fpus_per_core", self.gpu.f32_lanes),
            ("block_dim_limit_x", i32::MAX as u64),
            ("block_dim_limit_y", u64::from(u16::MAX)),
            ("block_dim_limit_z", u64::from(u16::MAX)),
            ("thread_dim_limit_x", 1024),
            ("thread_dim_limit_y", 1024),
            ("thread_dim_limit_z", 64),
            ("registers_per_core_limit", 1 << 16),
            ("registers_per_block_limit", 1 << 16),
            ("memory_bandwidth", self.chip.bandwidth as u64),
            ("l2_cache_size", self.gpu.l2_mib << 20),
            ("device_memory_size", self.gpu.driver_mib << 20),
            ("device_address_bits", 64),
            ("pcie_bandwidth", self.gpu.pcie),
        ] {
            text.field(name, value);
        }
        text.field("clock_rate_ghz", self.gpu.boost_ghz);
        text.field("ecc_enabled", true);
        text.nested("cuda_compute_capability", |text| {
            text.field("major", major);
            text.field("minor", minor);
            // From Hopper on there are generation-specific instructions, and matmuls use them.
            let extension = if major >= 9 { "ACCELERATED_FEATURES" } else { "NONE" };
            text.field("feature_extension", extension);
        });
        text.nested("scalar_unit_description", |text| self.write_scalar_rates(text));
        text.nested("matrix_unit_description", |text| self.write_matmul_rates(text));
        text.nested("device_interconnect_info", |text| text.field("active_links", self.chip.links));
        text.quoted("device_vendor", "NVIDIA Corporation");
        text.quoted("name", self.kind());
        text.quoted("platform_version", &format!("Compute Capability {major}.{minor}"));
        // The versions of our pinned libraries: the compiler avoids features that older ones lack.
        text.quoted("driver_version", "13.0.0");
        text.quoted("runtime_version", "13.0.0");
        text.quoted("compile_time_toolkit_version", "13.0.0");
        text.quoted("dnn_version", "9.10.0");
    }

    /// Rates of the scalar lanes of a multiprocessor, by element type.
    fn write_scalar_rates(&self, text: &mut Text) {
        let (single, double) = (self.gpu.f32_lanes, self.gpu.f64_lanes);
        // Two f16 values per lane.
        for (element, lanes, operations) in [
            (element::S32, 64, 1),
            (element::U32, 64, 1),
            (element::F16, single, 2),
            (element::BF16, single, 2),
            (element::F32, single, 1),
            (element::F64, double, 1),
        ] {
            text.rate(element, self.gpu.boost_ghz, lanes, operations);
        }
    }

    /// Rates of the matrix units of a multiprocessor, by element type.
    fn write_matmul_rates(&self, text: &mut Text) {
        let fmas = self.gpu.bf16_fmas;
        let clock = self.gpu.matmul_ghz(self.chip.bf16.unwrap_or_default());
        let mut rates = vec![
            (element::S8, 2 * fmas),
            (element::F16, fmas),
            (element::BF16, fmas),
            // As TF32.
            (element::F32, fmas / 2),
            (element::F64, self.gpu.f64_fmas),
        ];
        if self.gpu.capability.0 >= 9 {
            rates.push((element::F8E5M2, 2 * fmas));
            rates.push((element::F8E4M3FN, 2 * fmas));
        }
        for (element, operations) in rates {
            text.rate(element, clock, Gpu::MATRIX_UNITS, operations);
        }
    }
}

/// XLA's element type numbers.
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

/// A protobuf in text format.
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
    fn gpus_of_a_node_are_on_one_host() {
        for (text, expected) in
            [("h200", "1x1x1"), ("h200:8", "1x1x8"), ("a100:3", "1x1x3"), ("h100:8x16", "1x16x8")]
        {
            assert_eq!(arrangement(&GpuTarget::parse(text).unwrap()), expected);
        }
    }

    /// The peak that the compiler derives from the description matches the data sheet.
    #[test]
    fn description_matches_peak_flops() {
        for chip in GpuTarget::models() {
            let target = GpuTarget::parse(chip.short).unwrap();
            let text = description(&target);
            let matrix_units = text.split("matrix_unit_description").nth(1).unwrap();
            let bf16 = matrix_units.split("key: 16\n").nth(1).unwrap();
            let number = |name: &str| -> f64 {
                let line = bf16.lines().find(|line| line.starts_with(name)).unwrap();
                line.split(": ").nth(1).unwrap().parse().unwrap()
            };
            let peak = 2e9
                * target.gpu().multiprocessors as f64
                * number("clock_rate_ghz")
                * number("units_per_core")
                * number("ops_per_clock");
            assert!((peak / chip.bf16.unwrap() - 1.0).abs() < 1e-9, "{}: {peak}", chip.short);
        }
    }
}
