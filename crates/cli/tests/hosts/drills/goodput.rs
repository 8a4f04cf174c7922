//! The goodput of a run with failures, measured and simulated:
//!
//!     cargo test -p fullshard-cli --test hosts -- --ignored --nocapture long_goodput
//!
//! The simulator is given the step time of a run without failures, what a restart, a load and a save
//! take, and when the failures were. How many steps are lost, and what that makes of the whole, is
//! its own result.

use super::{Ended, Kind, PLAIN, drill, process, undisturbed};
use crate::common::{Folder, number};
use fullshard::goodput::{Goodput, Part, of};
use serde_json::Value;

const FAILURES: u64 = 10;

/// Collectives are slowed, so that steps are long enough to be counted.
const KILLED: Kind = Kind {
    name: "SIGKILL of one process",
    variables: &[("FULLSHARD_MPI_DELAY_MS", "20")],
    ..PLAIN
};

#[test]
#[ignore = "long: ten failures"]
fn long_goodput_is_as_simulated() {
    let expected = undisturbed(&KILLED, FAILURES);
    let Ended { folder, outcome, times } = drill(&KILLED, FAILURES);
    outcome.assert_is(&expected.outcome);
    let found = goodput(&folder);
    let command = simulation(&goodput(&expected.folder), &found, times.detection());
    let simulated = simulate(&folder, &command);
    println!(
        "{:.1} % of {:.1} s with {} failures, {} steps lost; simulated {:.1} %: fullshard {}",
        100.0 * found.share(),
        found.wall_s,
        found.failures.len(),
        found.steps_lost,
        100.0 * simulated,
        command.join(" ")
    );
}

fn goodput(folder: &Folder) -> Goodput {
    of(folder.path("out")).unwrap().unwrap()
}

/// The command that simulates a run with failures.
fn simulation(undisturbed: &Goodput, found: &Goodput, detection: f64) -> Vec<String> {
    let steps = undisturbed.steps.unwrap();
    let step = undisturbed.seconds(Part::Useful) / steps as f64;
    let starts = found.seconds(Part::Restart) + found.seconds(Part::StartUp);
    let loads = found.generations.len() as f64;
    let fail_at: Vec<String> = found.failures.iter().map(|at| format!("{at:.1}")).collect();
    let figures = [
        ("--hosts", "2".to_owned()),
        ("--step_s", format!("{step:.4}")),
        ("--steps", steps.to_string()),
        ("--detection_s", format!("{detection:.3}")),
        ("--restart_s", format!("{:.3}", starts / loads)),
        ("--load_s", format!("{:.3}", found.seconds(Part::Load) / loads)),
        ("--save_every", "5".to_owned()),
        ("--save_pause_s", format!("{:.4}", found.pause_s.unwrap())),
        ("--save_write_s", format!("{:.4}", found.write_s.unwrap())),
        ("--fail_at_s", fail_at.join(",")),
        ("--replays", "1".to_owned()),
    ];
    let flags = figures.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]);
    ["simulate", "job"].map(str::to_owned).into_iter().chain(flags).collect()
}

fn simulate(folder: &Folder, command: &[String]) -> f64 {
    let args: Vec<&str> = command.iter().map(String::as_str).chain(["--json"]).collect();
    let output = process(folder, &args).output().unwrap();
    let simulated: Value = serde_json::from_slice(&output.stdout).unwrap();
    number(&simulated["goodput"]["mean"])
}
