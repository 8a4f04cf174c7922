//! Compilers for devices that are not available: libtpu for TPUs, the CUDA plugin for GPUs.
//!
//! Both compile ahead of time, so that a program which only one compiler rejects is found on a
//! machine without its device.

use fullshard_pjrt::plugins::{Platform, Store, find_compiler};
use fullshard_pjrt::{CompileOptions, Executable, GpuTarget, Plugin, Result, Topology, TpuSlice};
use std::sync::LazyLock;

/// With this variable set, [`crate::compile`] compiles every program for all platforms.
pub(crate) const ALL_COMPILERS: &str = "FULLSHARD_TEST_COMPILERS";

static TPU: LazyLock<Topology> = LazyLock::new(|| {
    let slice = TpuSlice::parse("v4-16").unwrap();
    Topology::tpu(compiler(Platform::Tpu), &slice).unwrap()
});

static CUDA: LazyLock<Topology> = LazyLock::new(|| {
    let target = GpuTarget::parse("h200:8").unwrap();
    Topology::gpu(compiler(Platform::Cuda), &target).unwrap()
});

/// A plugin that compiles for a platform, downloaded on first use.
fn compiler(kind: Platform) -> &'static Plugin {
    let store = Store::default_location().unwrap();
    let path = match find_compiler(kind, None, &store) {
        Ok(located) => located.path,
        Err(_) => store.install_compiler(kind, None).unwrap().path,
    };
    Plugin::load(&path).unwrap()
}

/// Compiles a program's text for up to eight TPU v4 chips or H200 GPUs.
pub fn compile_ahead(kind: Platform, text: &str, options: &CompileOptions) -> Result<Executable> {
    match kind {
        Platform::Tpu => TPU.compile(text, options),
        Platform::Cuda => match CUDA.compile(text, options) {
            // Seen once, on a busy machine, and not again in many runs: worth one retry, which
            // fails if the assembler is missing.
            Err(error) if error.to_string().contains("launch ptxas") => CUDA.compile(text, options),
            result => result,
        },
        Platform::Cpu => panic!("the CPU plugin only compiles for its own devices"),
    }
}

/// Compiles a program for TPUs and for GPUs, unless it has custom calls of another platform.
pub(crate) fn check_ahead(text: &str, devices: usize) {
    for kind in [Platform::Tpu, Platform::Cuda] {
        let has_foreign_calls =
            text.contains("@fullshard.") || kind == Platform::Tpu && text.contains("@__cudnn$");
        if has_foreign_calls {
            continue;
        }
        match compile_ahead(kind, text, &CompileOptions::new(devices)) {
            Ok(_) => {}
            // TPUs emulate f64, but not in every op; no model has any.
            Err(error) if error.to_string().contains("X{64|128}") => {}
            Err(error) => panic!("the compiler for {kind} rejects the program: {error}\n{text}"),
        }
    }
}
