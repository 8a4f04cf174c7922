//! Training gives the losses of torch and transformers: a hundred steps of every recorded model,
//! clipping and schedule included, each within 1e-4 of torch's, with the lowering options of every
//! platform.
//!
//! Torch ran on one device, so parity also shows that sharded training matches one device. The
//! models are tested on one, two and four devices, with flat and dim 0 shards, scanned and unrolled
//! layers. Every recorded optimizer is tested; the long tier has all combinations of models,
//! optimizers and platforms.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use fullshard_optim::{Adafactor, AdamW, Optimizer, Schedule, Sgd, StepSize, decays};
use fullshard_parallel::{FsdpConfig, PlacementOptions, Settings, ShardedParam, WrapPolicy};
use fullshard_pjrt::HostTensor;
use fullshard_pjrt::plugins::Platform::{self, Cpu, Cuda, Tpu};
use fullshard_step::{BatchShape, dialect, lowering};
use fullshard_testing::{RECORDINGS, Recording};
use fullshard_train::Runner;

const STEPS: usize = 100;
const WARMUP: u64 = 10;

/// Relative tolerance of a loss.
const TOLERANCE: f64 = 1e-4;

/// Tolerance on a GPU, whose `f32` matmuls have 10 bits of mantissa.
const GPU_TOLERANCE: f64 = 5e-3;

/// How a model is placed.
#[derive(Debug, Clone, Copy)]
struct Case {
    devices: usize,
    dim_0: bool,
    scanned: bool,
}

const ONE_DEVICE: Case = Case { devices: 1, dim_0: false, scanned: false };

/// One device twice; two and four devices with each layout, scanned and unrolled.
const CASES: [Case; 10] = [
    ONE_DEVICE,
    Case { devices: 4, dim_0: false, scanned: true },
    Case { devices: 2, dim_0: true, scanned: false },
    Case { devices: 4, dim_0: true, scanned: true },
    Case { devices: 2, dim_0: false, scanned: true },
    Case { devices: 4, dim_0: false, scanned: false },
    Case { devices: 1, dim_0: false, scanned: true },
    Case { devices: 2, dim_0: true, scanned: true },
    Case { devices: 4, dim_0: true, scanned: false },
    Case { devices: 2, dim_0: false, scanned: false },
];

fn options(case: Case, block: &str, platform: Platform) -> PlacementOptions {
    let settings = Settings { shard_param_on_dim_0: case.dim_0, ..Settings::default() };
    let wrap = WrapPolicy::Classes(vec![block.to_owned()]);
    let config = FsdpConfig { wrap, settings, ..FsdpConfig::default() };
    // Kernels are the only part that a CPU cannot run, and they do not support f32.
    let lowering = lowering(platform).without_kernels();
    let dialect = dialect(platform);
    PlacementOptions {
        config,
        scan_layers: case.scanned,
        lowering,
        dialect,
        ..PlacementOptions::default()
    }
}

/// The optimizer of a name in the recordings, its learning rate, and whether gradients are clipped
/// and the rate follows a schedule.
fn optimizer(name: &str) -> (Box<dyn Optimizer>, f64, bool) {
    match name {
        "adamw" => (Box::new(AdamW { weight_decay: 0.1, ..AdamW::default() }), 1e-3, true),
        "adafactor" => (Box::new(Adafactor::trainer()), 1e-3, true),
        "adafactor_steady" => {
            (Box::new(Adafactor { epsilon: 1e-16, ..Adafactor::trainer() }), 1e-3, true)
        }
        "adafactor_paper" => {
            let step_size = StepSize::Relative { warmup: true };
            (Box::new(Adafactor { step_size, ..Adafactor::paper() }), 0.0, false)
        }
        "sgd" => (Box::new(Sgd { momentum: 0.9, ..Sgd::default() }), 0.01, false),
        _ => panic!("no optimizer for the recorded `{name}`"),
    }
}

/// A recorded parameter, with stacked layers concatenated.
fn parameter(recording: &Recording, param: &ShardedParam) -> Vec<f32> {
    let layer = |layer: usize| param.name.replacen('*', &layer.to_string(), 1);
    match param.stack {
        Some(layers) => (0..layers).flat_map(|i| recording.floats(&layer(i))).collect(),
        None => recording.floats(&param.name),
    }
}

/// A batch with a leading accumulation dimension.
fn accumulated(batch: &HostTensor) -> HostTensor {
    let dims = [&[1][..], batch.dims()].concat();
    HostTensor::from_values(&dims, &batch.values::<i32>().unwrap()).unwrap()
}

/// The losses of training from the recorded weights.
fn losses(recording: &Recording, optimizer_name: &str, case: Case, platform: Platform) -> Vec<f32> {
    let (optimizer, rate, like_trainer) = optimizer(optimizer_name);
    let config = recording.metadata("config");
    let [_, sequences, tokens] = recording.dims("tokens")[..] else { panic!("no batches") };
    let batch = BatchShape { sequences, tokens, accumulation: 1, sync_each_microbatch: true };
    let block = if config.contains("\"gpt2\"") { "GPT2Block" } else { "LlamaDecoderLayer" };
    let options = options(case, block, platform);
    let mut spec = spec(&config, case.devices, &options, batch, optimizer);
    spec.max_grad_norm = like_trainer.then_some(1.0);
    let compiler = compiler(case.devices);
    let mut runner =
        Runner::with_parameters(&compiler, &spec, 0, |param| Ok(parameter(recording, param)))
            .unwrap();
    let step = |step: usize| {
        let schedule = if like_trainer { Schedule::Linear } else { Schedule::Constant };
        let rate = rate * schedule.factor(step as u64, WARMUP, STEPS as u64);
        let batch = ["tokens", "labels"].map(|name| accumulated(&recording.batch(name, step)));
        runner.step(&batch, rate).unwrap().wait().unwrap().loss
    };
    (0..STEPS).map(step).collect()
}

