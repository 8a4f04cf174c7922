//! Parsing of machine names.
#![allow(clippy::unwrap_used)]

use fullshard_pjrt::plugins::Platform;
use fullshard_plan::{Dcn, Fabric, Machine, Network, Streams};

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
        ("h100:8x16", Platform::Cuda, "H100 SXM", 128),
        ("H100-96GB:8", Platform::Cuda, "H100 96 GB at 500 W", 8),
        ("2xv4-128", Platform::Tpu, "TPU v4", 128),
        ("32xv5e-256", Platform::Tpu, "TPU v5e", 8192),
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
    let fabric = Fabric::Torus {
        dims: vec![4, 8, 8],
        wrap: vec![true; 3],
        link: 45e9,
        latency: 1e-6,
        streams: Streams::Sequential,
    };
    assert_eq!(machine.network, Network { fabric, island: 256, dcn: None });
    assert_eq!(machine.memory, 33_010_000_000);
}

#[test]
fn several_nodes_and_slices_have_a_network_between_them() {
    let of = |name: &str| {
        let Network { island, dcn, .. } = Machine::parse(name).unwrap().network;
        (island, dcn.unwrap())
    };
    // 94 % of 400 Gb/s per GPU.
    assert_eq!(of("h100:8x16"), (8, Dcn { islands: 16, rate: 47e9, latency: 14e-6 }));
    assert_eq!(of("2xv4-128"), (64, Dcn { islands: 2, rate: 6.25e9, latency: 50e-6 }));
    assert_eq!(of("2xv5e-256").1.rate, 3.125e9);
    assert_eq!(Machine::parse("1xv4-128").unwrap().network.dcn, None);
    assert_eq!(Machine::parse("h100:8x1").unwrap().network.dcn, None);
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
        ("h200:0", "h200:8"),
        ("h200:x", "h200:8"),
        ("h200-8", "h200:8"),
        ("cpu:0", "cpu:4"),
        ("cpu:4x2", "cpu:4"),
        ("h200:8x0", "h200:8x16"),
        ("h100-pcie:8x2", "plan for one"),
        ("2xv3-8", "plan for one"),
        ("0xv4-8", "2xv4-128"),
        ("2xv4-7", "from v4-8"),
        ("2xh100", "h200:8x4"),
        ("tpu7x-8", "no performance figures"),
    ] {
        let error = Machine::parse(name).unwrap_err().to_string();
        assert!(error.contains(hint), "{name}: {error}");
    }
}
