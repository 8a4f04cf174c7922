//! Steps compiled for several nodes and slices: which devices their collectives are between.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Case, Shape};
use fullshard_pjrt::plugins::{Store, find_compiler};
use fullshard_pjrt::{CompileOptions, Plugin};
use fullshard_plan::{AheadCompiler, Budget, Report, compiled};

/// The compiled plan of a small step on eight devices of two islands.
fn plan(machine: &'static str) -> Report {
    let case = Case { tokens: 64, ..Case::new(machine, Shape::Gpt2(2, 256, 4), 2) };
    let (spec, machine) = (case.spec(), case.machine());
    let store = Store::default_location().unwrap();
    let plugin = match find_compiler(machine.kind, None, &store) {
        Ok(located) => located.path,
        Err(_) => store.install_compiler(machine.kind, None).unwrap().path,
    };
    let plugin = Plugin::load(&plugin).unwrap();
    let options = CompileOptions::new(machine.devices);
    let compiler = AheadCompiler { plugin, options, folder: None };
    let text = spec.step_program().unwrap().to_text();
    let step = compiler.compile(&text, &machine).unwrap();
    compiled(&spec, &machine, &step, Budget::default()).unwrap()
}

/// Group, islands and axis of each collective.
fn groups(report: &Report) -> Vec<(usize, usize, &str)> {
    report.collectives.iter().map(|row| (row.group, row.islands, row.axis.as_str())).collect()
}

#[test]
fn collectives_of_several_nodes_span_them() {
    let report = plan("h100:4x2");
    let groups = groups(&report);
    assert!(!groups.is_empty() && groups.iter().all(|row| *row == (8, 2, "fsdp")), "{groups:?}");
    assert!(report.time.exposed + report.time.hidden > 0.0);
}

/// Libtpu splits each collective into one inside slices and a transfer between them, which
/// overlaps with compute.
#[test]
fn collectives_of_several_slices_are_split() {
    let report = plan("2xv4-8");
    let groups = groups(&report);
    let (inside, between) = ((4, 1, "part of fsdp"), (2, 2, "part of fsdp"));
    assert!(groups.contains(&inside) && groups.contains(&between), "{groups:?}");
    assert!(groups.iter().all(|group| [inside, between].contains(group)), "{groups:?}");
    assert!(report.time.hidden > 0.0);
}
