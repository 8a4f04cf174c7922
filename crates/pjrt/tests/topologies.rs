//! Ahead of time: real TPU compiles for slices that are not here.
#![allow(clippy::unwrap_used)]

mod common;

use common::{gather_and_scatter, plugin};
use fullshard_pjrt::hlo::{CollectiveKind, collectives};
use fullshard_pjrt::plugins::Platform;
use fullshard_pjrt::{CompileOptions, Error, Flag, Topology, TpuSlice};

#[test]
fn a_sharded_program_compiles_for_slices_of_every_generation() {
    let plugin = plugin(Platform::Tpu);
    use CollectiveKind::{AllGather, AllReduce, ReduceScatter};
    // Past one host the compiler makes the sum that is scattered out of one that is not; the
    // gather it keeps, as long as the devices are in the order of the torus.
    for (name, devices, kind, gibibytes, sum) in [
        ("v3-8", 8, "TPU v3", 15, AllReduce),
        ("v4-8", 4, "TPU v4", 30, ReduceScatter),
        ("v4-512", 256, "TPU v4", 30, AllReduce),
        ("v5e-256", 256, "TPU v5 lite", 15, AllReduce),
        ("v5p-128", 64, "TPU v5", 95, AllReduce),
        ("v6e-16", 16, "TPU v6 lite", 31, AllReduce),
    ] {
        let slice = TpuSlice::parse(name).unwrap();
        let topology = Topology::tpu(plugin, &slice).unwrap();
        assert_eq!(topology.devices().len(), devices, "{name}");
        assert_eq!(topology.devices()[0].kind, kind);
        assert_eq!(topology.memory_limit().unwrap() >> 30, gibibytes, "{name}");
        let coordinates = topology.devices().last().unwrap().coordinates().unwrap();
        let last: Vec<i64> = slice.dims().iter().map(|&dim| dim as i64 - 1).collect();
        assert_eq!(&coordinates[..last.len()], last, "{name}");

        let text = gather_and_scatter(devices);
        let executable = topology.compile(&text, &CompileOptions::new(devices)).unwrap();
        let memory = executable.memory().unwrap();
        assert!(memory.total() >= 2 * 64 * 4096 * 4, "{name}: {memory:?}");
        let module = executable.optimized_program().unwrap().module().unwrap();
        let found = collectives(&module);
        for kind in [AllGather, sum] {
            let rows: Vec<_> = found.iter().filter(|row| row.kind == kind).collect();
            assert_eq!(rows.len(), 1, "{name}: {found:?}");
            assert_eq!((rows[0].count, rows[0].group_size), (1, Some(devices)), "{name}");
        }
        assert!(module.to_string().contains("ENTRY"));
    }
}

#[test]
fn large_slices_have_all_their_devices() {
    let plugin = plugin(Platform::Tpu);
    for name in ["v3-2048", "v4-4096", "v5p-2048"] {
        let slice = TpuSlice::parse(name).unwrap();
        let topology = Topology::tpu(plugin, &slice).unwrap();
        assert_eq!(topology.devices().len(), slice.devices(), "{name}");
    }
}

#[test]
fn the_compilers_own_flags_reach_it() {
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
fn what_cannot_be_compiled_for_a_slice_is_refused() {
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
fn a_plugin_without_topologies_says_so() {
    let error = Topology::new(plugin(Platform::Cpu), "anything", &vec![]).map(|_| ());
    let error = error.unwrap_err();
    assert_eq!(error.code(), Some(fullshard_pjrt::Code::Unimplemented), "{error}");
}
