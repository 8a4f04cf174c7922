//! Running traced programs on virtual CPU devices.
#![allow(dead_code, unused_imports, clippy::unwrap_used)]

pub use fullshard_testing::{CLIENT, call, numbers};

use fullshard_graph::{Argument, DType, Program, Result, Tensor, TensorType};
use fullshard_pjrt::{CompileOptions, Flag, HostTensor, LoadedExecutable};

/// Compiles a program.
pub fn compile(program: &Program) -> LoadedExecutable {
    let options = CompileOptions::new(program.devices());
    // Keeps roundings: by default XLA may drop a conversion and its inverse.
    let options = options.flag("xla_allow_excess_precision", Flag::Bool(false));
    fullshard_testing::compile(program, &options)
}

/// Runs a program on global tensors.
pub fn run(program: &Program, inputs: &[HostTensor]) -> Vec<HostTensor> {
    call(&compile(program), inputs)
}

/// Traces a function of `f64` tensors and runs it on values.
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
