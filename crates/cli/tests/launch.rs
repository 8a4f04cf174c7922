//! `fullshard launch`: output, signals, failures and exit codes of several processes.
#![allow(clippy::unwrap_used)]

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A command without variables of launchers that may run the tests.
fn fullshard(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fullshard"));
    command.args(args);
    let launchers = ["FULLSHARD_", "SLURM_", "OMPI_", "PMI_", "JOB_", "TPU_", "RANK", "WORLD_SIZE"];
    for (name, _) in std::env::vars_os() {
        if launchers.iter().any(|start| name.to_string_lossy().starts_with(start)) {
            command.env_remove(name);
        }
    }
    command
}

fn run(args: &[&str]) -> Output {
    fullshard(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A job that stays together, and its processes.
struct Job {
    launcher: Child,
    processes: Vec<Pid>,
}

impl Job {
    fn start(count: usize) -> Job {
        let args = ["launch", "-n", &count.to_string(), "rendezvous", "--stay_s", "60"];
        let mut launcher =
            fullshard(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(launcher.stdout.as_mut().unwrap()).lines();
        while !lines.next().unwrap().unwrap().contains("found one another") {}
        let processes = children(launcher.id());
        assert_eq!(processes.len(), count);
        Job { launcher, processes }
    }

    /// The exit code, what was complained about, and when the last process had ended.
    fn end(mut self) -> (Option<i32>, String, Duration) {
        let start = Instant::now();
        let mut errors = String::new();
        self.launcher.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        let code = self.launcher.wait().unwrap().code();
        while self.processes.iter().any(|pid| is_running(*pid)) {
            assert!(start.elapsed() < Duration::from_secs(20), "processes are left");
            std::thread::sleep(Duration::from_millis(10));
        }
        (code, errors, start.elapsed())
    }
}

/// The fields of a process's status after its name: state, parent, ...
fn status(pid: &str) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields = text.rsplit_once(')')?.1;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

fn is_running(pid: Pid) -> bool {
    status(&pid.as_raw_nonzero().to_string()).is_some_and(|fields| fields[0] != "Z")
}

/// The children of a process, in the order of their start.
fn children(parent: u32) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut pids: Vec<i32> = names
        .filter(|name| status(name).is_some_and(|fields| fields[1] == parent.to_string()))
        .map(|name| name.parse().unwrap())
        .collect();
    pids.sort_unstable();
    pids.into_iter().filter_map(Pid::from_raw).collect()
}

#[test]
fn processes_run_as_one_job() {
    let output = run(&["launch", "-n", "3", "rendezvous"]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{err}");
    assert!(out.starts_with("process 0 of 3 on host "), "{out}");
    assert!(out.contains("3 processes on 1 host found one another in"), "{out}");
    let mut lines: Vec<_> = err.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines.len(), 2, "{err}");
    assert!(lines[0].starts_with("[1] process 1 of 3"), "{err}");
    assert!(lines[1].starts_with("[2] process 2 of 3"), "{err}");
}

#[test]
fn one_process_is_alone() {
    let output = run(&["launch", "-n", "1", "rendezvous"]);
    assert!(text(&output.stdout).starts_with("one process"));
}

#[test]
fn commands_of_one_process_are_refused_by_name() {
    for command in ["plan", "devices", "config"] {
        let output = run(&["launch", "-n", "2", command, "--json"]);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1));
        assert!(message.contains(&format!("`{command}` does not run as several")), "{message}");
    }
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/configs/gpt2_30m.json");
    let output = run(&["launch", "-n", "2", "bench", "checkpoint", "--config", config]);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(message.contains("`bench checkpoint` does not run as several"), "{message}");
}

/// Flags are checked once, before anything is started.
#[test]
fn bad_flags_are_rejected_once() {
    let output = run(&["launch", "-n", "2", "rendezvous", "--no_such_flag"]);
    assert_eq!(output.status.code(), Some(2));
    let errors = text(&output.stderr);
    assert_eq!(errors.matches("unexpected argument '--no_such_flag'").count(), 1, "{errors}");
}

