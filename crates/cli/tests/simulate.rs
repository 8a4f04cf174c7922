//! `fullshard simulate`: what it prints, and its errors.
#![allow(clippy::unwrap_used)]

mod common;

use common::{number, text};
use serde_json::Value;
use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fullshard"));
    command.arg("simulate").args(args).output().unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = run(&[args, &["--json"]].concat());
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The error of a command, which prints nothing else.
fn error(args: &[&str]) -> String {
    let output = run(args);
    assert!(!output.status.success() && output.stdout.is_empty(), "{args:?}");
    text(&output.stderr)
}

/// Two hours on four hosts, with a failure every ten minutes.
const DRILL: [&str; 17] = [
    "job",
    "--hosts",
    "4",
    "--step_s",
    "0.5",
    "--steps",
    "14400",
    "--mtbf_s",
    "600",
    "--restart_s",
    "8",
    "--save_every",
    "100",
    "--save_pause_s",
    "0.2",
    "--replays",
    "5",
];

#[test]
fn a_job_has_its_goodput_and_parts() {
    let found = json(&DRILL);
    let (goodput, expected) = (number(&found["goodput"]["mean"]), number(&found["expected"]));
    assert!((goodput / expected - 1.0).abs() < 0.03, "{goodput} and {expected}");
    assert_eq!(number(&found["steps"]), 14400.0);
    let parts = found["parts"].as_object().unwrap();
    let names = ["detection", "fewer_hosts", "load", "redone", "repair", "restart", "saving"];
    let mut keys: Vec<&str> = parts.keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, [&names[..], &["steps", "stragglers"]].concat());
    let total: f64 = parts.values().map(number).sum();
    assert!((total / 86_400.0 / number(&found["days"]["mean"]) - 1.0).abs() < 1e-9);
    // The same seed gives the same figures, with other flags of the same meaning.
    let per_host = (600.0_f64 * 4.0 / 86_400.0).to_string();
    let mut same = DRILL;
    (same[7], same[8]) = ("--host_mtbf_days", &per_host);
    let again = json(&same);
    assert!((number(&again["goodput"]["mean"]) / goodput - 1.0).abs() < 1e-6);
}

#[test]
fn a_drill_fails_when_it_is_told_to() {
    let mut drill = DRILL;
    (drill[7], drill[8]) = ("--fail_at_s", "600,1200.5");
    let found = json(&drill);
    assert_eq!(
        (number(&found["failures"]["least"]), number(&found["failures"]["most"])),
        (2.0, 2.0)
    );
    assert!(number(&found["goodput"]["deviation"]) < 1e-9);
    assert!(found["expected"].is_null());
    let printed = text(&run(&drill).stdout);
    assert!(printed.contains("failures at          600, 1200.5 s"), "{printed}");
}

#[test]
fn presets_are_beside_what_was_published() {
    let found = json(&["job", "--preset", "llama-3", "--replays", "2"]);
    assert_eq!(
        (number(&found["published_goodput"]), found["preset"].as_str()),
        (0.9, Some("llama-3"))
    );
    let slow = json(&["job", "--preset", "llama-3", "--replays", "2", "--restart_s", "1200"]);
    let goodput = |found: &Value| number(&found["goodput"]["mean"]);
    assert!(goodput(&slow) < goodput(&found) - 0.03);
    let printed = text(&run(&["job", "--preset", "gemini", "--replays", "2"]).stdout);
    assert!(printed.contains("\npublished            97 %\n"), "{printed}");
}

#[test]
fn a_job_without_progress_fails_and_says_why() {
    let mut stuck = DRILL;
    (stuck[9], stuck[10]) = ("--restart_s", "60000");
    let output = run(&stuck);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("5 of 5 replays were given up"),
        "{}",
        text(&output.stderr)
    );
    assert!(text(&output.stdout).contains("goodput              0.00 %"));
}

#[test]
fn the_time_of_a_job_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.svg");
    let output = run(&[&DRILL[..], &["--svg", path.to_str().unwrap()]].concat());
    assert!(output.status.success());
    let drawn = std::fs::read_to_string(path).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains("redone steps"));
}

#[test]
fn collectives_are_beside_closed_forms() {
    let found =
        json(&["collectives", "--torus", "16x4", "--wrap", "false,true", "--bytes", "64MB"]);
    let rows = found[0]["collectives"].as_array().unwrap();
    assert!(rows.len() >= 24);
    for row in rows {
        let most = if row["contended"] == true { 0.1 } else { 0.03 };
        assert!(number(&row["error"]).abs() < most, "{row}");
    }
    let slice = json(&["collectives", "--topology", "v5e-256", "--collective", "all-reduce"]);
    assert_eq!(slice[0]["torus"], serde_json::json!([16, 16]));
    assert!(
        slice[0]["collectives"]
            .as_array()
            .unwrap()
            .iter()
            .all(|row| row["collective"] == "all-reduce")
    );
}

#[test]
fn start_up_grows_with_hosts() {
    let found = json(&["start-up", "--max_hosts", "1000"]);
    let rows = found.as_array().unwrap();
    let hosts: Vec<f64> = rows.iter().map(|row| number(&row["hosts"])).collect();
    assert_eq!((hosts.len(), hosts[9], hosts[10]), (11, 512.0, 1000.0));
    assert!(rows.iter().all(|row| number(&row["error"]).abs() < 1e-6));
}

#[test]
fn mistakes_name_the_flag() {
    for (args, reason) in [
        (&["job", "--hosts", "4", "--step_s", "1"][..], "--steps"),
        (&["job", "--hosts", "0", "--step_s", "1", "--steps", "9"], "--hosts is 0"),
        (&["job", "--preset", "opt"], "must be one of llama-3, gemini, gemini-checkpoints"),
        (&["job", "--preset", "llama-3", "--min_hosts", "9999"], "--min_hosts is 9999"),
        (
            &["job", "--hosts", "4", "--step_s", "1", "--steps", "9", "--save_pause_s", "1"],
            "--save_pause_s and --save_write_s need --save_every N",
        ),
        (&["job", "--preset", "gemini", "--svg", "no/such.svg"], "--svg is no/such.svg"),
        (&["collectives", "--torus", "8by8"], "must be such as 16x16"),
        (&["collectives", "--torus", "8x8", "--wrap", "true"], "--wrap has 1 values"),
        (&["collectives", "--topology", "h100:8"], "--topology must be a TPU slice"),
        (&["start-up", "--max_hosts", "0"], "--max_hosts"),
        (&["start-up", "--state_gb", "nan"], "--state_gb is NaN"),
    ] {
        let message = error(args);
        assert!(message.contains(reason), "{args:?}: {message}");
    }
}
