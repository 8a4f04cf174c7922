//! Training gives the losses of torch and transformers: a hundred steps of every recorded model
//! with every recorded optimizer, clipping and schedule included, each within 1e-4 of torch's.
//!
//! Torch ran on one device, so parity here also says that shards compute what the whole would.
//! The models are spread over one, two and four devices, flat parts and rows, looped layers and
//! layers written out; AdamW and Adafactor take each model in different ways.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use fullshard_graph::Dialect;
use fullshard_optim::{Adafactor, AdamW, Optimizer, Schedule, Sgd, StepSize, decays};
use fullshard_parallel::{FsdpConfig, Options, Settings, Stored, WrapPolicy};
use fullshard_pjrt::HostTensor;
use fullshard_step::Batch;
use fullshard_testing::{RECORDINGS, Recording};
use fullshard_train::Runner;

const STEPS: usize = 100;
const WARMUP: u64 = 10;
const TOLERANCE: f64 = 1e-4;

/// How a model is placed.
#[derive(Debug, Clone, Copy)]
struct Case {
    devices: usize,
    rows: bool,
    looped: bool,
}

/// One device twice; two and four devices with each layout, looped and not.
const CASES: [Case; 10] = [
    Case { devices: 1, rows: false, looped: false },
    Case { devices: 4, rows: false, looped: true },
    Case { devices: 2, rows: true, looped: false },
    Case { devices: 4, rows: true, looped: true },
    Case { devices: 2, rows: false, looped: true },
    Case { devices: 4, rows: false, looped: false },
    Case { devices: 1, rows: false, looped: true },
    Case { devices: 2, rows: true, looped: true },
    Case { devices: 4, rows: true, looped: false },
    Case { devices: 2, rows: false, looped: false },
];

fn options(case: Case, block: &str) -> Options {
    let settings = Settings { shard_param_on_dim_0: case.rows, ..Settings::default() };
    let wrap = WrapPolicy::Classes(vec![block.to_owned()]);
    let config = FsdpConfig { wrap, settings, ..FsdpConfig::default() };
    // Half of the cases call for their products, as programs for the CPU do.
    let called_products = case.looped == case.rows;
    let dialect = Dialect { called_products, rooted_logistic: !called_products };
    Options { config, scan_layers: case.looped, dialect, ..Options::default() }
}

/// The optimizer that the script calls so, its learning rate, and whether gradients are clipped
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

/// A stored parameter, of all layers one after another if they are stacked.
fn parameter(recording: &Recording, stored: &Stored) -> Vec<f32> {
    let layer = |layer: usize| stored.name.replacen('*', &layer.to_string(), 1);
    match stored.stack {
        Some(layers) => (0..layers).flat_map(|i| recording.floats(&layer(i))).collect(),
        None => recording.floats(&stored.name),
    }
}

/// A batch as a step takes it, which could accumulate several.
fn accumulated(batch: &HostTensor) -> HostTensor {
    let dims = [&[1][..], batch.dims()].concat();
    HostTensor::from_values(&dims, &batch.values::<i32>().unwrap()).unwrap()
}

/// The losses of training from the recorded weights.
fn losses(recording: &Recording, optimizer_name: &str, case: Case) -> Vec<f32> {
    let (optimizer, rate, trainers_way) = optimizer(optimizer_name);
    let config = recording.metadata("config");
    let [_, sequences, tokens] = recording.dims("tokens")[..] else { panic!("no batches") };
    let batch = Batch { sequences, tokens, accumulation: 1, sync_each_microbatch: true };
    let block = if config.contains("\"gpt2\"") { "GPT2Block" } else { "LlamaDecoderLayer" };
    let mut spec = spec(&config, case.devices, &options(case, block), batch, optimizer);
    spec.max_grad_norm = trainers_way.then_some(1.0);
    let compiler = compiler(case.devices);
    let mut runner =
        Runner::with_parameters(&compiler, &spec, 0, |stored| Ok(parameter(recording, stored)))
            .unwrap();
    let step = |step: usize| {
        let schedule = if trainers_way { Schedule::Linear } else { Schedule::Constant };
        let rate = rate * schedule.factor(step as u64, WARMUP, STEPS as u64);
        let batch = ["tokens", "labels"].map(|name| accumulated(&recording.batch(name, step)));
        runner.step(&batch, rate).unwrap().wait().unwrap().loss
    };
    (0..STEPS).map(step).collect()
}

/// The first losses that torch itself would give again. The biases of keys have no gradient but
/// rounding, which Adafactor's small epsilon makes a step of; in one recording that changes so much
/// that torch is 2.6e-3 off after it when only the order of a batch's sequences is another. That
/// one has been recorded with a larger epsilon as well.
fn comparable(optimizer: &str, name: &str) -> usize {
    if (optimizer, name) == ("adafactor", "gpt2_untied") { 15 } else { STEPS }
}

/// Trains every model that was recorded with an optimizer. The first takes the case `first`, the
/// next one the next.
fn check(optimizer: &str, first: usize) {
    let mut worst: f64 = 0.0;
    for (i, name) in RECORDINGS.iter().enumerate() {
        let recording = Recording::load(name);
        if !recording.optimizers().iter().any(|recorded| recorded == optimizer) {
            continue;
        }
        let case = CASES[(first + i) % CASES.len()];
        let found = losses(&recording, optimizer, case);
        let expected = recording.floats(&format!("losses.{optimizer}"));
        assert_eq!(found.len(), expected.len());
        let off = |(found, expected): (&f32, &f32)| {
            (f64::from(*found) / f64::from(*expected) - 1.0).abs()
        };
        let pairs = found.iter().zip(&expected).take(comparable(optimizer, name));
        let apart = pairs.map(off).fold(0.0, f64::max);
        println!("{optimizer}, {name}, {case:?}: {apart:.1e}");
        assert!(apart < TOLERANCE, "{optimizer}, {name}, {case:?}: {apart}");
        worst = worst.max(apart);
    }
    println!("{optimizer}: {worst:.1e} at worst");
    assert!(worst > 0.0, "nothing was recorded with {optimizer}");
}

#[test]
fn adamw_trains_as_in_torch() {
    check("adamw", 0);
}

#[test]
fn adafactor_trains_as_in_transformers() {
    check("adafactor", 3);
    check("adafactor_steady", 3);
}

/// With relative steps in proportion to each parameter, which take norms over all shards.
#[test]
fn adafactor_of_the_paper_trains_as_in_transformers() {
    check("adafactor_paper", 1);
}

#[test]
fn sgd_trains_as_in_torch() {
    check("sgd", 4);
}

#[test]
fn every_recorded_optimizer_is_checked() {
    for name in RECORDINGS {
        Recording::load(name).optimizers().iter().for_each(|name| drop(optimizer(name)));
    }
}

#[test]
fn what_decays_is_what_decays_in_trainer() {
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