/// The number of first losses that torch itself reproduces. Key biases have no gradient but
/// rounding errors, which Adafactor's small epsilon turns into steps; in one recording torch is
/// 2.6e-3 off after that if only the order of a batch's sequences changes. That one was also
/// recorded with a larger epsilon.
fn comparable(optimizer: &str, name: &str) -> usize {
    if (optimizer, name) == ("adafactor", "gpt2_untied") { 15 } else { STEPS }
}

/// Trains a recorded model and compares every loss.
fn check(name: &str, optimizer: &str, case: Case, platform: Platform, tolerance: f64) {
    let recording = Recording::load(name);
    let found = losses(&recording, optimizer, case, platform);
    let expected = recording.floats(&format!("losses.{optimizer}"));
    assert_eq!(found.len(), expected.len());
    let off =
        |(found, expected): (&f32, &f32)| (f64::from(*found) / f64::from(*expected) - 1.0).abs();
    let pairs = found.iter().zip(&expected).take(comparable(optimizer, name));
    let error = pairs.map(off).fold(0.0, f64::max);
    println!("{optimizer}, {name}, {case:?}, {platform}: {error:.1e}");
    assert!(error < tolerance, "{optimizer}, {name}, {case:?}, {platform}: {error}");
}

/// Trains a recorded model for a platform with one of the two optimizers that all models have; the
/// placement varies by model and platform.
fn check_on(name: &str, platform: Platform) {
    let model = RECORDINGS.iter().position(|known| *known == name).unwrap();
    let offset = model + [Cpu, Cuda, Tpu].iter().position(|known| *known == platform).unwrap();
    let optimizer = ["adamw", "adafactor", "adamw"][offset % 3];
    check(name, optimizer, CASES[(model + 3 * offset) % CASES.len()], platform, TOLERANCE);
}

/// Trains a recorded model with every optimizer for every platform.
fn check_all(name: &str) {
    for (i, optimizer) in Recording::load(name).optimizers().iter().enumerate() {
        for (j, platform) in [Cpu, Cuda, Tpu].into_iter().enumerate() {
            check(name, optimizer, CASES[(3 * i + j) % CASES.len()], platform, TOLERANCE);
        }
    }
}

/// Tests of each recorded model.
macro_rules! recordings {
    ($($name:ident)*) => {
        const TESTED: &[&str] = &[$(stringify!($name)),*];

        $(mod $name {
            use super::*;

            #[test]
            fn on_cpu() {
                check_on(stringify!($name), Cpu);
            }

            #[test]
            fn on_cuda() {
                check_on(stringify!($name), Cuda);
            }

            #[test]
            fn on_tpu() {
                check_on(stringify!($name), Tpu);
            }

            #[test]
            #[ignore = "long: every optimizer for every platform"]
            fn long_every_optimizer() {
                check_all(stringify!($name));
            }

            #[test]
            #[ignore = "gpu: trains on one"]
            fn gpu_trains_as_torch() {
                check(stringify!($name), "adamw", ONE_DEVICE, Cuda, GPU_TOLERANCE);
            }
        })*
    };
}

recordings! {
    gpt2_plain gpt2_odd gpt2_untied gpt2_upcast gpt2_vocabulary gpt2_inverse
    llama_tied llama_grouped llama_linear llama_yarn llama_dynamic llama_padded
}

/// With an epsilon large enough that rounding errors make no steps.
#[test]
fn adafactor_with_a_larger_epsilon() {
    check("gpt2_untied", "adafactor_steady", CASES[5], Cuda, TOLERANCE);
}

/// With relative steps scaled by each parameter, which need norms over all shards.
#[test]
fn adafactor_of_the_paper_on_gpt2() {
    check("gpt2_plain", "adafactor_paper", CASES[1], Cpu, TOLERANCE);
}

#[test]
fn adafactor_of_the_paper_on_llama() {
    check("llama_tied", "adafactor_paper", CASES[7], Tpu, TOLERANCE);
}

#[test]
fn sgd_with_momentum() {
    check("gpt2_plain", "sgd", CASES[4], Cuda, TOLERANCE);
}

#[test]
fn every_recording_and_optimizer_is_tested() {
    assert_eq!(TESTED, RECORDINGS);
    for name in RECORDINGS {
        let optimizers = Recording::load(name).optimizers();
        assert!(["adamw", "adafactor"].iter().all(|all| optimizers.iter().any(|it| it == all)));
        optimizers.iter().for_each(|name| drop(optimizer(name)));
    }
}

#[test]
fn weight_decay_matches_trainer() {
    for name in RECORDINGS {
        let recording = Recording::load(name);
        let mut expected: Vec<String> =
            serde_json::from_str(&recording.metadata("decayed")).unwrap();
        let mut found = Vec::new();
        model(&recording.metadata("config")).tree().visit(&mut |path, module| {
            let own = module.parameters.iter().filter(|parameter| parameter.tied_to.is_none());
            let names = own.map(|parameter| format!("{path}.{}", parameter.name));
            found.extend(names.filter(|name| decays(name, module.class)));
        });
        expected.sort();
        found.sort();
        assert_eq!(found, expected, "{name}");
    }
}
