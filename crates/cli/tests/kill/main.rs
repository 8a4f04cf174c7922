//! Drills of durability: runs of the binary that are killed, stopped, starved of disk space and
//! resumed. What a run ends with does not depend on how often it was interrupted.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod crash;
mod disk;
mod goodput;
mod resume;
mod signals;

use common::{Folder, Running, TINY, short, text};
use fullshard_checkpoint::sharded::verify;
use fullshard_checkpoint::{Weights, list};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

/// The flags of all drills: three steps per epoch, the last of which is not full.
const DRILL: [&str; 14] = [
    "--config_name",
    "drill.json",
    "--per_device_train_batch_size",
    "24",
    "--learning_rate",
    "1e-2",
    "--logging_steps",
    "5",
    "--save_total_limit",
    "2",
    "--lr_scheduler_type",
    "constant",
    "--block_size",
    "16",
];

/// A run that is long enough to be interrupted.
const LONG: [&str; 4] = ["--max_steps", "150", "--save_steps", "2"];

/// The flags that resume a run if it has checkpoints.
const AUTO: [&str; 2] = ["--resume_from_checkpoint", "auto"];

/// The flags of a drill.
fn drill(more: &[&'static str]) -> Vec<&'static str> {
    short(&[&DRILL[..], more].concat())
}

/// A folder for a drill, with dropout in the model. Compiled programs are shared by all drills.
fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("drill.json", &TINY.replace("\"resid_pdrop\": 0", "\"resid_pdrop\": 0.1"));
    folder
}

fn command(folder: &Folder, args: &[&str]) -> Command {
    let mut command = folder.command(args);
    command.env("FULLSHARD_CACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/kill"));
    command
}

/// A run that must succeed; returns its stdout and stderr.
fn finish(folder: &Folder, args: &[&str]) -> String {
    let output = command(folder, args).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", all_text(&output));
    all_text(&output)
}

/// A run that must fail with code 1 and these words.
fn fail(folder: &Folder, args: &[&str], words: &[&str]) -> String {
    let output = command(folder, args).output().unwrap();
    let text = all_text(&output);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {text}");
    for word in words {
        assert!(text.contains(word), "{args:?}: no `{word}` in {text}");
    }
    text
}

fn all_text(output: &Output) -> String {
    text(&output.stdout) + &text(&output.stderr)
}

/// Starts a run.
fn start(folder: &Folder, args: &[&str]) -> Running {
    Running::start(folder, command(folder, args))
}

/// The outcome of a run, without times.
struct Outcome {
    model: Vec<u8>,
    state: Value,
    picture: Vec<u8>,
    /// The losses in the last checkpoint.
    losses: Value,
}

impl Outcome {
    fn of(folder: &Folder, output: &str) -> Outcome {
        let read = |name: &str| fs::read(folder.path(output).join(name)).unwrap();
        let mut state = folder.json(&format!("{output}/trainer_state.json"));
        for log in state["log_history"].as_array_mut().unwrap() {
            log.as_object_mut().unwrap().retain(|name, _| !is_time(name));
        }
        let last = checkpoints(&folder.path(output)).pop().unwrap();
        let losses = folder.json(&format!("{output}/checkpoint-{last}/losses.json"));
        let losses = losses["losses"].clone();
        Outcome { model: read("model.safetensors"), state, picture: read("loss.svg"), losses }
    }

    fn assert_is(&self, expected: &Outcome) {
        assert_eq!(self.state, expected.state);
        assert!(self.model == expected.model, "the models differ");
        assert!(self.picture == expected.picture, "the pictures of the loss differ");
        let [losses, expected] = [self, expected].map(|run| run.losses.as_array().unwrap());
        assert!(expected.starts_with(losses) && losses.len() + 1 >= expected.len());
    }
}

fn is_time(name: &str) -> bool {
    let times = ["per_second", "runtime", "_time", "input_wait", "mfu", "hfu"];
    times.iter().any(|time| name.contains(time))
}

/// The outcome of the long run without any interruption.
static UNINTERRUPTED: LazyLock<Outcome> = LazyLock::new(|| {
    let folder = folder();
    finish(&folder, &drill(&LONG));
    Outcome::of(&folder, "out")
});

/// The checkpoints in an output folder, by their steps.
fn checkpoints(output: &Path) -> Vec<u64> {
    let listed = list(output).unwrap();
    let mut steps: Vec<u64> = listed.iter().map(|listed| listed.step).collect();
    steps.sort_unstable();
    steps
}

/// Checks that all checkpoints of an output folder are complete and intact, and returns the steps.
fn intact(output: &Path) -> Vec<u64> {
    for listed in list(output).unwrap() {
        let problems = verify(&listed.path, &mut |_| ()).unwrap();
        assert!(problems.is_empty(), "{problems:?}");
    }
    checkpoints(output)
}

/// The weights of a folder by name, whatever their format.
fn weights(path: PathBuf) -> Vec<(String, Vec<f32>)> {
    let weights = Weights::open(path).unwrap();
    let names: Vec<String> = weights.names().map(str::to_owned).collect();
    names.into_iter().map(|name| (name.clone(), weights.read_f32(&name).unwrap())).collect()
}

/// Flips a bit in the second half of a file.
fn damage(path: PathBuf) {
    let mut bytes = fs::read(&path).unwrap();
    let place = bytes.len() - bytes.len() / 4;
    bytes[place] ^= 4;
    fs::write(path, bytes).unwrap();
}
