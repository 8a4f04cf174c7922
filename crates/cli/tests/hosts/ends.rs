//! Signals, deaths and strangers: the processes of a job stop at the same step, and end together.

use super::common::Folder;
use super::{
    assert_same, ends, flags, launch, mpiexec, process, process_of, signal, start, stderr,
};
use fullshard_checkpoint::list;
use rustix::process::{Signal, test_kill_process};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// A run that is stopped long before its end, and saves when it is told to.
const ENDLESS: [&str; 4] = ["--max_steps", "100000", "--save_steps", "100000"];

fn checkpoints(folder: &Folder) -> Vec<u64> {
    let mut steps: Vec<u64> =
        list(&folder.path("out")).unwrap().iter().map(|listed| listed.step).collect();
    steps.sort_unstable();
    steps
}

/// The step that a stopped run has saved. It resumes from there by one process, and ends as a run
/// of one process that was not interrupted.
fn resumes(folder: &Folder) {
    let step = folder.json("out/trainer_state.json")["global_step"].as_u64().unwrap();
    assert_eq!(checkpoints(folder).last(), Some(&step));
    let steps = &*(step + 3).to_string().leak();
    let rest = ["--max_steps", steps, "--save_steps", "100000"];
    let args = flags(&[&rest[..], &["--resume_from_checkpoint", "auto"]].concat());
    let printed = ends(process(folder, &args), 0);
    assert!(printed.contains(&format!("resumed from out/checkpoint-{step}")), "{printed}");
    ends(process(folder, &flags(&[&rest[..], &["--output_dir", "expected"]].concat())), 0);
    assert_same(folder, "out", "expected");
}

#[test]
fn a_signal_to_one_process_is_for_all() {
    let folder = Folder::new();
    let mut run = start(&folder, mpiexec(&folder, "2", &flags(&ENDLESS)));
    signal(&folder, 1, Signal::USR1);
    assert!(run.prints("checkpoint of"), "{}", run.printed);
    assert!(run.prints("  loss "), "{}", run.printed);
    assert_eq!(checkpoints(&folder).len(), 1);
    signal(&folder, 1, Signal::TERM);
    let (status, printed) = run.end();
    assert_eq!(status.code(), Some(143), "{printed}{}", stderr(&folder));
    assert_eq!(
        printed.matches("stopped by a signal to another process after step ").count(),
        1,
        "{printed}"
    );
    assert_eq!(checkpoints(&folder).len(), 2, "{printed}");
    resumes(&folder);
}

#[test]
fn a_signal_to_the_launcher_is_for_all() {
    for launcher in [launch, mpiexec] {
        let folder = Folder::new();
        let mut run = start(&folder, launcher(&folder, "2", &flags(&ENDLESS)));
        run.signal("-USR1");
        assert!(run.prints("checkpoint of"), "{}", run.printed);
        run.signal("-TERM");
        let (status, printed) = run.end();
        assert_eq!(status.code(), Some(143), "{printed}{}", stderr(&folder));
        assert!(printed.contains("stopped by SIGTERM after step "), "{printed}");
        assert_eq!(checkpoints(&folder).len(), 2, "{printed}");
        resumes(&folder);
    }
}

#[test]
fn a_killed_launcher_takes_its_processes_along() {
    let folder = Folder::new();
    let run = start(&folder, launch(&folder, "2", &flags(&ENDLESS)));
    let processes = [0, 1].map(|number| process_of(&folder, number));
    run.signal("-KILL");
    run.end();
    let killed = Instant::now();
    while processes.iter().any(|process| test_kill_process(*process).is_ok()) {
        assert!(killed.elapsed() < Duration::from_secs(10), "processes are left");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_killed_process_ends_the_job() {
    for number in [0, 1] {
        let folder = Folder::new();
        let run = start(&folder, mpiexec(&folder, "2", &flags(&ENDLESS)));
        let killed = Instant::now();
        signal(&folder, number, Signal::KILL);
        let (status, printed) = run.end();
        assert!(!status.success(), "{printed}");
        let time = killed.elapsed();
        assert!(time < Duration::from_secs(10), "{time:?}: {printed}{}", stderr(&folder));
        assert!(checkpoints(&folder).is_empty());
    }
}

/// Whoever does not know the secret is ignored.
#[test]
fn strangers_do_not_disturb_a_job() {
    let folder = Folder::new();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut command = mpiexec(&folder, "2", &flags(&ENDLESS));
    command.env("FULLSHARD_COORDINATOR", address.to_string());
    let mut run = start(&folder, command);

    fs::write(folder.path("wrong"), "another secret than theirs").unwrap();
    let place = ["--num_processes", "2", "--process_id", "1", "--secret_file", "wrong"];
    let address = address.to_string();
    let stranger = [&["rendezvous", "--coordinator", &address][..], &place].concat();
    let printed = ends(process(&folder, &stranger), 1);
    assert!(printed.contains("has another secret"), "{printed}");

    let mut garbage = TcpStream::connect(&address).unwrap();
    garbage.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let _ = garbage.write_all(&[0xA5; 100_000]);
    let _ = garbage.read_to_end(&mut Vec::new());

    assert!(run.prints("  loss "), "{}", run.printed);
    signal(&folder, 0, Signal::TERM);
    let (status, printed) = run.end();
    assert_eq!(status.code(), Some(143), "{printed}{}", stderr(&folder));
}

/// Collectives between processes that take for ever: each process leaves its stacks.
#[test]
fn a_job_that_hangs_ends_with_the_stacks_of_all_processes() {
    let folder = Folder::new();
    let flags = flags(&[&ENDLESS[..], &["--step_timeout_s", "2"]].concat());
    let mut command = mpiexec(&folder, "2", &flags);
    command.env("FULLSHARD_MPI_DELAY_MS", "3600000");
    let output = command.output().unwrap();
    let printed = super::all_text(&output);
    assert!(!output.status.success(), "{printed}");
    assert_eq!(printed.matches("error: ").count(), 1, "{printed}");
    assert!(printed.contains("the run is stuck at step 1"), "{printed}");
    for process in ["0", "1"] {
        let stacks = folder.path("out").join(format!("stacks-{process}.txt"));
        let stacks = fs::read_to_string(stacks).unwrap();
        assert!(stacks.contains("\"watchdog\""), "{stacks}");
    }
    assert!(checkpoints(&folder).is_empty());
}

/// Mistakes are not repeated.
#[test]
fn an_error_that_would_repeat_itself_is_final() {
    let folder = Folder::new();
    let printed = ends(launch(&folder, "2", &flags(&["--learning_rate", "1e30"])), 1);
    assert!(printed.contains("not finite") || printed.contains("error: "), "{printed}");
    assert!(!printed.contains("launch: restart"), "{printed}");
}
