//! Loss spikes: a batch of other text than the rest is left out, and the run ends as one that never
//! had it.
#![allow(clippy::unwrap_used)]

mod common;

use common::{adamw, compiler, spec};
use fullshard_checkpoint::sharded::{Checkpoint, DataPosition};
use fullshard_optim::{Optimizer, Schedule, Sgd};
use fullshard_parallel::PlacementOptions;
use fullshard_pjrt::{Array, CompileCache, HostTensor};
use fullshard_step::{BatchShape, Ordered, StepSpec};
use fullshard_train::{
    BatchSource, Callback, Compiler, Error, Every, Guards, HostBatch, HostBatches, LossSpikes,
    Metrics, Resumed, Runner, SaveOptions, Saving, Spike, SpikeAction, SpikeOutcome, TrainSchedule,
    TrainScheduleOptions, Trained, Training,
};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const MODEL: &str = r#"{"model_type": "gpt2", "vocab_size": 61, "n_positions": 12, "n_embd": 12,
    "n_layer": 2, "n_head": 2, "resid_pdrop": 0.1, "embd_pdrop": 0, "attn_pdrop": 0}"#;
const BATCH: BatchShape =
    BatchShape { sequences: 4, tokens: 10, accumulation: 1, sync_each_microbatch: true };
const STEPS: u64 = 110;
const SAVES: u64 = 20;

/// The batch of garbage, and the checkpoint before it.
const GARBAGE: u64 = 90;
const LAST: u64 = 80;

/// Batches that count to seven, except one of noise, without those of a range.
struct Counting {
    garbage: bool,
    without: Range<u64>,
}

impl BatchSource for Counting {
    fn examples(&self) -> u64 {
        4000
    }

    fn steps_per_epoch(&self) -> u64 {
        1000
    }

    fn batches(&self, steps: Range<u64>) -> Result<HostBatches<'_>, Error> {
        Ok(Box::new(steps.map(|step| {
            let later = self.without.end - self.without.start;
            let number = if step < self.without.start { step } else { step + later };
            let noise = self.garbage && number == GARBAGE;
            let hash = |i: u64| (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33;
            let token = |i: u64| match noise {
                true => 30 + hash(i) % 30,
                false => (hash(number * 4 + i / 10) + i % 10) % 7,
            };
            let tokens: Vec<i32> = (0..40).map(|i| token(i) as i32).collect();
            let tokens = HostTensor::from_values(&[1, 4, 10], &tokens)?;
            let tensors = vec![tokens; 2];
            Ok(HostBatch { step, tensors, examples: 4, waited: Duration::ZERO })
        })))
    }
}

const WITH: Counting = Counting { garbage: true, without: 0..0 };

#[derive(Default)]
struct Seen {
    steps: Vec<u64>,
    spikes: Vec<Spike>,
}

impl Callback for Seen {
    fn on_step(&mut self, step: u64, metrics: Metrics) -> Result<(), Error> {
        assert!(metrics.loss.is_finite());
        self.steps.push(step);
        Ok(())
    }

    fn on_spike(&mut self, spike: &Spike) -> Result<(), Error> {
        self.spikes.push(*spike);
        Ok(())
    }
}

/// A run of some batches.
struct Case<'a> {
    batches: Counting,
    steps: u64,
    action: Option<SpikeAction>,
    rate: f64,
    folder: &'a Path,
    stop: &'a dyn Fn() -> bool,
    resumed: Option<Resumed>,
}

impl Case<'_> {
    fn run(self, runner: &mut Runner<'_>) -> (Trained, Seen) {
        let options = TrainScheduleOptions {
            max_steps: Some(self.steps),
            saving: Every::Steps(SAVES as f64),
            ..TrainScheduleOptions::default()
        };
        let options = TrainSchedule::new(options, 1000).unwrap();
        let saving = Saving {
            options: SaveOptions {
                folder: self.folder.to_owned(),
                limit: Some(2),
                only_model: false,
                memory: None,
                config: serde_json::Value::Null,
                on_save: Arc::new(|_| {}),
                in_memory: None,
            },
            copies: None,
            run: "run".into(),
            seed: 42,
            position: &|step| DataPosition { example: 4 * step, ..DataPosition::default() },
            requested: &|| false,
            best: None,
            on_best: false,
            load_best: false,
        };
        let loss_spikes = self.action.map(|action| LossSpikes { action, factor: 3.0 });
        let training = Training {
            schedule: options,
            lr_schedule: Schedule::Constant,
            learning_rate: self.rate,
            batches: Arc::new(self.batches),
            evaluation: None,
            profile: None,
            stop: self.stop,
            saving: Some(saving),
            resumed: self.resumed,
            guards: Guards { loss_spikes, ..Guards::default() },
        };
        let mut seen = Seen::default();
        let trained = training.run(runner, &mut seen).unwrap();
        (trained, seen)
    }
}

fn state(runner: &Runner<'_>) -> Vec<Vec<u8>> {
    let bytes = |array: &Array| array.to_host().unwrap().bytes().to_vec();
    runner.state().each_ref().flatten().into_iter().map(bytes).collect()
}

fn built(optimizer: Box<dyn Optimizer>, model: &str, limit: bool, iterations: usize) -> StepSpec {
    let options = PlacementOptions { scan_layers: true, ..PlacementOptions::default() };
    let spec = spec(model, 2, &options, BATCH, optimizer).with_loss_limit(limit);
    spec.with_iterations_per_loop(iterations).unwrap()
}

/// A compiler that compiles the programs of several runners once.
fn caching(folder: &tempfile::TempDir) -> Compiler<'static> {
    Compiler { cache: Some(CompileCache::at(folder.path())), ..compiler(2) }
}

