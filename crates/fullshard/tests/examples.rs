//! The examples run, and say what they should.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::process::Command;

/// Runs an example, which cargo builds beside the tests, with caches and output of its own.
fn run(name: &str, arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let tests = std::env::current_exe().unwrap();
    let example: PathBuf = tests.ancestors().nth(2).unwrap().join("examples").join(name);
    let output = Command::new(example)
        .args(arguments)
        .env("TMPDIR", folder.path())
        .env_remove("PJRT_DEVICE")
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{name}: {}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn own_model_is_planned_and_learns() {
    let said = run("own_model", &[]);
    let planned = said.split("on v4-8: ").nth(1).unwrap().split(' ').next().unwrap();
    assert!(planned.parse::<f64>().unwrap() > 0.0, "{said}");
    let loss = said.split("loss: ").nth(1).unwrap().split(',').next().unwrap();
    // A model that only knew how often each word comes would have 4.12.
    assert!(loss.parse::<f64>().unwrap() < 3.5, "{said}");
}

#[test]
fn fine_tuning_goes_on_from_a_folder() {
    let said = run("fine_tune", &[]);
    let losses: Vec<f64> = said
        .lines()
        .filter_map(|line| line.strip_prefix("step ")?.split("loss ").nth(1)?.parse().ok())
        .collect();
    assert_eq!(losses.len(), 4, "{said}");
    // It begins where the demo's forty steps ended, not from scratch.
    assert!(losses[0] < 3.6, "{said}");
}

#[test]
fn plans_make_a_table() {
    let said = run("plan_table", &[]);
    assert_eq!(said.lines().count(), 7, "{said}");
    assert!(!said.contains("NaN"), "{said}");
    assert!(said.lines().last().unwrap().starts_with("h200:8"), "{said}");
}
