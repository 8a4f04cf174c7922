//! A bit that flips on one of four devices is found, and where; runs without one go on.

use super::*;
use crate::checkpoint::SaveOptions;
use crate::compiler::Compiler;
use crate::guard::Guards;
use crate::job::Job;
use crate::saving::Saving;
use crate::schedule::{Every, TrainSchedule, TrainScheduleOptions};
use crate::source::{BatchSource, HostBatches};
use crate::trainer::{Trained, Training};
use fullshard_checkpoint::sharded::DataPosition;
use fullshard_models::from_json;
use fullshard_optim::{AdamW, Schedule};
use fullshard_parallel::{MeshSpec, Placement, PlacementOptions, Strategy};
use fullshard_pjrt::{ArrayType, CompileCache, CompileOptions, Flag, HostTensor};
use fullshard_step::{BatchShape, StepSpec};
use fullshard_testing::CLIENT;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const MODEL: &str = r#"{"model_type": "gpt2", "vocab_size": 61, "n_positions": 12, "n_embd": 12,
    "n_layer": 2, "n_head": 2, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}"#;
const BATCH: BatchShape =
    BatchShape { sequences: 4, tokens: 12, accumulation: 1, sync_each_microbatch: true };

fn spec(strategy: Strategy, mesh: &str) -> StepSpec {
    let (model, mesh) = (from_json(MODEL).unwrap(), mesh.parse::<MeshSpec>().unwrap());
    let mesh = mesh.resolve(4).unwrap();
    let options = PlacementOptions { strategy, scan_layers: true, ..PlacementOptions::default() };
    let placement = Placement::on_mesh(&model.tree(), &mesh, &options).unwrap();
    StepSpec::new(model, placement, Box::new(AdamW::default()), BATCH, Some(1.0)).unwrap()
}

/// A compiler that compiles the programs of several runners once.
fn compiler(folder: &tempfile::TempDir) -> Compiler<'static> {
    let options = CompileOptions::new(4).flag("xla_backend_optimization_level", Flag::Int(1));
    let cache = Some(CompileCache::at(folder.path()));
    Compiler { client: &CLIENT, cache, options, job: Job::alone() }
}

/// Batches of tokens that differ at every position.
struct Tokens;

impl BatchSource for Tokens {
    fn examples(&self) -> u64 {
        1000
    }

    fn steps_per_epoch(&self) -> u64 {
        250
    }

    fn batches(&self, steps: std::ops::Range<u64>) -> Result<HostBatches<'_>, Error> {
        Ok(Box::new(steps.map(|step| Ok(batch(step)))))
    }
}

fn batch(step: u64) -> HostBatch {
    let token = |i: u64| ((i + 48 * step) * 2_654_435_761 % 61) as i32;
    let tokens: Vec<i32> = (0..48).map(token).collect();
    let tokens = HostTensor::from_values(&[1, 4, 12], &tokens).unwrap();
    let (examples, waited) = (4, Duration::ZERO);
    HostBatch { step, tensors: vec![tokens.clone(), tokens], examples, waited }
}

/// Flips bits of the first element of a tensor on one device.
fn flip(array: &mut Array, device: usize, bits: u32) {
    let shards = array.shards().iter().enumerate().map(|(position, shard)| {
        let host = shard.to_host().unwrap();
        let mut bytes = host.bytes().to_vec();
        if position == device {
            bytes.iter_mut().zip(bits.to_le_bytes()).for_each(|(byte, bits)| *byte ^= bits);
        }
        CLIENT.upload(&HostTensor::new(host.ty().clone(), bytes).unwrap(), shard.device()).unwrap()
    });
    let ty = ArrayType { ty: array.ty().clone(), tiling: Arc::clone(array.tiling()) };
    *array = Array::from_shards(&ty, shards.collect()).unwrap();
}

/// Trains and saves every second step.
fn train(runner: &mut Runner<'_>, steps: u64, every: u64, folder: &Path) -> Result<Trained, Error> {
    let options = TrainScheduleOptions {
        max_steps: Some(steps),
        saving: Every::Steps(2.0),
        ..TrainScheduleOptions::default()
    };
    let options = (
        TrainSchedule::new(options, 250).unwrap(),
        SaveOptions {
            folder: folder.to_owned(),
            limit: Some(1),
            only_model: false,
            memory: None,
            config: serde_json::Value::Null,
            on_save: Arc::new(|_| {}),
            in_memory: None,
        },
    );
    let saving = Saving {
        copies: None,
        options: options.1,
        run: "run".into(),
        seed: 42,
        position: &|_| DataPosition::default(),
        requested: &|| false,
        best: None,
        on_best: false,
        load_best: false,
    };
    let training = Training {
        schedule: options.0,
        lr_schedule: Schedule::Constant,
        learning_rate: 1e-3,
        batches: Arc::new(Tokens),
        evaluation: None,
        profile: None,
        stop: &|| false,
        saving: Some(saving),
        resumed: None,
        guards: Guards { check_replicas: every, ..Guards::default() },
    };
    training.run(runner, &mut ())
}