fn runner<'a>(compiler: &'a Compiler<'a>, spec: &'a StepSpec) -> Runner<'a> {
    Runner::new(compiler, spec, 42).unwrap()
}

fn rolls_back(iterations: usize) {
    let cache = tempfile::tempdir().unwrap();
    let (compiler, spec) = (caching(&cache), built(adamw(), MODEL, false, iterations));
    let folders = [(); 3].map(|_| tempfile::tempdir().unwrap());
    let case = |batches, action, folder: usize| Case {
        batches,
        steps: STEPS,
        action,
        rate: 1e-2,
        folder: folders[folder].path(),
        stop: &|| false,
        resumed: None,
    };
    let mut found = runner(&compiler, &spec);
    let (trained, seen) = case(WITH, Some(SpikeAction::Rollback), 0).run(&mut found);
    let [spike] = seen.spikes[..] else { panic!("{:?}", seen.spikes) };
    let batches = GARBAGE + 1 - LAST;
    assert_eq!(spike.outcome, SpikeOutcome::RolledBack { to: LAST, batches });
    assert_eq!(spike.step, GARBAGE + 1, "{spike}");
    assert_eq!(trained.state.global_step, STEPS);

    // The same without the batches from the checkpoint to the garbage, and without any guard.
    let without = Counting { garbage: true, without: LAST..GARBAGE + 1 };
    let mut expected = runner(&compiler, &spec);
    let (of_expected, seen) = case(without, None, 1).run(&mut expected);
    assert!(seen.spikes.is_empty());
    assert!(state(&found) == state(&expected), "the state of a run without the spike is another");
    assert_eq!(trained.values["train_loss"], of_expected.values["train_loss"]);

    // A run that is stopped after the rollback goes on in the same data.
    let calls = std::cell::Cell::new(0);
    let stop = || calls.replace(calls.get() + 1) >= (GARBAGE + 12) / iterations as u64 + 2;
    let mut stopped = runner(&compiler, &spec);
    let case = Case { stop: &stop, ..case(WITH, Some(SpikeAction::Rollback), 2) };
    let (trained, _) = case.run(&mut stopped);
    assert!(trained.stopped);
    let step = trained.state.global_step;
    assert!((LAST + 1..STEPS).contains(&step), "{step}");
    let checkpoint =
        Checkpoint::open(folders[2].path().join(format!("checkpoint-{step}"))).unwrap();
    let progress = checkpoint.manifest().progress.clone();
    assert_eq!((progress.passed_over, progress.data.example), (batches, 4 * (step + batches)));
    let state_file = checkpoint.read_file("trainer_state.json").unwrap();
    let resumed = Resumed { state: serde_json::from_slice(&state_file).unwrap(), progress };
    let (mut again, _) =
        Runner::resume(&compiler, &spec, 42, &[checkpoint], &mut |error| panic!("{error}"))
            .unwrap();
    let case = Case {
        batches: WITH,
        steps: STEPS,
        action: Some(SpikeAction::Rollback),
        rate: 1e-2,
        folder: folders[2].path(),
        stop: &|| false,
        resumed: Some(resumed),
    };
    let (_, seen) = case.run(&mut again);
    assert!(seen.spikes.is_empty());
    assert!(state(&again) == state(&expected), "the state of a resumed run is another");
}

#[test]
fn a_rollback_passes_over_the_data_of_a_spike() {
    rolls_back(1);
}

#[test]
#[ignore = "long: compiles a loop too"]
fn long_a_rollback_within_a_loop_is_the_same() {
    rolls_back(4);
}

/// With SGD and without dropout a step that is skipped leaves no trace.
fn skips(iterations: usize) {
    let cache = tempfile::tempdir().unwrap();
    let compiler = caching(&cache);
    let model = MODEL.replace("0.1", "0");
    let folders = [(); 2].map(|_| tempfile::tempdir().unwrap());
    let case = |batches, steps, action, folder: usize| Case {
        batches,
        steps,
        action,
        rate: 0.3,
        folder: folders[folder].path(),
        stop: &|| false,
        resumed: None,
    };
    let skipping = built(Box::new(Sgd::default()), &model, true, iterations);
    let mut found = runner(&compiler, &skipping);
    let (trained, seen) = case(WITH, STEPS, Some(SpikeAction::Skip), 0).run(&mut found);
    let [spike] = seen.spikes[..] else { panic!("{:?}", seen.spikes) };
    assert_eq!((spike.step, spike.outcome), (GARBAGE + 1, SpikeOutcome::Skipped));
    assert_eq!(trained.state.global_step, STEPS);
    assert!(!seen.steps.contains(&(GARBAGE + 1)));
    assert_eq!(seen.steps.len() as u64, STEPS - 1);

    let plain = built(Box::new(Sgd::default()), &model, false, 1);
    let without = Counting { garbage: true, without: GARBAGE..GARBAGE + 1 };
    let mut expected = runner(&compiler, &plain);
    case(without, STEPS - 1, None, 1).run(&mut expected);
    assert!(state(&found) == state(&expected), "the state of a run without the spike is another");
}

#[test]
fn a_skipped_step_leaves_no_trace() {
    skips(1);
}

#[test]
#[ignore = "long: compiles a loop too"]
fn long_a_step_that_is_skipped_within_a_loop_leaves_no_trace() {
    skips(5);
}

/// A spec without a limit has the arguments that it always had.
#[test]
fn a_loss_limit_is_one_more_input() {
    let inputs = |limit| built(adamw(), MODEL, limit, 1).step_arguments().unwrap().inputs.count();
    assert_eq!((inputs(false), inputs(true)), (6, 7));
}
