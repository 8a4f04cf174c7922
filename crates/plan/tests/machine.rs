//! Parsing of machine names.
#![allow(clippy::unwrap_used)]

use fullshard_pjrt::plugins::Platform;
use fullshard_plan::{Machine, Network, Streams};

#[test]
fn parses_names() {
    for (name, kind, chip, devices) in [
        ("v4-8", Platform::Tpu, "TPU v4", 4),
        ("v4:2x2x1", Platform::Tpu, "TPU v4", 4),
        ("v3-8", Platform::Tpu, "TPU v3 core", 8),
        ("v5p-128", Platform::Tpu, "TPU v5p", 64),
        ("V6e-16", Platform::Tpu, "TPU v6e", 16),
        ("h200", Platform::Cuda, "H200 SXM", 1),
        ("h100:8", Platform::Cuda, "H100 SXM", 8),
        ("a100:4", Platform::Cuda, "A100 80 GB SXM", 4),
        ("b200:2", Platform::Cuda, "B200", 2),
        ("cpu", Platform::Cpu, "CPU core", 1),
        ("cpu:4", Platform::Cpu, "CPU core", 4),
    ] {
        let machine = Machine::parse(name).unwrap();
        assert_eq!(machine.name, name);
        assert_eq!((machine.kind, machine.chip.name, machine.devices), (kind, chip, devices));
    }
}

#[test]
fn slices_have_torus_and_usable_memory() {
    let machine = Machine::parse("v4-512").unwrap();
    let torus = Network::Torus {
        dims: vec![4, 8, 8],
        wrap: vec![true; 3],
        link: 45e9,
        latency: 1e-6,
        streams: Streams::Sequential,
    };
    assert_eq!(machine.network, torus);
    assert_eq!(machine.memory, 33_010_000_000);
}

#[test]
fn rejects_unknown_machines_with_hints() {
    for (name, hint) in [
        ("v9-8", "v2, v3, v4, v5e, v5p, v6e"),
        ("rtx4090", "h200, b200, cpu"),
        ("", "v4-8"),
        ("v4", "v4-8"),
        ("v4-7", "from v4-8"),
        ("v5e-512", "256 chips"),
        ("h200:9", "from 1 to 8"),
        ("h200:0", "h200:4"),
        ("h200:x", "h200:4"),
        ("h200-8", "h200:8"),
        ("cpu:0", "cpu:4"),
        ("tpu7x-8", "no performance figures"),
    ] {
        let error = Machine::parse(name).unwrap_err().to_string();
        assert!(error.contains(hint), "{name}: {error}");
    }
}
