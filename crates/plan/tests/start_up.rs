//! The start of jobs in plans: how it follows from the machine and the sharding.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Case, Shape};
use fullshard_parallel::Strategy;
use fullshard_plan::{Machine, StartUp, quick};

const SMALL: Shape = Shape::Gpt2(2, 256, 4);

fn start_up(machine: &'static str, strategy: Strategy) -> StartUp {
    let case = Case { tokens: 64, strategy, optimizer: "adamw", ..Case::new(machine, SMALL, 1) };
    quick(&case.spec(), &case.machine()).unwrap().start_up
}

#[test]
fn machines_have_hosts() {
    for (name, hosts) in [
        ("h100:8", 1),
        ("h100:8x16", 16),
        ("v4-8", 1),
        ("v4-512", 64),
        ("2xv4-128", 32),
        ("v5e-8", 1),
        ("v5e-16", 4),
        ("cpu:4", 1),
    ] {
        assert_eq!(Machine::parse(name).unwrap().hosts, hosts, "{name}");
    }
}

#[test]
fn a_job_on_more_nodes_takes_longer_to_meet() {
    let [one, two, eight] =
        ["h100:4", "h100:4x2", "h100:4x8"].map(|name| start_up(name, Strategy::FullShard));
    assert_eq!((one.hosts, one.rendezvous, one.programs), (1, 0.0, 0.0));
    assert_eq!((eight.hosts, eight.processes), (8, 8));
    assert!((eight.rendezvous / two.rendezvous - 4.0).abs() < 1e-9);
    assert!((eight.programs / two.programs - 4.0).abs() < 1e-9);
    assert_eq!(eight.per_host, two.per_host);
}

/// Sharded over all hosts, each reads its part; replicated, each reads all.
#[test]
fn hosts_read_their_shares() {
    let read = |name, strategy| start_up(name, strategy).weights;
    let all = read("h100:4", Strategy::NoShard);
    // Padding and the optimizer's few replicated values count more than once.
    let close = |a: f64, b: f64| (a / b - 1.0).abs() < 0.02;
    assert!(close(read("h100:4", Strategy::FullShard), all));
    assert!(close(read("h100:4x2", Strategy::FullShard), all / 2.0));
    assert!(close(read("h100:4x8", Strategy::FullShard), all / 8.0));
    assert!(close(read("h100:4x8", Strategy::NoShard), all));
}

#[test]
fn keys_are_those_of_the_docs() {
    let json = serde_json::to_value(start_up("h100:4x2", Strategy::FullShard)).unwrap();
    let keys: Vec<&String> = json.as_object().unwrap().keys().collect();
    let mut named = [
        "hosts",
        "processes",
        "rendezvous",
        "compile",
        "programs",
        "program_bytes",
        "typical_program",
        "weights",
        "per_host",
    ];
    named.sort_unstable();
    let mut keys: Vec<&str> = keys.into_iter().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, named);
    assert!(json["compile"].is_null() && json["typical_program"] == true);
}
