//! GPUs that are not here, described to the CUDA plugin's compiler.
//!
//! The plugin compiles for such a GPU from a text that says what it is like. That text is written
//! here, from the figures in [`fullshard_core::accelerator`].

use fullshard_core::{Chip, Gpu, GpuTarget};
use std::fmt::{self, Write};

/// How GPUs are spread: over partitions, hosts of each, and devices of each of those.
pub(crate) fn arrangement(target: &GpuTarget) -> String {
    format!("1x1x{}", target.devices())
}

/// What one of the GPUs is like, in the text form of XLA's `GpuTargetConfigProto`.
pub(crate) fn description(target: &GpuTarget) -> String {
    let figures = Figures { chip: target.chip(), gpu: target.gpu() };
    let mut text = Text::default();
    text.nested("gpu_device_info", |text| figures.write(text));
    text.quoted("platform_name", "CUDA");
    text.quoted("device_description_str", figures.kind());
    text.0
}

/// What is public of a model.
struct Figures<'a> {
    chip: &'static Chip,
    gpu: &'a Gpu,
}

impl Figures<'_> {
    /// What the driver calls it, which is what PJRT reports as the device's kind.
    fn kind(&self) -> &'static str {
        self.chip.kinds.first().copied().unwrap_or(self.chip.name)
    }

    fn write(&self, text: &mut Text) {
        let shared = self.gpu.shared_kib << 10;
        // One KiB of the shared memory of every block is the system's.
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
            // From Hopper on there are instructions for one generation alone, and matrix
            // products use them.
            let extension = if major >= 9 { "ACCELERATED_FEATURES" } else { "NONE" };
            text.field("feature_extension", extension);
        });
        text.nested("scalar_unit_description", |text| self.write_scalar_rates(text));
        text.nested("matrix_unit_description", |text| self.write_product_rates(text));
        text.nested("device_interconnect_info", |text| text.field("active_links", self.chip.links));
        text.quoted("device_vendor", "NVIDIA Corporation");
        text.quoted("name", self.kind());
        text.quoted("platform_version", &format!("Compute Capability {major}.{minor}"));
        // The versions our pinned companions have: the compiler avoids what older ones lack.
        text.quoted("driver_version", "13.0.0");
        text.quoted("runtime_version", "13.0.0");
        text.quoted("compile_time_toolkit_version", "13.0.0");
        text.quoted("dnn_version", "9.10.0");
    }

    /// What the lanes of a multiprocessor do, by element type.
    fn write_scalar_rates(&self, text: &mut Text) {
        let (single, double) = (self.gpu.f32_lanes, self.gpu.f64_lanes);
        // Two halves in one lane.
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

    /// What the matrix units of a multiprocessor do, by element type.
    fn write_product_rates(&self, text: &mut Text) {
        let fmas = self.gpu.bf16_fmas;
        let clock = self.gpu.matmul_ghz(self.chip.bf16.unwrap_or_default());
        let mut rates = vec![
            (element::S8, 2 * fmas),
            (element::F16, fmas),
            (element::BF16, fmas),
            // Through TF32.
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
    fn all_gpus_are_of_one_host() {
        for (text, expected) in [("h200", "1x1x1"), ("h200:8", "1x1x8"), ("a100:3", "1x1x3")] {
            assert_eq!(arrangement(&GpuTarget::parse(text).unwrap()), expected);
        }
    }

    /// The peak that the compiler works out from the description is the data sheet's.
    #[test]
    fn descriptions_hold_the_peak() {
        for chip in GpuTarget::models() {
            let target = GpuTarget::parse(chip.short).unwrap();
            let text = description(&target);
            let matrix_units = text.split("matrix_unit_description").nth(1).unwrap();
            let of_bf16 = matrix_units.split("key: 16\n").nth(1).unwrap();
            let number = |name: &str| -> f64 {
                let line = of_bf16.lines().find(|line| line.starts_with(name)).unwrap();
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