/// A file that is not there is noticed by the processes.
#[test]
fn the_exit_code_is_that_of_the_failed_process() {
    let output = run(&["launch", "-n", "2", "rendezvous", "--secret_file", "/no/secret"]);
    assert_eq!(output.status.code(), Some(1));
    let errors = text(&output.stderr);
    assert!(errors.contains("[1] error: --secret_file: cannot read /no/secret"), "{errors}");
}

#[test]
fn a_killed_process_ends_the_job() {
    let job = Job::start(3);
    kill_process(job.processes[2], Signal::KILL).unwrap();
    let (code, errors, time) = job.end();
    assert_eq!(code, Some(137), "{errors}");
    assert!(time < Duration::from_secs(3), "{time:?}");
    assert!(errors.contains("launch: process 2 was killed by signal 9"), "{errors}");
    assert!(errors.contains("[1] error: process 2 (host "), "{errors}");
}

#[test]
fn a_stopped_process_is_killed_in_the_end() {
    let job = Job::start(2);
    // It cannot hear SIGTERM.
    kill_process(job.processes[1], Signal::STOP).unwrap();
    kill_process(job.processes[0], Signal::KILL).unwrap();
    let (code, errors, time) = job.end();
    assert_eq!(code, Some(137), "{errors}");
    assert!(time < Duration::from_secs(15), "{time:?}");
}

#[test]
fn a_killed_launcher_takes_its_processes_along() {
    let mut job = Job::start(3);
    job.launcher.kill().unwrap();
    let (_, errors, time) = job.end();
    assert!(time < Duration::from_secs(3), "{time:?}, {errors}");
}

#[test]
fn signals_are_forwarded() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let job = Job::start(2);
        kill_process(Pid::from_child(&job.launcher), signal).unwrap();
        let (ended, errors, time) = job.end();
        assert_eq!(ended, Some(code), "{errors}");
        assert!(time < Duration::from_secs(3), "{time:?}");
    }
}

/// A stand-in for MPICH's mpiexec: its variables, and marked lines.
const MPIEXEC: &str = r#"#!/usr/bin/env bash
[[ $1 == -prepend-rank && $2 == -n ]] || exit 99
size=$3; shift 3
for ((rank = 0; rank < size; rank++)); do
    PMI_RANK=$rank PMI_SIZE=$size MPI_LOCALRANKID=$rank "$@" 2>&1 | sed "s/^/[$rank] /" &
done
wait
"#;

#[test]
fn mpiexec_starts_the_same_job() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mpiexec");
    std::fs::write(&path, MPIEXEC).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mpiexec = path.to_str().unwrap();
    let output = run(&["launch", "-n", "3", "--mpiexec", mpiexec, "rendezvous"]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{err}");
    assert!(out.starts_with("process 0 of 3 on host ") && out.contains("by MPICH"), "{out}");
    assert!(out.contains("3 processes on 1 host"), "{out}");
    assert!(err.contains("[1] process 1 of 3") && err.contains("[2] process 2 of 3"), "{err}");

    let output = run(&["launch", "-n", "2", "--mpiexec", "/no/mpiexec", "rendezvous"]);
    let message = text(&output.stderr);
    assert!(message.contains("cannot start mpiexec (/no/mpiexec)"), "{message}");
}

#[test]
fn flags_state_the_processes_too() {
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "0123456789abcdef\n").unwrap();
    let start = |process: &str| {
        let args = ["rendezvous", "--num_processes", "2", "--process_id", process];
        let mut command = fullshard(&args);
        command.args(["--coordinator", &address.to_string()]).arg("--secret_file").arg(&secret);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let outputs = ["0", "1"].map(start).map(|child| child.wait_with_output().unwrap());
    assert!(outputs.iter().all(|output| output.status.success()));
    assert!(text(&outputs[0].stdout).contains("2 processes on 1 host"));
    let output = run(&["rendezvous", "--process_id", "1"]);
    assert!(text(&output.stderr).contains("--num_processes"));
}
