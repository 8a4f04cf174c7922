//! Failures of a supervised job: it goes on by itself, and ends as one that nothing happened to.

use super::common::{Folder, Running};
use super::{assert_same, ends, flags, launch, process, process_of, signal, stderr};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// A run of some length that saves every few steps.
const STEPS: [&str; 6] = ["--max_steps", "120", "--save_steps", "10", "--save_total_limit", "2"];

/// A folder with a run that nothing happened to in `expected`.
fn folder() -> Folder {
    let folder = Folder::new();
    fs::create_dir(folder.path("memory")).unwrap();
    let args = [&STEPS[..], &["--output_dir", "expected"]].concat();
    ends(process(&folder, &flags(&args)), 0);
    folder
}

/// A supervised run.
fn supervised(folder: &Folder, more: &[&'static str]) -> Running {
    Running::start(folder, launch(folder, "2", &flags(&[&STEPS[..], more].concat())))
}

/// Waits until a run has done a step.
fn reaches(run: &mut Running, folder: &Folder, step: u64) {
    let text = format!("step {step}/120  epoch");
    assert!(run.prints(&text), "{}{}", run.printed, stderr(folder));
}

/// Checks that a run ended well, after some restarts, as the one in `expected`.
fn ends_as_expected(folder: &Folder, run: Running, restarts: usize) -> String {
    let (status, printed) = run.end();
    let errors = stderr(folder);
    assert!(status.success(), "{printed}{errors}");
    assert_eq!(errors.matches("launch: restart ").count(), restarts, "{printed}{errors}");
    assert_same(folder, "out", "expected");
    printed
}

/// One after another, and both at once.
#[test]
fn killed_processes_are_replaced() {
    let folder = folder();
    let mut run = supervised(&folder, &[]);
    for (step, killed) in [(25, &[1][..]), (50, &[0]), (75, &[0, 1])] {
        reaches(&mut run, &folder, step);
        let processes: Vec<Pid> = killed.iter().map(|it| process_of(&folder, *it)).collect();
        processes.iter().for_each(|process| kill_process(*process, Signal::KILL).unwrap());
    }
    let printed = ends_as_expected(&folder, run, 3);
    assert!(printed.contains("resumed from out/checkpoint-"), "{printed}");
}

#[test]
fn a_frozen_process_is_replaced() {
    let folder = folder();
    let mut run = supervised(&folder, &[]);
    reaches(&mut run, &folder, 25);
    let stopped = Instant::now();
    signal(&folder, 1, Signal::STOP);
    reaches(&mut run, &folder, 26);
    let away = stopped.elapsed();
    assert!(away < Duration::from_secs(60), "{away:?}");
    ends_as_expected(&folder, run, 1);
    assert!(stderr(&folder).contains("no sign of life for "), "{}", stderr(&folder));
}

/// While it meets the others, while a checkpoint is written, and while it is restarted.
#[test]
fn a_process_is_killed_at_bad_moments() {
    let folder = folder();
    let mut run = supervised(&folder, &[]);
    let killed = until(&folder, || find(&folder, 1));
    kill_process(killed, Signal::KILL).unwrap();
    reaches(&mut run, &folder, 15);
    let unfinished = || {
        let mut entries = fs::read_dir(folder.path("out")).ok()?.flatten();
        entries.find(|entry| entry.file_name().to_string_lossy().starts_with(".unfinished-"))
    };
    until(&folder, unfinished);
    signal(&folder, 1, Signal::KILL);
    until(&folder, || (stderr(&folder).matches("launch: restart ").count() > 1).then_some(()));
    let killed = until(&folder, || find(&folder, 0));
    kill_process(killed, Signal::KILL).unwrap();
    ends_as_expected(&folder, run, 3);
}

/// Nobody restarts the launcher but its user, with the same command.
#[test]
fn a_killed_launcher_is_started_again() {
    let folder = folder();
    for step in [30, 60] {
        let mut run = supervised(&folder, &["--resume_from_checkpoint", "auto"]);
        reaches(&mut run, &folder, step);
        run.signal("-KILL");
        run.end();
        until(&folder, || (find(&folder, 0).is_none() && find(&folder, 1).is_none()).then_some(()));
    }
    ends_as_expected(&folder, supervised(&folder, &["--resume_from_checkpoint", "auto"]), 0);
}

/// The folder of copies of a job.
fn copies(folder: &Folder) -> PathBuf {
    let below = |path: PathBuf| fs::read_dir(path).unwrap().next().unwrap().unwrap().path();
    below(below(folder.path("memory")))
}

/// A host that is lost takes its copies along: another one has them.
#[test]
fn copies_in_memory_survive_a_host() {
    let folder = folder();
    let replicates = ["--save_steps", "1000", "--replicate_state", "5"];
    let place = ["--replicate_dir", "memory"];
    let mut run = supervised(&folder, &[&replicates[..], &place].concat());
    for (step, killed) in [(33, 1), (66, 0)] {
        reaches(&mut run, &folder, step);
        signal(&folder, killed, Signal::KILL);
        fs::remove_dir_all(copies(&folder).join(format!("process-{killed}"))).unwrap();
    }
    let printed = ends_as_expected(&folder, run, 2);
    assert_eq!(printed.matches("/resumed, after step ").count(), 2, "{printed}");
    assert!(!printed.contains("resumed from out/"), "{printed}");
    let left = fs::read_dir(copies(&folder)).unwrap().count();
    assert_eq!(left, 0, "copies are freed at the end");
}

/// Mistakes are not repeated.
#[test]
fn an_error_that_would_repeat_itself_is_final() {
    let folder = Folder::new();
    let printed = ends(launch(&folder, "2", &flags(&["--learning_rate", "1e30"])), 1);
    assert!(printed.contains("not finite") || printed.contains("error: "), "{printed}");
    assert!(!printed.contains("launch: restart"), "{printed}");
}

/// Thirty failures of a kind in one run, at random steps.
fn thirty(kind: &str, disturb: impl Fn(&Folder, u64)) {
    let folder = Folder::new();
    let long = ["--max_steps", "620", "--save_steps", "5", "--save_total_limit", "2"];
    ends(process(&folder, &flags(&[&long[..], &["--output_dir", "expected"]].concat())), 0);
    let mut run = Running::start(&folder, launch(&folder, "2", &flags(&long)));
    let mut random = 7_u64;
    let mut times = Vec::new();
    for failure in 0..30 {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let step = 20 * failure + 6 + (random >> 33) % 13;
        assert!(run.prints(&format!("step {step}/620  epoch")), "{}", stderr(&folder));
        let failed = Instant::now();
        disturb(&folder, random >> 40);
        assert!(run.prints(&format!("step {}/620  epoch", step + 1)), "{}", stderr(&folder));
        times.push(failed.elapsed().as_secs_f64());
    }
    let (status, printed) = run.end();
    let errors = stderr(&folder);
    assert!(status.success(), "{printed}{errors}");
    assert_same(&folder, "out", "expected");
    times.sort_by(f64::total_cmp);
    println!(
        "{kind}: {} restarts; back at the next step in {:.1} to {:.1} s, median {:.1} s",
        errors.matches("launch: restart ").count(),
        times[0],
        times[29],
        times[15]
    );
}

#[test]
#[ignore = "long: thirty failures"]
fn long_thirty_processes_are_killed() {
    thirty("SIGKILL", |folder, random| signal(folder, random as usize % 2, Signal::KILL));
}

#[test]
#[ignore = "long: thirty failures"]
fn long_thirty_processes_are_frozen() {
    thirty("SIGSTOP", |folder, random| signal(folder, random as usize % 2, Signal::STOP));
}

#[test]
#[ignore = "long: thirty failures"]
fn long_thirty_times_both_processes_are_killed() {
    thirty("SIGKILL of both", |folder, _| {
        let both = [process_of(folder, 0), process_of(folder, 1)];
        both.iter().for_each(|process| kill_process(*process, Signal::KILL).unwrap());
    });
}

/// A process of a job in a folder, if it runs.
fn find(folder: &Folder, number: usize) -> Option<Pid> {
    let folder = folder.0.path().canonicalize().unwrap();
    let script = format!(
        "for p in /proc/[0-9]*; do [ \"$(readlink $p/cwd)\" = '{}' ] && \
         tr '\\0' '\\n' 2>/dev/null < $p/environ | grep -qx PMI_RANK={number} && \
         readlink $p/exe | grep -q fullshard && basename $p; done; true",
        folder.display()
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    Pid::from_raw(printed.lines().next()?.parse().ok()?)
}

/// Waits for something.
fn until<T>(folder: &Folder, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(120), "{}", stderr(folder));
        std::thread::sleep(Duration::from_millis(2));
    }
}
