//! Jobs of several processes, by real launchers: what they train is what one process trains, and
//! they end together.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod drills;
mod ends;
mod launchers;
mod meshes;
mod mistakes;
mod resume;

use common::{Folder, Running, device, number, short, text};
use fullshard_core::Platform;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The flags of all jobs: the batch of a step is 8 sequences on two devices.
const FLAGS: [&str; 12] = [
    "--per_device_train_batch_size",
    "4",
    "--block_size",
    "16",
    "--learning_rate",
    "1e-2",
    "--lr_scheduler_type",
    "constant",
    "--logging_steps",
    "1",
    "--report_to",
    "none",
];

/// A run that ends by itself.
const STEPS: [&str; 4] = ["--max_steps", "6", "--save_steps", "3"];

/// The flags of a run.
fn flags(more: &[&'static str]) -> Vec<&'static str> {
    short(&[&FLAGS[..], more].concat())
}

/// Variables of launchers that may run the tests.
const LAUNCHERS: [&str; 6] = ["SLURM_", "OMPI_", "PMI_", "JOB_COMPLETION_INDEX", "RANK", "WORLD_"];

/// One process. Compiled programs are shared by all tests.
fn process(folder: &Folder, args: &[&str]) -> Command {
    let mut command = folder.command(args);
    for (name, _) in std::env::vars_os() {
        if LAUNCHERS.iter().any(|start| name.to_string_lossy().starts_with(start)) {
            command.env_remove(name);
        }
    }
    if device() == Platform::Cpu {
        command.env("FULLSHARD_CACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/hosts"));
        command.env("FULLSHARD_MPI_LIBRARY", fullshard_testing::mpi().library);
    }
    command
}

/// The same command by way of another program, whose arguments come first.
fn by(program: impl AsRef<Path>, args: &[&str], command: &Command) -> Command {
    let mut other = Command::new(program.as_ref());
    other.args(args).arg(command.get_program()).args(command.get_args());
    other.current_dir(command.get_current_dir().unwrap());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => other.env(name, value),
            None => other.env_remove(name),
        };
    }
    other
}

/// A job by `mpiexec`.
fn mpiexec(folder: &Folder, count: &'static str, args: &[&'static str]) -> Command {
    by(fullshard_testing::mpi().mpiexec, &["-n", count], &process(folder, args))
}

/// A job by `fullshard launch`.
fn launch(folder: &Folder, count: &'static str, args: &[&'static str]) -> Command {
    let launch = ["launch", "-n", count];
    if device() == Platform::Cpu {
        return process(folder, &[&launch[..], args].concat());
    }
    let script = file("one_gpu.sh");
    let shared =
        ["--device", device().name(), "--memory_fraction", "0.1", "--preallocate", "false"];
    process(folder, &[&launch[..], &["--mpiexec", &script], args, &shared].concat())
}

/// The path of a file beside this one.
fn file(name: &str) -> String {
    fullshard_testing::root().join("crates/cli/tests/hosts").join(name).display().to_string()
}

/// The stdout and stderr of a command that must end with a code.
fn ends(mut command: Command, code: i32) -> String {
    let output = command.output().unwrap();
    let printed = all_text(&output);
    assert_eq!(output.status.code(), Some(code), "{command:?}: {printed}");
    printed
}

fn all_text(output: &Output) -> String {
    text(&output.stdout) + &text(&output.stderr)
}

/// The losses of a run, by step.
fn losses(folder: &Folder, output: &str) -> Vec<f64> {
    let state = folder.json(&format!("{output}/trainer_state.json"));
    let logs = state["log_history"].as_array().unwrap();
    let losses = logs.iter().filter(|log| log.get("loss").is_some());
    losses.map(|log| number(&log["loss"])).collect()
}

fn model(folder: &Folder, output: &str) -> Vec<u8> {
    fs::read(folder.path(output).join("model.safetensors")).unwrap()
}

/// What a run ends with.
struct Outcome {
    losses: Vec<f64>,
    model: Vec<u8>,
}

impl Outcome {
    fn of(folder: &Folder, output: &str) -> Outcome {
        Outcome { losses: losses(folder, output), model: model(folder, output) }
    }

    /// Checks that another is equal, bit for bit.
    fn assert_is(&self, expected: &Outcome) {
        assert_eq!(self.losses, expected.losses);
        assert!(self.model == expected.model, "the models differ");
    }
}

/// Checks that two runs of a folder are equal, bit for bit.
fn assert_same(folder: &Folder, output: &str, expected: &str) {
    Outcome::of(folder, output).assert_is(&Outcome::of(folder, expected));
}

/// Checks that two runs of a folder have the same losses but for rounding.
fn assert_close(folder: &Folder, output: &str, expected: &str) {
    let (losses, expected) = (losses(folder, output), losses(folder, expected));
    assert_eq!(losses.len(), expected.len());
    for (loss, expected) in losses.iter().zip(&expected) {
        assert!((loss / expected - 1.0).abs() < 1e-6, "{losses:?} is not {expected:?}");
    }
}

/// The processes of a job that run in a folder with a number, as generation and id.
fn processes_of(folder: &Folder, number: usize) -> Vec<(usize, Pid)> {
    let here = folder.0.path().canonicalize().unwrap();
    let found = |path: PathBuf| {
        let is_it = fs::read_link(path.join("cwd")).is_ok_and(|cwd| cwd == here)
            && fs::read_link(path.join("exe")).is_ok_and(|exe| exe.ends_with("fullshard"));
        let environment = is_it.then(|| fs::read(path.join("environ")).ok()).flatten()?;
        let variable = |name: &str| {
            let mut all = environment.split(|byte| *byte == 0);
            let value = all.find_map(|variable| variable.strip_prefix(name.as_bytes()))?;
            std::str::from_utf8(value).ok()?.parse::<usize>().ok()
        };
        let generation = variable("FULLSHARD_GENERATION=").unwrap_or(0);
        let pid = path.file_name()?.to_str()?.parse().ok()?;
        let rank = variable("PMI_RANK=").or_else(|| variable("FULLSHARD_PROCESS_ID="));
        (rank == Some(number)).then_some((generation, Pid::from_raw(pid)?))
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| found(entry.path())).collect()
}

/// A process of a job that runs in a folder, by its number.
fn process_of(folder: &Folder, number: usize) -> Pid {
    let found = processes_of(folder, number);
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].1
}

/// Sends a signal to one process of a job.
fn signal(folder: &Folder, number: usize, signal: Signal) {
    kill_process(process_of(folder, number), signal).unwrap();
}

/// Starts a job, and waits for its first steps.
fn start(folder: &Folder, command: Command) -> Running {
    let mut run = Running::start(folder, command);
    assert!(run.prints("  loss "), "{}{}", run.printed, stderr(folder));
    run
}

fn stderr(folder: &Folder) -> String {
    fs::read_to_string(folder.path("stderr")).unwrap()
}
