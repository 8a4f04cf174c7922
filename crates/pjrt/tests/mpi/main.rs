//! Collectives between processes: this test binary runs itself under `mpiexec`, in one of the roles
//! of `child.rs`.
#![allow(clippy::unwrap_used)]

mod child;
#[path = "../common/mod.rs"]
mod common;
mod faults;
mod launches;
mod process;
mod values;

use std::io::Read;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The role of a child process.
const ROLE: &str = "FULLSHARD_TEST_ROLE";
/// Number of processes that a child expects.
const COUNT: &str = "FULLSHARD_TEST_COUNT";

/// No job may take longer.
const DEADLINE: Duration = Duration::from_secs(120);

/// The arguments with which this test binary plays a role.
const CHILD: [&str; 4] = ["child::child_plays_its_role", "--ignored", "--exact", "--nocapture"];

/// A job of `count` processes in a role.
fn job(role: &str, count: usize) -> Command {
    let mut command = Command::new(common::mpi().mpiexec);
    command.args(["-n", &count.to_string()]).arg(std::env::current_exe().unwrap());
    in_role(command, role, count)
}

/// A process in a role, without `mpiexec`.
fn single(role: &str, expected: usize) -> Command {
    common::mpi();
    in_role(Command::new(std::env::current_exe().unwrap()), role, expected)
}

fn in_role(mut command: Command, role: &str, count: usize) -> Command {
    command.args(CHILD).env(ROLE, role).env(COUNT, count.to_string());
    command.env_remove("FULLSHARD_MPI_LIBRARY");
    command
}

/// The output of a command, which is killed at the deadline.
fn output(mut command: Command) -> Output {
    let mut process =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let read = |mut pipe: Box<dyn Read + Send>| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            pipe.read_to_end(&mut bytes).unwrap();
            bytes
        })
    };
    let stdout = read(Box::new(process.stdout.take().unwrap()));
    let stderr = read(Box::new(process.stderr.take().unwrap()));
    let start = Instant::now();
    let status = loop {
        match process.try_wait().unwrap() {
            Some(status) => break status,
            None if start.elapsed() > DEADLINE => {
                process.kill().unwrap();
                break process.wait().unwrap();
            }
            None => thread::sleep(Duration::from_millis(5)),
        }
    };
    Output { status, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
}

/// Both streams of a job.
fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).join("\n")
}

/// Runs a job that must succeed on every process.
fn succeeds(command: Command, count: usize) {
    let output = output(command);
    let text = text(&output);
    println!("{text}");
    assert!(output.status.success(), "{}", output.status);
    assert_eq!(text.matches("is right").count(), count);
}

/// Declares tests of jobs: `name: role, processes`.
macro_rules! jobs {
    ($($(#[$attribute:meta])* $name:ident: $role:literal, $count:literal;)*) => {$(
        #[test]
        $(#[$attribute])*
        fn $name() {
            succeeds(job($role, $count), $count);
        }
    )*};
}

jobs! {
    two_processes_compute_every_collective: "collectives", 2;
    three_processes_compute_every_collective: "collectives", 3;
    #[ignore = "long: the same with more processes than cores"]
    long_four_processes_compute_every_collective: "collectives", 4;
    every_dtype_is_reduced_and_moved: "dtypes", 2;
    #[ignore = "long: the same with more processes than cores"]
    long_every_dtype_is_reduced_by_three: "dtypes", 3;
    groups_communicate_in_their_order: "groups", 4;
    bytes_of_process_0_are_broadcast: "world", 3;
    devices_of_a_process_reduce_first: "devices", 2;
    loops_communicate: "loop", 2;
    #[ignore = "long: the same with more processes than cores"]
    long_loops_of_four_processes_communicate: "loop", 4;
    devices_permute: "permute", 2;
    #[ignore = "long: the same with more processes than cores"]
    long_devices_of_three_processes_permute: "permute", 3;
    independent_sums_in_flight_are_right: "flight", 2;
    #[ignore = "long: the same with more processes than cores"]
    long_independent_sums_of_four_are_right: "flight", 4;
    rejects_bad_calls: "garbage", 2;
    rejects_different_programs: "different", 2;
    #[ignore = "long: creates all communicators that MPI has"]
    long_too_many_communicators_are_an_error: "exhaust", 2;
    #[ignore = "long: needs 13 GB"]
    long_counts_may_exceed_32_bits: "large", 2;
}

#[test]
fn communication_overlaps_with_matmuls() {
    let mut command = job("overlap", 2);
    command.env("FULLSHARD_MPI_DELAY_MS", "200");
    succeeds(command, 2);
}

#[test]
fn errors_of_mpi_name_call_and_channel() {
    let text = text(&output(job("truncated", 2)));
    assert_eq!(text.matches("is right").count(), 2, "{text}");
}

#[test]
fn a_channel_is_used_once_at_a_time() {
    let mut command = job("twice", 2);
    command.env("FULLSHARD_MPI_DELAY_MS", "200");
    let text = text(&output(command));
    assert_eq!(text.matches("is right").count(), 2, "{text}");
}

#[test]
fn death_of_a_process_ends_the_job() {
    let start = Instant::now();
    let output = output(job("die", 3));
    assert!(!output.status.success());
    assert!(text(&output).contains("process 1 dies"), "{}", text(&output));
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}

#[test]
fn a_process_without_mpiexec_is_alone() {
    let output = output(single("alone", 2));
    let text = text(&output);
    assert!(!output.status.success(), "{text}");
    let installed = common::mpi();
    for part in [
        "alone in MPI, but the job has 2 processes",
        installed.library.to_str().unwrap(),
        &format!("`{} -n 2 ", installed.mpiexec.display()),
    ] {
        assert!(text.contains(part), "no `{part}` in: {text}");
    }
}

#[test]
fn a_wrong_number_of_processes_is_rejected() {
    let mut command = job("alone", 2);
    command.env(COUNT, "3");
    let text = text(&output(command));
    assert!(text.contains("MPI has 2 processes but the job has 3"), "{text}");
}

#[test]
fn other_libraries_are_rejected() {
    let cpu = common::plugin(fullshard_pjrt::plugins::Platform::Cpu).path().to_owned();
    for (library, expected) in [
        (
            "/no/such/libmpi_abi.so.1".into(),
            "the MPI library named by FULLSHARD_MPI_LIBRARY is not a file",
        ),
        (std::env::current_exe().unwrap(), "is not an MPI library"),
        (cpu, "it has no function MPI_"),
    ] {
        let mut command = single("alone", 1);
        command.env("FULLSHARD_MPI_LIBRARY", &library);
        let text = text(&output(command));
        assert!(text.contains(expected), "{text}");
    }
}
