//! Ahead-of-time compiles for GPUs that are not present.
#![allow(clippy::unwrap_used)]

mod common;

use common::{DOUBLE, compiler, gather_and_scatter};
use fullshard_pjrt::hlo::{CollectiveKind, collectives};
use fullshard_pjrt::plugins::Platform;
use fullshard_pjrt::{CompileOptions, GpuTarget, Topology};

#[test]
fn compiles_for_every_gpu_model() {
    let plugin = compiler(Platform::Cuda);
    for chip in GpuTarget::models() {
        let target = GpuTarget::parse(chip.short).unwrap();
        let topology = Topology::gpu(plugin, &target).unwrap();
        assert_eq!(topology.devices().len(), 1, "{target}");
        assert_eq!(topology.devices()[0].kind, chip.kinds[0]);
        let executable = topology.compile(DOUBLE, &CompileOptions::new(1)).unwrap();
        assert_eq!(executable.memory().unwrap().total(), 2 * 4 * 4, "{target}");
        assert!(executable.optimized_program().unwrap().module().unwrap().is_scheduled);
    }
}

#[test]
fn collectives_are_preserved_on_eight_gpus() {
    let target = GpuTarget::parse("h200:8").unwrap();
    let topology = Topology::gpu(compiler(Platform::Cuda), &target).unwrap();
    assert_eq!(topology.devices().len(), 8);
    let executable = topology.compile(&gather_and_scatter(8), &CompileOptions::new(8)).unwrap();
    let module = executable.optimized_program().unwrap().module().unwrap();
    let found: Vec<_> = collectives(&module).iter().map(|row| (row.kind, row.group_size)).collect();
    let all = Some(8);
    assert_eq!(found, [(CollectiveKind::AllGather, all), (CollectiveKind::ReduceScatter, all)]);
}
