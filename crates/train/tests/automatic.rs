//! An automatic tensor axis gives the losses and gradient norms of one device.
//!
//! Ten steps and an evaluation, as in `tensor.rs`: the same models, but layers have full sizes and the compiler
//! shards them by annotations.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use fullshard_models::LoweringOptions;
use fullshard_optim::{Adafactor, AdamW, Optimizer, Sgd};
use fullshard_parallel::{
    FsdpConfig, GatherAhead, MeshSpec, Placement, PlacementOptions, Remat, Settings,
};
use fullshard_pjrt::HostTensor;
use fullshard_step::{BatchShape, StepSpec};
use fullshard_train::{Metrics, Runner};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// The vocabulary is not a multiple of the devices.
const GPT2: &str = r#"{"model_type": "gpt2", "vocab_size": 131, "n_positions": 32, "n_embd": 40,
    "n_layer": 2, "n_head": 8, "n_inner": 56, "resid_pdrop": 0.1, "embd_pdrop": 0.1,
    "attn_pdrop": 0.1}"#;
const LLAMA: &str = r#"{"model_type": "llama", "vocab_size": 1031, "max_position_embeddings": 32,
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 16,
    "num_key_value_heads": 8, "intermediate_size": 40, "tie_word_embeddings": false}"#;
const STEPS: usize = 10;

/// A model on a mesh, and how it is trained.
#[derive(Debug, Clone, Copy)]
struct Case {
    model: &'static str,
    mesh: &'static str,
    strategy: &'static str,
    sequence_parallel: bool,
    flatten_batch: bool,
    scanned: bool,
    remat: bool,
    /// Whether units are gathered in one collective each.
    packed: bool,
    ahead: GatherAhead,
    run: Run,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Run {
    OneAdamw,
    TwoAdafactor,
    NoSyncSgd,
}

const CASE: Case = Case {
    model: GPT2,
    mesh: "fsdp=2,tensor=4",
    strategy: "full_shard",
    sequence_parallel: false,
    flatten_batch: true,
    scanned: false,
    remat: false,
    packed: false,
    ahead: GatherAhead::Nothing,
    run: Run::OneAdamw,
};

fn options(case: Case) -> PlacementOptions {
    let Case { sequence_parallel, scanned, flatten_batch, packed, .. } = case;
    let settings = Settings { flatten_parameters: packed, ..Settings::default() };
    PlacementOptions {
        strategy: case.strategy.parse().unwrap(),
        sequence_parallel,
        automatic_axes: vec!["tensor".to_owned()],
        remat: Some(if case.remat { Remat::Full } else { Remat::None }),
        scan_layers: scanned,
        gather_ahead: case.ahead,
        config: FsdpConfig { settings, ..FsdpConfig::default() },
        lowering: LoweringOptions { flatten_batch, ..LoweringOptions::default() },
        ..PlacementOptions::default()
    }
}

fn optimizer(run: Run) -> Box<dyn Optimizer> {
    match run {
        Run::OneAdamw => Box::new(AdamW::default()),
        Run::TwoAdafactor => Box::new(Adafactor::trainer()),
        Run::NoSyncSgd => {
            Box::new(Sgd { momentum: 0.9, dampening: 0.0, nesterov: false, weight_decay: 0.0 })
        }
    }
}

fn spec_of(case: Case, mesh: &str, options: &PlacementOptions) -> StepSpec {
    let model = model(case.model);
    let mesh: MeshSpec = mesh.parse().unwrap();
    let mesh = mesh.resolve(mesh.devices().unwrap()).unwrap();
    let placement = Placement::on_mesh(&model.tree(), &mesh, options).unwrap();
    let accumulation = if case.run == Run::OneAdamw { 1 } else { 2 };
    let sync_each_microbatch = case.run != Run::NoSyncSgd;
    let sequences = 24 / accumulation;
    let batch = BatchShape { sequences, tokens: 16, accumulation, sync_each_microbatch };
    StepSpec::new(model, placement, optimizer(case.run), batch, Some(1.0)).unwrap()
}

/// The metrics of all steps, and the loss of an evaluation after them.
type Losses = (Vec<Metrics>, f32);

fn trained(spec: &StepSpec) -> Losses {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let compiler = compiler(spec.placement.devices());
    // As in `tensor.rs`: Adafactor needs weights larger than initial ones.
    let mut runner = match spec.optimizer.name() {
        "adafactor" => Runner::with_parameters(&compiler, spec, 42, |param| Ok(numbers(param))),
        _ => Runner::new(&compiler, spec, 42),
    }
    .unwrap();
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let step = |step: usize| {
        let tokens = tokens(spec.batch, spec.model.dimensions().vocabulary, step % 3);
        runner.step(&[&tokens, &tokens], 1e-3).unwrap().wait().unwrap()
    };
    let metrics = (0..STEPS).map(step).collect();
    let tokens = HostTensor::from_values(&[6, 16], &(0..96).collect::<Vec<i32>>()).unwrap();
    let (loss, labels) = runner.evaluate_batch(&[tokens.clone(), tokens]).unwrap().wait().unwrap();
    assert_eq!(labels, 90.0);
    (metrics, loss)
}

/// The same on one device, unrolled.
fn one_device(case: Case) -> Losses {
    static RUNS: Mutex<Option<HashMap<String, Losses>>> = Mutex::new(None);
    let key = format!("{} {:?} {}", case.model, case.run, case.flatten_batch);
    let mut runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
    let run = || {
        let lowering = options(case).lowering;
        let options = PlacementOptions { lowering, ..PlacementOptions::default() };
        trained(&spec_of(case, "fsdp=1", &options))
    };
    runs.get_or_insert_default().entry(key).or_insert_with(run).clone()
}

#[track_caller]
fn check(case: Case) {
    let off = |found: f32, expected: f32| (found / expected - 1.0).abs();
    let (expected, evaluated) = one_device(case);
    let (found, found_evaluated) = trained(&spec_of(case, case.mesh, &options(case)));
    assert_eq!(found.len(), expected.len());
    assert!(off(found_evaluated, evaluated) < 1e-5, "{case:?}: {found_evaluated}, {evaluated}");
    for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let fine = off(found.loss, expected.loss) < 1e-5
            && off(found.gradient_norm, expected.gradient_norm) < 1e-4
            && found.labels == expected.labels;
        assert!(fine, "{case:?}, step {step}: {found:?}, expected {expected:?}");
    }
}

