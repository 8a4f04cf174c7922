//! Training small models on virtual CPU devices.
#![allow(dead_code, unused_imports, clippy::unwrap_used)]

pub use fullshard_testing::CLIENT;

use fullshard_models::{AnyModel, from_json};
use fullshard_optim::{AdamW, Optimizer};
use fullshard_parallel::{MeshSpec, Placement, PlacementOptions, ShardedParam};
use fullshard_pjrt::hlo::Module;
use fullshard_pjrt::{CompileOptions, CompiledMemory, Flag, HostTensor};
use fullshard_step::{BatchShape, StepSpec};
use fullshard_train::{Compiler, Job, Metrics, Runner};

/// A model from the text of its config.
pub fn model(config: &str) -> Box<dyn AnyModel> {
    from_json(config).unwrap()
}

/// A compiler with low optimization, for many small programs.
pub fn compiler(devices: usize) -> Compiler<'static> {
    // Level 0 is wrong in bf16: helpers are not inlined, and a kernel passes a bf16 argument as
    // an f32 to a function that reads it as a bf16. The attention of one sequence becomes zeros.
    let options = CompileOptions::new(devices).flag("xla_backend_optimization_level", Flag::Int(1));
    Compiler { client: &CLIENT, cache: None, options, job: Job::alone() }
}

pub fn adamw() -> Box<dyn Optimizer> {
    Box::new(AdamW { weight_decay: 0.1, ..AdamW::default() })
}

/// A spec for a model on this number of devices.
pub fn spec(
    config: &str,
    devices: usize,
    options: &PlacementOptions,
    batch: BatchShape,
    optimizer: Box<dyn Optimizer>,
) -> StepSpec {
    let model = model(config);
    let placement = Placement::new(&model.tree(), devices, options).unwrap();
    StepSpec::new(model, placement, optimizer, batch, Some(1.0)).unwrap()
}

/// Compiles a step that is not run, without optional passes on its machine code.
pub fn compile(spec: &StepSpec) -> (Module, CompiledMemory) {
    let mut compiler = compiler(spec.placement.devices());
    let flags = [
        ("xla_llvm_disable_expensive_passes", Flag::Bool(true)),
        ("xla_cpu_parallel_codegen_split_count", Flag::Int(1)),
    ];
    compiler.options =
        flags.into_iter().fold(compiler.options, |options, (name, flag)| options.flag(name, flag));
    let compiled = compiler.compile(&spec.step_program().unwrap()).unwrap();
    let executable = compiled.program.executable();
    (executable.optimized_program().unwrap().module().unwrap(), executable.memory().unwrap())
}

/// The bytes of arguments per device without the inputs of a step: two batches, the optimizer's
/// scalars, a seed, a step number and the metrics of the previous step.
pub fn state_bytes(spec: &StepSpec, memory: &CompiledMemory) -> u64 {
    let batch = spec.batch;
    let tokens = batch.sequences / spec.placement.devices() * batch.tokens;
    let inputs = 2 * tokens + spec.optimizer.scalar_count() + 2 + 1 + 3;
    memory.arguments - 4 * inputs as u64
}

/// Tokens `[accumulation, sequences, tokens]` for a step, different at every position.
pub fn tokens(batch: BatchShape, vocabulary: usize, step: usize) -> HostTensor {
    let count = batch.accumulation * batch.sequences * batch.tokens;
    let token = |i: usize| {
        let hash = (i as u64 + 1 + 7919 * step as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((hash >> 33) as usize % vocabulary) as i32
    };
    let values: Vec<i32> = (0..count).map(token).collect();
    HostTensor::from_values(&[batch.accumulation, batch.sequences, batch.tokens], &values).unwrap()
}

/// Distinct numbers for a parameter, independent of its layout.
pub fn numbers(param: &ShardedParam) -> Vec<f32> {
    let name =
        param.template.bytes().fold(7_u64, |hash, byte| hash.wrapping_mul(31) ^ u64::from(byte));
    let layers = match (param.stack, param.layer) {
        (Some(count), _) => 0..count,
        (None, layer) => layer.unwrap_or(0)..layer.unwrap_or(0) + 1,
    };
    let elements: usize = param.dims.iter().product();
    let number = |layer: usize, i: usize| {
        let hash = (name ^ (layer << 40) as u64 ^ i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let unit = ((hash ^ (hash >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 40) as f32;
        let centered = unit / (1 << 23) as f32 - 1.0;
        if param.dims.len() == 1 { 0.3 * centered } else { 0.1 * centered }
    };
    layers.flat_map(|layer| (0..elements).map(move |i| number(layer, i))).collect()
}

/// The metrics of some steps of training from these numbers.
pub fn train(spec: &StepSpec, steps: usize) -> Vec<Metrics> {
    let compiler = compiler(spec.placement.devices());
    let mut runner =
        Runner::with_parameters(&compiler, spec, 42, |param| Ok(numbers(param))).unwrap();
    let vocabulary = spec.model.dimensions().vocabulary;
    let run = |step: usize| {
        let tokens = tokens(spec.batch, vocabulary, step % 3);
        runner.step(&[&tokens, &tokens], 1e-3).unwrap().wait().unwrap()
    };
    (0..steps).map(run).collect()
}

/// `data_2_fsdp_4` as `data=2,fsdp=4`.
pub fn mesh(words: &str) -> MeshSpec {
    let words: Vec<&str> = words.split('_').collect();
    let axes: Vec<String> = words.chunks(2).map(|axis| axis.join("=")).collect();
    axes.join(",").parse().unwrap()
}

/// Checks that every two choices of different options appear together in some case.
pub fn check_pairs<const N: usize>(
    choices: &[(&'static str, &[&'static str]); N],
    cases: &[[&'static str; N]],
) {
    for (b, (_, of_b)) in choices.iter().enumerate() {
        for (a, (_, of_a)) in choices[..b].iter().enumerate() {
            for (x, y) in of_a.iter().flat_map(|x| of_b.iter().map(move |y| (x, y))) {
                let found = cases.iter().any(|case| case[a] == *x && case[b] == *y);
                assert!(found, "no case with {x} and {y}");
            }
        }
    }
}

/// Checks that the metrics of a run are those of one device.
pub fn compare(case: &[&str], found: &[Metrics], expected: &[Metrics]) {
    assert_eq!(found.len(), expected.len());
    for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
        let off = |found: f32, expected: f32| (found / expected - 1.0).abs();
        let fine = off(found.loss, expected.loss) < 1e-5
            && off(found.gradient_norm, expected.gradient_norm) < 1e-4
            && found.labels == expected.labels;
        assert!(fine, "{case:?}, step {step}: {found:?}, expected {expected:?}");
    }
}
