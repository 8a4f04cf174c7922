//! Running traced programs on virtual CPU devices.
#![allow(dead_code, clippy::unwrap_used)]

use fullshard_graph::{Argument, DType, Program, Result, Tensor, TensorType};
use fullshard_pjrt::plugins::{PluginKind, Store, find_or_install};
use fullshard_pjrt::{
    Array, Client, ClientOptions, CompileOptions, HostTensor, LoadedExecutable, Plugin,
};
use std::sync::LazyLock;

/// One client for all tests of a file: eight virtual CPU devices, or what FULLSHARD_TEST_DEVICE
/// names, for the tests of one device.
pub static CLIENT: LazyLock<Client> = LazyLock::new(|| {
    let kind = std::env::var("FULLSHARD_TEST_DEVICE").unwrap_or("cpu".into());
    let kind: PluginKind = kind.parse().unwrap();
    let store = Store::default_location().unwrap();
    let located = find_or_install(kind, None, &store).unwrap();
    let options = match kind {
        PluginKind::Cpu => ClientOptions::new().cpu_device_count(8),
        _ => ClientOptions::new(),
    };
    Client::new(Plugin::load(&located.path).unwrap(), &options).unwrap()
});

/// Compiles a program, showing its text if the compiler refuses it.
pub fn compile(program: &Program) -> LoadedExecutable {
    let text = program.to_text();
    let options = CompileOptions::new(program.devices());
    CLIENT.compile(&text, &options).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Runs a program on logical tensors.
pub fn run(program: &Program, inputs: &[HostTensor]) -> Vec<HostTensor> {
    call(&compile(program), inputs)
}

/// Runs a compiled program on logical tensors.
pub fn call(loaded: &LoadedExecutable, inputs: &[HostTensor]) -> Vec<HostTensor> {
    let arrays: Vec<Array> = inputs
        .iter()
        .enumerate()
        .map(|(i, tensor)| {
            let sharding = loaded.argument_type(i).unwrap().sharding;
            Array::from_host(&CLIENT, tensor, sharding, loaded.devices()).unwrap()
        })
        .collect();
    let results = loaded.execute_arrays(&arrays.iter().collect::<Vec<_>>()).unwrap();
    results.iter().map(|array| array.to_host().unwrap()).collect()
}

/// Traces a function of `f64` tensors and runs it on given values.
pub fn eval(
    inputs: &[(&[usize], &[f64])],
    function: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Vec<Vec<f64>> {
    let arguments: Vec<Argument> =
        inputs.iter().map(|(dims, _)| Argument::new(TensorType::new(DType::F64, dims))).collect();
    let program = Program::trace("test", &arguments, |tensors| function(&tensors)).unwrap();
    let tensors: Vec<HostTensor> = inputs
        .iter()
        .map(|(dims, values)| HostTensor::from_values(dims, values).unwrap())
        .collect();
    run(&program, &tensors).iter().map(|tensor| tensor.to_f64().unwrap()).collect()
}

/// Checks that two lists of numbers agree to a relative or absolute tolerance.
#[track_caller]
pub fn assert_close(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let scale = expected.abs().max(1.0);
        assert!((found - expected).abs() <= tolerance * scale, "at {i}: {found} for {expected}");
    }
}

/// Numbers in [-1, 1) that differ from each other, the same every time.
pub fn numbers(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    };
    (0..count).map(|_| next()).collect()
}
