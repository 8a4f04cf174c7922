//! SIGKILL at any moment: the resumed run ends as if nothing had happened.

use super::common::Folder;
use super::goodput;
use super::{AUTO, LONG, Outcome, UNINTERRUPTED, drill, finish, folder, intact, start};
use fullshard_checkpoint::sweep;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, SystemTime};

/// Starts or resumes the long run and kills it after a line of its output.
fn kill_after(folder: &Folder, part: &str, delay: Duration) -> String {
    let mut run = start(folder, &drill(&[&LONG[..], &AUTO].concat()));
    run.prints(part);
    std::thread::sleep(delay);
    run.signal("-9");
    let (status, printed) = run.end();
    assert!(status.signal() == Some(9) || status.success(), "{status} {printed}");
    printed
}

fn resumed_to_the_end(folder: &Folder) {
    let printed = finish(folder, &drill(&[&LONG[..], &AUTO].concat()));
    assert!(printed.contains("resumed from out/checkpoint-"), "{printed}");
    Outcome::of(folder, "out").assert_is(&UNINTERRUPTED);
    assert_eq!(intact(&folder.path("out")), [148, 150]);
}

#[test]
fn a_run_that_is_killed_ends_as_one_that_is_not() {
    let folder = folder();
    for part in ["step 4/150  checkpoint", "step 50/150", "step 110/150"] {
        let printed = kill_after(&folder, part, Duration::ZERO);
        assert!(printed.contains(part), "{printed}");
    }
    resumed_to_the_end(&folder);
    goodput::accounts_for_kills(&folder, 3);

    // All processes wrote their logs into the folder of the first.
    let runs: Vec<_> = fs::read_dir(folder.path("out/runs")).unwrap().map(Result::unwrap).collect();
    assert_eq!(runs.len(), 1);
    assert_eq!(fs::read_dir(runs[0].path()).unwrap().count(), 4);
    let names: BTreeSet<_> = fs::read_dir(folder.path("out"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with('.'))
        .collect();
    assert!(names.is_empty(), "{names:?}");
}

/// Random moments after random lines, with a seed that is printed and can be set.
#[test]
#[ignore = "long: many starts"]
fn long_a_run_survives_thirty_kills() {
    let now =
        || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = std::env::var("FULLSHARD_TEST_SEED").map_or_else(|_| now(), |s| s.parse().unwrap());
    println!("FULLSHARD_TEST_SEED={seed}");
    let mut state = seed;
    let mut random = |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let folder = folder();
    for kill in 0..30 {
        let part = match random(4) {
            0 => "compiling",
            1 => "training for",
            2 => "checkpoint of",
            _ => "  loss ",
        };
        kill_after(&folder, part, Duration::from_micros(random(60_000)));
        let left = sweep(&folder.path("out")).unwrap();
        let steps = intact(&folder.path("out"));
        println!("kill {kill} after `{part}`: {left} unfinished, checkpoints {steps:?}");
        assert!(steps.len() <= 3, "{steps:?}");
    }
    resumed_to_the_end(&folder);
}
