//! Benchmarks the training step of a small GPT-2 on two virtual CPU devices against peers.
//!
//! `FULLSHARD_BENCH_PEERS` has commands, one per line, that train the same model (6 layers, width
//! 384, vocabulary 50257, 8 sequences of 256 tokens, AdamW) and print lines with `step SECONDS`.
//! Runs alternate for `FULLSHARD_BENCH_ROUNDS` rounds (3), so that machine noise affects all
//! equally; the best round of each counts.

use std::collections::BTreeMap;
use std::process::Command;

fn main() {
    let peers = std::env::var("FULLSHARD_BENCH_PEERS").unwrap_or_default();
    let rounds = std::env::var("FULLSHARD_BENCH_ROUNDS").ok().and_then(|text| text.parse().ok());
    let mut best: BTreeMap<String, f64> = BTreeMap::new();
    for round in 1..=rounds.unwrap_or(3) {
        for dtype in ["float32", "bfloat16"] {
            let (name, seconds) = (format!("fullshard, 2 devices, {dtype}"), ours(dtype));
            println!("round {round}: {name}: {seconds:.3} s");
            keep_best(&mut best, name, seconds);
        }
        for peer in peers.lines().map(str::trim).filter(|peer| !peer.is_empty()) {
            for (name, seconds) in steps_of(peer) {
                println!("round {round}: {name}: {seconds:.3} s");
                keep_best(&mut best, name, seconds);
            }
        }
    }
    println!("\nbest of all rounds, seconds per step");
    for (name, seconds) in best {
        println!("{seconds:>8.3}  {name}");
    }
}

fn keep_best(best: &mut BTreeMap<String, f64>, name: String, seconds: f64) {
    let entry = best.entry(name).or_insert(f64::INFINITY);
    *entry = entry.min(seconds);
}

/// The median step time of `fullshard bench step`.
fn ours(dtype: &str) -> f64 {
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/configs/gpt2_30m.json");
    let output = Command::new(env!("CARGO_BIN_EXE_fullshard"))
        .args(["bench", "step", "--config", config, "--num_cores", "2", "--batch", "8"])
        .args(["--seq", "256", "--optim", "adamw", "--remat", "none", "--dtype", dtype])
        .args(["--device", "cpu", "--steps", "5", "--json"])
        .output();
    let output = output.unwrap_or_else(|error| panic!("fullshard did not start: {error}"));
    let text = String::from_utf8_lossy(&output.stdout);
    let report: serde_json::Value = serde_json::from_str(&text)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    report["time"]["spread"]["median"].as_f64().unwrap_or(f64::NAN)
}

/// The step times that a peer prints, named by the end of its command and their index.
fn steps_of(command: &str) -> Vec<(String, f64)> {
    let output = Command::new("sh").args(["-c", command]).output();
    let output = output.unwrap_or_else(|error| panic!("`{command}` did not start: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let peer = command.rsplit('/').next().unwrap_or(command);
    let seconds = |line: &str| line.split_once("step ")?.1.split_whitespace().next()?.parse().ok();
    let seconds = text.lines().filter_map(seconds).enumerate();
    let steps: Vec<_> = seconds.map(|(i, s): (usize, f64)| (format!("{peer} #{i}"), s)).collect();
    if steps.is_empty() {
        println!("`{command}` printed no step time: {}", String::from_utf8_lossy(&output.stderr));
    }
    steps
}