macro_rules! cases {
    ($($(#[$tier:meta])? $name:ident: { $($field:ident: $value:expr),* };)*) => {$(
        #[test]
        $(#[$tier])?
        fn $name() {
            check(Case { $($field: $value,)* ..CASE });
        }
    )*};
}

cases! {
    gpt2_unrolled: { model: GPT2 };
    llama_unrolled: { model: LLAMA };
    gpt2_scanned_along_the_sequence: { sequence_parallel: true, scanned: true, remat: true };
    llama_scanned_along_the_sequence: {
        model: LLAMA, sequence_parallel: true, scanned: true, flatten_batch: false,
        ahead: GatherAhead::Vectors, run: Run::TwoAdafactor
    };
    #[ignore = "long: more settings"]
    long_gpt2_without_other_axes: { mesh: "tensor=8", scanned: true };
    #[ignore = "long: more settings"]
    long_llama_gathers_once: {
        model: LLAMA, mesh: "data=2,fsdp=2,tensor=2", strategy: "weight_update",
        sequence_parallel: true, run: Run::TwoAdafactor
    };
    #[ignore = "long: more settings"]
    long_gpt2_without_sync: {
        mesh: "tensor=2,fsdp=3", strategy: "hybrid_shard", scanned: true, flatten_batch: false,
        sequence_parallel: true, run: Run::NoSyncSgd
    };
    #[ignore = "long: more settings"]
    long_gpt2_gathers_ahead: {
        scanned: true, packed: true, sequence_parallel: true, ahead: GatherAhead::Layer
    };
    #[ignore = "long: more settings"]
    long_llama_packed: { model: LLAMA, packed: true, remat: true, sequence_parallel: true };
    #[ignore = "long: more settings"]
    long_llama_replicated: { model: LLAMA, strategy: "no_shard", remat: true, scanned: true };
}

#[test]
fn loops_of_steps_carry_shards() {
    let case = Case { scanned: true, sequence_parallel: true, ..CASE };
    let spec = spec_of(case, case.mesh, &options(case)).with_iterations_per_loop(2).unwrap();
    let program = spec.launch_program().unwrap();
    compiler(spec.placement.devices()).compile(&program).unwrap();
}

fn refused(mesh: &str, change: impl FnOnce(&mut PlacementOptions)) -> String {
    let mut options = options(CASE);
    change(&mut options);
    let mesh: MeshSpec = mesh.parse().unwrap();
    let mesh = mesh.resolve(mesh.devices().unwrap()).unwrap();
    Placement::on_mesh(&model(GPT2).tree(), &mesh, &options).unwrap_err().to_string()
}

#[test]
fn rejects_what_cannot_be_automatic() {
    let other = refused("fsdp=2,tensor=4", |it| it.automatic_axes.push("fsdp".to_owned()));
    assert!(other.contains("mesh axis `fsdp` cannot be automatic"), "{other}");
    let context = refused("context=2,tensor=4", |_| {});
    assert!(context.ends_with("leave `context` out of the mesh"), "{context}");
    let fp8 = refused("fsdp=2,tensor=4", |it| it.config.settings.fp8 = true);
    assert!(fp8.ends_with("leave out FP8"), "{fp8}");
}
