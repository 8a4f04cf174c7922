//! The quick model against the compiled one, and the consistency of quick plans.
//!
//!     cargo test -p fullshard-plan --test quick -- --nocapture
//!
//! `data/compiled.json` is recorded by `examples/record.rs`.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Case, Shape};
use fullshard_parallel::{Remat, Strategy};
use fullshard_plan::{Basis, Error, Machine, Report, quick};
use fullshard_step::Chip;
use serde_json::Value;

/// The largest allowed error of memory and time in any row.
const MEMORY: f64 = 0.15;
const TIME: f64 = 0.20;

fn plan(case: &Case) -> Report {
    quick(&case.spec(), &case.machine()).unwrap()
}

/// Prints a row for each recorded case, and returns the errors of memory and time.
fn compare(what: &str, cases: &[Case]) -> Vec<(f64, f64)> {
    let recording: Value = serde_json::from_str(include_str!("data/compiled.json")).unwrap();
    let mut errors = Vec::new();
    println!("{what}\n  memory GB, compiled, error; step ms, compiled, error");
    for case in cases {
        let row = &recording[case.name()];
        let (Some(memory), Some(step)) = (row["memory"].as_f64(), row["step"].as_f64()) else {
            continue;
        };
        let report = plan(case);
        let planned = report.memory.total as f64;
        let error = (planned / memory - 1.0, report.time.step / step - 1.0);
        println!(
            "  {:6.2} {:6.2} {:+6.1} %  {:8.1} {:8.1} {:+6.1} %  {}",
            planned / 1e9,
            memory / 1e9,
            100.0 * error.0,
            1e3 * report.time.step,
            1e3 * step,
            100.0 * error.1,
            case.name()
        );
        errors.push(error);
    }
    let count = errors.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| errors.iter().map(|e| of(e).abs()).sum::<f64>() / count;
    let (memory, time) = (mean(|error| error.0), mean(|error| error.1));
    println!("  mean error: memory {:.1} %, time {:.1} %", 100.0 * memory, 100.0 * time);
    errors
}

#[test]
fn matches_compiled_plans() {
    let errors = [
        compare("fitted on", &common::fitted()),
        compare("on GPUs", &common::on_gpus()),
        compare("held out", &common::held_out()),
    ];
    compare("known to be inaccurate, not checked", &common::inaccurate());
    let errors = errors.concat();
    assert!(errors.len() >= 20, "{} rows are recorded", errors.len());
    let worst = |of: fn(&(f64, f64)) -> f64| errors.iter().map(|e| of(e).abs()).fold(0.0, f64::max);
    assert!(worst(|error| error.0) <= MEMORY);
    assert!(worst(|error| error.1) <= TIME);
}

#[test]
fn every_chip_has_a_plan() {
    for chip in Chip::ALL {
        let machine = match chip.short {
            tpu @ ("v2" | "v3" | "v4" | "v5p") => format!("{tpu}-8"),
            tpu @ ("v5e" | "v6e") => format!("{tpu}-4"),
            other => format!("{other}:2"),
        };
        let case = Case::new(machine.leak(), Shape::Gpt2(4, 512, 8), 2);
        let report = plan(&case);
        assert_eq!(report.basis, Basis::Quick);
        assert!(report.time.step > 0.0 && report.time.step.is_finite(), "{}", case.machine);
        assert_eq!(report.rates.mfu.is_some(), chip.bf16.is_some());
        assert!(report.rates.mfu.is_none_or(|share| share < 1.0));
    }
}

#[test]
fn parts_add_up() {
    let report = plan(&Case::new("v4-8", Shape::Gpt2(4, 1024, 8), 8));
    let parts: u64 = report.memory.parts.iter().map(|part| part.bytes).sum();
    assert_eq!(parts, report.memory.total);
    let time = &report.time;
    let compute: f64 = time.modules.iter().map(|module| module.compute).sum();
    let exposed: f64 = time.modules.iter().map(|module| module.exposed).sum();
    assert!((compute - time.compute).abs() < 1e-9 && (exposed - time.exposed).abs() < 1e-9);
    assert!((time.compute + time.exposed - time.step).abs() < 1e-9);
    let communication: f64 = report.collectives.iter().map(|row| row.seconds).sum();
    assert!((communication - time.exposed - time.hidden).abs() < 1e-9);
}

