//! Runs that go wrong: one that hangs ends with its stacks, and one whose data has garbage goes on
//! without it, also if it is interrupted.
#![allow(clippy::unwrap_used)]

use fullshard::config::{ConfigSource, OnSpike, ResumeFrom, RunConfig};
use fullshard::run::{Control, Run, STUCK};
use fullshard_data::demo::Demo;
use fullshard_train::{Callback, Error, Metrics, Spike, SpikeOutcome};
use serde_json::{Map, json};
use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::process::Command;

const FOLDER: &str = "FULLSHARD_TEST_FOLDER";

fn config(folder: &Path, output: &str) -> RunConfig {
    let model = json!({
        "model_type": "gpt2", "vocab_size": 96, "n_positions": 16, "n_embd": 16, "n_layer": 2,
        "n_head": 2,
    });
    let model: Map<_, _> = model.as_object().unwrap().clone();
    let mut config = RunConfig::default();
    config.model.config = Some(ConfigSource::inline(model));
    config.data.train_file = vec![folder.join("train.txt")];
    config.data.tokenizer = Some(folder.join("tokenizer.json").display().to_string());
    config.data.block_size = Some(16);
    config.data.cache_dir = Some(folder.join("cache"));
    config.schedule.per_device_batch = 2;
    config.logging.report_to = vec!["none".to_owned()];
    config.output.dir = folder.join(output);
    config
}

/// Trains; `stop` is asked before each launch.
fn train(config: &RunConfig, stop: &dyn Fn() -> bool, seen: &mut Seen) {
    let run = Run::prepare(config, &mut ()).unwrap();
    let corpora = run.corpora(&mut ()).unwrap();
    let client = run.client().unwrap();
    let compiler = run.compiler(&client).unwrap();
    let mut started = run.start(&compiler).unwrap();
    let set = run.training_set(&corpora, started.checkpoint).unwrap().unwrap();
    let control = Control { stop, ..Control::default() };
    run.train(&mut started, set, None, &control, seen).unwrap();
}

#[derive(Default)]
struct Seen {
    steps: Vec<u64>,
    spikes: Vec<Spike>,
}

impl Callback for Seen {
    fn on_step(&mut self, step: u64, _: Metrics) -> Result<(), Error> {
        self.steps.push(step);
        Ok(())
    }

    fn on_spike(&mut self, spike: &Spike) -> Result<(), Error> {
        self.spikes.push(*spike);
        Ok(())
    }
}

/// Hangs before its fourth step.
#[test]
#[ignore = "run by the test below"]
fn child_hangs() {
    let folder = std::env::var(FOLDER).unwrap();
    let mut config = config(Path::new(&folder), "out");
    config.guard.step_timeout = Some(2.0);
    let launches = Cell::new(0);
    let stop = || {
        launches.set(launches.get() + 1);
        while launches.get() == 4 {
            std::thread::park();
        }
        false
    };
    train(&config, &stop, &mut Seen::default());
}

#[test]
fn a_run_that_hangs_ends_with_its_stacks() {
    let folder = tempfile::tempdir().unwrap();
    Demo::write(folder.path(), 600, 5).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["child_hangs", "--exact", "--ignored"]).env(FOLDER, folder.path());
    let ended = command.output().unwrap();
    let printed = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(i32::from(STUCK)), "{printed}");
    let stacks = fs::read_to_string(folder.path().join("out/stacks-0.txt")).unwrap();
    let reason =
        "the run is stuck at step 4: it has been agreeing with the other processes for 2 s";
    assert!(stacks.starts_with(reason), "{stacks}");
    let of = |thread: &str| {
        let named = format!("\"{thread}\"");
        stacks.split("\n\n").find(|text| text.contains(&named)).unwrap_or_default().to_owned()
    };
    // The test's own thread hangs; the kernel cuts its name.
    assert!(of("child_hangs").contains("guard-"), "{stacks}");
    assert!(!of("watchdog").is_empty(), "{stacks}");
}

/// Text of one sentence, with words in no order in the middle of it.
fn write_text(folder: &Path) {
    Demo::write(folder, 2000, 5).unwrap();
    let text = fs::read_to_string(folder.join("train.txt")).unwrap();
    let words: Vec<&str> = text.split_whitespace().collect();
    let sentence = words[..9].join(" ") + "\n";
    let noise: Vec<&str> = (0..40).map(|i| words[(i * i * 37 + 11 * i) % words.len()]).collect();
    let text = [&sentence.repeat(300), &noise.join(" "), "\n", &sentence.repeat(300)].concat();
    fs::write(folder.join("train.txt"), text).unwrap();
}

/// A run that learns the sentence, with checkpoints.
fn spiking(folder: &Path, output: &str) -> RunConfig {
    let mut config = config(folder, output);
    config.schedule.max_steps = 180;
    config.schedule.lr_scheduler = "constant".into();
    config.optimizer.learning_rate = Some(1e-2);
    config.checkpoint.steps = 25.0;
    config.guard.on_loss_spike = OnSpike::Rollback;
    config.guard.spike_factor = 4.0;
    config
}

#[test]
fn an_interrupted_run_with_a_rollback_ends_the_same() {
    let folder = tempfile::tempdir().unwrap();
    write_text(folder.path());
    let mut whole = Seen::default();
    train(&spiking(folder.path(), "whole"), &|| false, &mut whole);
    let first = *whole.spikes.first().expect("no spike");
    let SpikeOutcome::RolledBack { to, batches } = first.outcome else { panic!("{first}") };
    assert_eq!((to % 25, batches), (0, first.step - to));
    assert_eq!(whole.steps.last(), Some(&180));

    // Stopped some steps after the first rollback, and resumed.
    let launches = Cell::new(0);
    let stop = || launches.replace(launches.get() + 1) >= first.step + 3;
    let mut stopped = Seen::default();
    train(&spiking(folder.path(), "parts"), &stop, &mut stopped);
    let last = *stopped.steps.last().unwrap();
    assert!(stopped.spikes.contains(&first) && last < 180, "{:?}", stopped.spikes);
    let mut config = spiking(folder.path(), "parts");
    config.checkpoint.resume = Some(ResumeFrom::Latest);
    let mut resumed = Seen::default();
    train(&config, &|| false, &mut resumed);
    assert_eq!(resumed.steps.first(), Some(&(last + 1)));
    let model = |output: &str| fs::read(folder.path().join(output).join("model.safetensors"));
    assert!(model("parts").unwrap() == model("whole").unwrap(), "the models differ");
    let spikes = [&stopped.spikes[..], &resumed.spikes].concat();
    assert_eq!(spikes, whole.spikes);
}
