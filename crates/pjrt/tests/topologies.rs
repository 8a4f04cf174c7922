//! Ahead-of-time TPU compiles for slices that are not present.
#![allow(clippy::unwrap_used)]

mod common;

use common::{gather_and_scatter, plugin};
use fullshard_pjrt::hlo::CollectiveKind::{self, AllGather, AllReduce, ReduceScatter};
use fullshard_pjrt::hlo::collectives;
use fullshard_pjrt::plugins::Platform;
use fullshard_pjrt::{CompileOptions, Error, Flag, Topology, TpuSlice};

/// The expected topology and collectives of a slice.
struct Expected {
    devices: usize,
    kind: &'static str,
    gibibytes: u64,
    /// Beyond one host the compiler implements the reduce-scatter as an all-reduce; it keeps the
    /// all-gather, as long as the devices are in torus order.
    sum: CollectiveKind,
}

fn compiles_a_sharded_program(name: &str, expected: &Expected) {
    let slice = TpuSlice::parse(name).unwrap();
    let topology = Topology::tpu(plugin(Platform::Tpu), &slice).unwrap();
    let devices = expected.devices;
    assert_eq!(topology.devices().len(), devices);
    assert_eq!(topology.devices()[0].kind, expected.kind);
    assert_eq!(topology.memory_limit().unwrap() >> 30, expected.gibibytes);
    let coordinates = topology.devices().last().unwrap().coordinates().unwrap();
    let last: Vec<i64> = slice.dims().iter().map(|&dim| dim as i64 - 1).collect();
    assert_eq!(&coordinates[..last.len()], last);

    let text = gather_and_scatter(devices);
    let executable = topology.compile(&text, &CompileOptions::new(devices)).unwrap();
    let memory = executable.memory().unwrap();
    assert!(memory.total() >= 2 * 64 * 4096 * 4, "{memory:?}");
    let module = executable.optimized_program().unwrap().module().unwrap();
    let found = collectives(&module);
    for kind in [AllGather, expected.sum] {
        let rows: Vec<_> = found.iter().filter(|row| row.kind == kind).collect();
        assert_eq!(rows.len(), 1, "{found:?}");
        assert_eq!((rows[0].count, rows[0].group_size), (1, Some(devices)));
    }
    assert!(module.to_string().contains("ENTRY"));
}

/// The compiler splits collectives over slices into one inside each and transfers by the hosts.
#[test]
fn compiles_for_several_slices() {
    let slices = TpuSlice::parse("2xv4-16").unwrap();
    let topology = Topology::tpu(plugin(Platform::Tpu), &slices).unwrap();
    let ids: Vec<i32> = topology.devices().iter().map(|device| device.id).collect();
    assert!(ids.is_sorted() && ids.len() == 16, "slices follow each other: {ids:?}");
    let text = gather_and_scatter(16);
    let executable = topology.compile(&text, &CompileOptions::new(16)).unwrap();
    let module = executable.optimized_program().unwrap().module().unwrap();
    let rows = collectives(&module).into_iter();
    let found: Vec<_> = rows.map(|row| (row.kind, row.group_size, row.asynchronous)).collect();
    let inside = [(AllGather, Some(8), false), (AllReduce, Some(8), false)];
    let between = [(AllGather, Some(2), true), (ReduceScatter, Some(2), true)];
    assert_eq!(found.len(), 4, "{found:?}");
    assert!(inside.iter().chain(&between).all(|row| found.contains(row)), "{found:?}");
}

fn has_all_its_devices(name: &str) {
    let slice = TpuSlice::parse(name).unwrap();
    let topology = Topology::tpu(plugin(Platform::Tpu), &slice).unwrap();
    assert_eq!(topology.devices().len(), slice.devices());
}

/// One test per slice.
macro_rules! slices {
    ($($test:ident: $name:literal $devices:literal $kind:literal $gibibytes:literal $sum:ident;)*) => {
        mod compiles {
            $(#[test]
            fn $test() {
                use super::*;
                let (devices, kind, gibibytes, sum) = ($devices, $kind, $gibibytes, $sum);
                let expected = Expected { devices, kind, gibibytes, sum };
                compiles_a_sharded_program($name, &expected);
            })*
        }
    };
    ($($test:ident: $name:literal;)*) => {
        mod large {
            $(#[test]
            fn $test() {
                super::has_all_its_devices($name);
            })*
        }
    };
}

slices! {
    v3_8: "v3-8" 8 "TPU v3" 15 AllReduce;
    v4_8: "v4-8" 4 "TPU v4" 30 ReduceScatter;
    v4_512: "v4-512" 256 "TPU v4" 30 AllReduce;
    v5e_256: "v5e-256" 256 "TPU v5 lite" 15 AllReduce;
    v5p_128: "v5p-128" 64 "TPU v5" 95 AllReduce;
    v6e_16: "v6e-16" 16 "TPU v6 lite" 31 AllReduce;
}

slices! {
    v3_2048: "v3-2048";
    v4_4096: "v4-4096";
    v5p_2048: "v5p-2048";
}

#[test]
fn flags_reach_the_compiler() {
    let slice = TpuSlice::parse("v4-8").unwrap();
    let topology = Topology::tpu(plugin(Platform::Tpu), &slice).unwrap();
    let text = gather_and_scatter(4);
    let options = CompileOptions::new(4).flag("xla_enable_async_all_gather", Flag::Bool(true));
    topology.compile(&text, &options).unwrap();
    let options = CompileOptions::new(4).flag("xla_tpu_no_such_flag", Flag::Bool(true));
    let error = topology.compile(&text, &options).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("xla_tpu_no_such_flag"), "{error}");
}

#[test]
fn rejects_programs_that_do_not_compile() {
    let plugin = plugin(Platform::Tpu);
    let topology = Topology::tpu(plugin, &TpuSlice::parse("v4-8").unwrap()).unwrap();
    let compile = |text: &str, devices: usize| {
        topology.compile(text, &CompileOptions::new(devices)).map(|_| ()).unwrap_err().to_string()
    };
    assert!(compile(&gather_and_scatter(8), 8).contains("for 8 devices but there are 4"));
    assert!(!compile("not a program", 1).is_empty());
    let error = Topology::new(plugin, "v99:1x1x1", &vec![]).map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::Call { .. }), "{error}");
}

#[test]
fn plugin_without_topologies_is_an_error() {
    let error = Topology::new(plugin(Platform::Cpu), "anything", &vec![]).map(|_| ());
    let error = error.unwrap_err();
    assert_eq!(error.code(), Some(fullshard_pjrt::Code::Unimplemented), "{error}");
}