/// Trains without an alarm.
fn stays_healthy(compiler: &Compiler<'_>, spec: &StepSpec) {
    let mut runner = Runner::new(compiler, spec, 42).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let trained = train(&mut runner, 20, 1, folder.path()).unwrap();
    assert_eq!(trained.state.global_step, 20);
}

/// What is found after a flip on a device before the first step.
fn found(compiler: &Compiler<'_>, spec: &StepSpec, device: usize) -> Corrupt {
    let mut runner = Runner::new(compiler, spec, 42).unwrap();
    flip(&mut runner.state_mut().parameters[1], device, 1);
    let folder = tempfile::tempdir().unwrap();
    let error = train(&mut runner, 4, 2, folder.path()).unwrap_err();
    let Error::Corrupt(corrupt) = error else { panic!("{error}") };
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the state was saved");
    assert_eq!((corrupt.step, corrupt.good, corrupt.by), (2, 0, CheckedBy::Replicas));
    assert!(corrupt.tensors.contains(&spec.placement.parameters[1].name), "{corrupt}");
    *corrupt
}

fn devices(corrupt: &Corrupt) -> Vec<usize> {
    assert!(corrupt.devices.iter().all(|place| place.process == 0));
    corrupt.devices.iter().map(|place| place.device).collect()
}

/// Two replicas differ, and no third one tells which is right.
#[test]
fn a_flipped_bit_of_two_replicas_names_both() {
    let cache = tempfile::tempdir().unwrap();
    let (compiler, spec) = (compiler(&cache), spec(Strategy::HybridShard, "data=2,fsdp=2"));
    let corrupt = found(&compiler, &spec, 3);
    assert_eq!(devices(&corrupt), [1, 3]);
    let text = corrupt.to_string();
    assert!(text.contains("those of device 1 of process 0 and device 3 of process 0"), "{text}");
    stays_healthy(&compiler, &spec);
}

#[test]
fn a_flipped_bit_of_four_replicas_names_its_device() {
    let cache = tempfile::tempdir().unwrap();
    let corrupt = found(&compiler(&cache), &spec(Strategy::NoShard, "fsdp=4"), 2);
    assert_eq!(devices(&corrupt), [2]);
    assert!(corrupt.to_string().contains("device 2 of process 0 has other values"), "{corrupt}");
}

/// A step whose state changes on one device between its two runs.
#[test]
fn a_repeated_step_names_the_device_that_differs() {
    let cache = tempfile::tempdir().unwrap();
    let (compiler, spec) = (compiler(&cache), spec(Strategy::FullShard, "fsdp=4"));
    let mut runner = Runner::new(&compiler, &spec, 42).unwrap();
    let mut checker = Checker::new(&runner, 1).unwrap();
    checker.check(&runner, 1, &batch(0), 1e-3).unwrap();
    let Program::Repeating(launcher) = &checker.program else { panic!("nothing is replicated") };
    let tensors = batch(1).tensors;
    let run = |runner: &Runner<'_>| {
        rows(&runner.step_checksums(launcher, &tensors, 1e-3).unwrap()).unwrap()
    };
    let first = run(&runner);
    assert!(changes(&first, &run(&runner)).is_empty());
    // A shard of a moment is used by the update on its device only.
    let slots = runner.state().parameters.len();
    flip(&mut runner.state_mut().optimizer[0], 2, 0.5_f32.to_bits());
    let differing = changes(&first, &run(&runner));
    assert_eq!(differing.iter().map(|(device, _)| *device).collect::<BTreeSet<_>>(), [2].into());
    let corrupt = checker.corrupt(7, CheckedBy::Repeating, &differing, Process::alone(), 4);
    assert_eq!((devices(&corrupt), corrupt.good), (vec![2], 1));
    assert!(differing.contains(&(2, slots)), "{differing:?}");
    let text = corrupt.to_string();
    assert!(text.contains("device 2 of process 0 computes other values"), "{text}");
    stays_healthy(&compiler, &spec);
}

#[test]
#[ignore = "long: more meshes"]
fn long_healthy_meshes_raise_no_alarm() {
    for (strategy, mesh) in [
        (Strategy::HybridShard, "data=2,fsdp=1,tensor=2"),
        (Strategy::FullShard, "fsdp=2,tensor=2"),
        (Strategy::FullShard, "fsdp=2,context=2"),
    ] {
        let cache = tempfile::tempdir().unwrap();
        stays_healthy(&compiler(&cache), &spec(strategy, mesh));
    }
}