/// Saved activations take memory, recomputed ones take time.
#[test]
fn remat_trades_memory_for_time() {
    let of = |remat, scan| {
        plan(&Case { remat, scan, ..Case::new("v4-8", Shape::Gpt2(24, 1024, 16), 8) })
    };
    let [none, dots, full] = [Remat::None, Remat::Dots, Remat::Full].map(|remat| of(remat, false));
    assert!(none.memory.total > dots.memory.total && dots.memory.total > full.memory.total);
    assert!(none.time.step < dots.time.step && dots.time.step < full.time.step);
    // Without remat a scan stacks what has a name, where attention is blockwise.
    let [none, dots, full] = [Remat::None, Remat::Dots, Remat::Full].map(|remat| of(remat, true));
    assert!(none.memory.total == dots.memory.total && dots.memory.total > full.memory.total);
    assert!(none.time.step < dots.time.step && dots.time.step < full.time.step);
    // Policies between dots and full, by the matmuls that they recompute.
    let [minimal, qkv] = [Remat::Minimal, Remat::SaveQkv].map(|remat| of(remat, true));
    assert!(dots.memory.total > minimal.memory.total && minimal.memory.total > qkv.memory.total);
    assert!(dots.time.step < minimal.time.step && minimal.time.step < qkv.time.step);
    assert!(qkv.memory.total > full.memory.total && qkv.time.step < full.time.step);
}

/// Moving activations takes the time of PCIe where that is longer than computing.
#[test]
fn offloading_trades_memory_for_host_memory() {
    let of =
        |machine, remat| plan(&Case { remat, ..Case::new(machine, Shape::Gpt2(24, 1024, 16), 8) });
    for machine in ["v3-8", "v4-8", "h200"] {
        let minimal = of(machine, Remat::Minimal);
        let offloaded = of(machine, Remat::MinimalOffload);
        assert!(offloaded.memory.total < minimal.memory.total);
        assert_eq!((minimal.memory.host > 0, offloaded.memory.host > 0), (false, true));
        let is_known = !offloaded.notes.iter().any(|note| note.contains("host memory"));
        assert_eq!(is_known, machine != "v3-8", "{:?}", offloaded.notes);
    }
    for (machine, rate) in [("v4-8", 16e9), ("h200", 64e9)] {
        let offloaded = of(machine, Remat::MinimalOffload);
        let moving = 2.0 * offloaded.memory.host as f64 / rate;
        assert!(offloaded.time.step > moving, "{} s, {moving} s", offloaded.time.step);
    }
}

#[test]
fn activations_in_host_memory_have_a_limit() {
    let of = |batch| {
        let remat = Remat::MinimalOffload;
        plan(&Case { remat, ..Case::new("v4-8", Shape::Gpt2(24, 1024, 16), batch) })
    };
    let (small, large) = (of(16), of(240));
    assert!(small.memory.fits() && small.memory.host > 0, "{:?}", small.memory);
    assert!(large.memory.total <= large.memory.limit, "{:?}", large.memory);
    assert!(!large.memory.fits() && !large.memory.fits_host(), "{:?}", large.memory);
    let is_stated = |report: &Report| {
        report.warnings.iter().any(|warning| warning.what.contains("of host memory per device"))
    };
    assert!(is_stated(&large) && !is_stated(&small));
}

#[test]
fn collectives_follow_devices_and_strategy() {
    let of = |machine| plan(&Case::new(machine, Shape::Gpt2(4, 1024, 8), 8));
    assert!(of("h200").collectives.is_empty());
    assert!(of("h200:8").collectives.iter().all(|row| row.group == 8));
    let replicated =
        Case { strategy: Strategy::NoShard, ..Case::new("v4-8", Shape::Gpt2(4, 1024, 8), 8) };
    assert!(plan(&replicated).collectives.iter().all(|row| row.kind == "all-reduce"));
}

#[test]
fn warns_about_memory_and_communication() {
    let large = plan(&Case::new("v5e-4", Shape::Gpt2(18, 3072, 24), 256));
    assert!(!large.memory.fits());
    assert!(large.warnings.iter().any(|warning| warning.what.contains("GiB")));
    // One short sequence on each of 256 chips is limited by the network.
    let small = plan(&Case::new("v4-512", Shape::Gpt2(8, 4096, 32), 1));
    assert!(small.warnings.iter().any(|warning| warning.what.contains("network")));
    let good = plan(&Case::new("v4-8", Shape::Gpt2(18, 3072, 24), 16));
    assert!(good.warnings.is_empty(), "{:?}", good.warnings);
}

#[test]
fn rejects_another_number_of_devices() {
    let case = Case::new("v4-8", Shape::Gpt2(4, 512, 8), 2);
    let error = quick(&case.spec(), &Machine::parse("v4-16").unwrap()).unwrap_err();
    assert!(matches!(error, Error::Devices { spec: 4, devices: 8, .. }), "{error}");
}
