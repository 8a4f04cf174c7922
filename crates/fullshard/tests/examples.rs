//! The examples run, and print what they should.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::process::Command;

/// Runs an example, which cargo builds with the tests, with its own caches and output.
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
fn own_model_plans_and_trains() {
    let stdout = run("own_model", &[]);
    let planned = stdout.split("on v4-8: ").nth(1).unwrap().split(' ').next().unwrap();
    assert!(planned.parse::<f64>().unwrap() > 0.0, "{stdout}");
    let loss = stdout.split("loss: ").nth(1).unwrap().split(',').next().unwrap();
    // A unigram model would have 4.12.
    assert!(loss.parse::<f64>().unwrap() < 3.5, "{stdout}");
}

#[test]
fn fine_tuning_starts_from_a_checkpoint() {
    let stdout = run("fine_tune", &[]);
    let losses: Vec<f64> = stdout
        .lines()
        .filter_map(|line| line.strip_prefix("step ")?.split("loss ").nth(1)?.parse().ok())
        .collect();
    assert_eq!(losses.len(), 4, "{stdout}");
    // It starts from the demo's 40 steps, not from scratch.
    assert!(losses[0] < 3.6, "{stdout}");
}

#[test]
fn plan_table_has_all_machines() {
    let stdout = run("plan_table", &[]);
    assert_eq!(stdout.lines().count(), 7, "{stdout}");
    assert!(!stdout.contains("NaN"), "{stdout}");
    assert!(stdout.lines().last().unwrap().starts_with("h200:8"), "{stdout}");
}
