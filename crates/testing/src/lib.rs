//! Test utilities of several crates: devices to run on, recordings to compare with, a local hub.
//!
//! Only tests depend on this crate, so all errors panic.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod compilers;
mod hub;
mod recording;

pub use compilers::compile_ahead;
pub use hub::{LocalHub, Request};
pub use recording::{RECORDINGS, Recording, root};

use fullshard_graph::Program;
use fullshard_pjrt::mpi::{self, Installation};
use fullshard_pjrt::plugins::{Kind, Platform, Store, find_or_install};
use fullshard_pjrt::{
    Array, Client, ClientOptions, CompileOptions, HostTensor, LoadedExecutable, Plugin,
};
use std::sync::LazyLock;

/// One client for all tests of a file: eight virtual CPU devices, or the platform in
/// FULLSHARD_TEST_DEVICE, for the tests of one device.
pub static CLIENT: LazyLock<Client> = LazyLock::new(|| {
    let kind = std::env::var("FULLSHARD_TEST_DEVICE").unwrap_or("cpu".into());
    let kind: Platform = kind.parse().unwrap();
    let store = Store::default_location().unwrap();
    let located = find_or_install(kind, None, &store).unwrap();
    let options = match kind {
        Platform::Cpu => ClientOptions::new().cpu_device_count(8),
        _ => ClientOptions::new(),
    };
    Client::new(Plugin::load(&located.path).unwrap(), &options).unwrap()
});

/// The MPI library and launcher for jobs of several processes, downloaded on first use.
pub fn mpi() -> Installation {
    let store = Store::default_location().unwrap();
    store.install(Kind::Mpi).unwrap();
    mpi::installed(&store).unwrap().unwrap()
}

/// Compiles a program, printing its text if the compiler rejects it. With FULLSHARD_TEST_COMPILERS
/// set, the compilers for TPUs and GPUs must accept it too.
pub fn compile(program: &Program, options: &CompileOptions) -> LoadedExecutable {
    let text = program.to_text();
    if std::env::var_os(compilers::ALL_COMPILERS).is_some() {
        compilers::check_ahead(&text, program.devices());
    }
    let options = with_exact_matmuls(options.clone());
    CLIENT.compile(&text, &options).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// On GPUs, the flags of steps: rounded values stay rounded, and matmuls are cuBLAS's, for which
/// `./check --gpu` disables TF32.
fn with_exact_matmuls(options: CompileOptions) -> CompileOptions {
    if CLIENT.platform_name() != "cuda" {
        return options;
    }
    ["xla_allow_excess_precision=false", "xla_gpu_enable_triton_gemm=false"]
        .into_iter()
        .fold(options, |options, flag| options.flag_text(flag).unwrap())
}

/// Runs a compiled program on host tensors.
pub fn call(loaded: &LoadedExecutable, inputs: &[HostTensor]) -> Vec<HostTensor> {
    let arrays: Vec<Array> = inputs
        .iter()
        .enumerate()
        .map(|(i, tensor)| {
            let tiling = loaded.argument_type(i).unwrap().tiling;
            Array::from_host(&CLIENT, tensor, tiling, loaded.devices()).unwrap()
        })
        .collect();
    let results = loaded.execute_arrays(&arrays.iter().collect::<Vec<_>>()).unwrap();
    results.iter().map(|array| array.to_host().unwrap()).collect()
}

/// Distinct numbers in [-1, 1), the same every time.
pub fn numbers(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    };
    (0..count).map(|_| next()).collect()
}
