//! Runs models on one device, and loads the recordings to compare them with.
#![allow(dead_code, unused_imports, clippy::unwrap_used)]

pub use fullshard_testing::{RECORDINGS, Recording, call, numbers};

use fullshard_graph::{Argument, DType, Program, Result, Tensor, TensorType};
use fullshard_models::{AnyModel, from_json};
use fullshard_pjrt::{CompileOptions, HostTensor, LoadedExecutable};

/// A recorded model.
pub fn model(recording: &Recording) -> Box<dyn AnyModel> {
    from_json(&recording.metadata("config")).unwrap()
}

/// The weights in the order of the module tree, without the tied ones: names and values.
pub fn weights(recording: &Recording) -> Vec<(String, HostTensor)> {
    let tree = model(recording).tree();
    let own = tree.named_parameters().into_iter().filter(|(_, p)| p.tied_to.is_none());
    own.map(|(name, p)| {
        let values = HostTensor::from_values(&p.dims, &recording.floats(&name)).unwrap();
        (name, values)
    })
    .collect()
}

/// Traces a function of `inputs` and runs it on them.
pub fn eval(
    inputs: &[HostTensor],
    function: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Vec<HostTensor> {
    call(&compile(inputs, function), inputs)
}

/// Traces and compiles a function of tensors like `inputs`.
pub fn compile(
    inputs: &[HostTensor],
    function: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
) -> LoadedExecutable {
    compile_with(&[], inputs, function)
}

/// The same with compiler flags.
pub fn compile_with(
    flags: &[&str],
    inputs: &[HostTensor],
    function: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
) -> LoadedExecutable {
    let arguments: Vec<Argument> = inputs.iter().map(argument).collect();
    let program = Program::trace("test", &arguments, |tensors| function(&tensors)).unwrap();
    let options = CompileOptions::new(program.devices());
    let options = flags.iter().try_fold(options, |options, flag| options.flag_text(flag)).unwrap();
    fullshard_testing::compile(&program, &options)
}

fn argument(tensor: &HostTensor) -> Argument {
    Argument::new(tensor.ty().clone())
}

/// The largest difference relative to the largest expected magnitude.
pub fn difference(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let largest = |values: &mut dyn Iterator<Item = f64>| {
        values.fold(
            0.0,
            |largest: f64, value| {
                if value.is_nan() { f64::INFINITY } else { largest.max(value.abs()) }
            },
        )
    };
    let scale = largest(&mut expected.iter().copied());
    let apart = largest(&mut found.iter().zip(expected).map(|(a, b)| a - b));
    if scale == 0.0 { apart } else { apart / scale }
}

/// A tensor of [`numbers`], of type `f64`.
pub fn random(dims: &[usize], seed: u64) -> HostTensor {
    HostTensor::from_values(dims, &numbers(dims.iter().product(), seed)).unwrap()
}
