//! Ahead-of-time compiles for GPUs that are not present.
#![allow(clippy::unwrap_used)]

mod common;

use common::{DOUBLE, compiler, gather_and_scatter, on_each_device};
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
        let kind = chip.kinds.first().unwrap_or(&chip.name);
        assert_eq!(topology.devices()[0].kind, *kind);
        let executable = topology.compile(DOUBLE, &CompileOptions::new(1)).unwrap();
        assert_eq!(executable.memory().unwrap().total(), 2 * 4 * 4, "{target}");
        assert!(executable.optimized_program().unwrap().module().unwrap().is_scheduled);
    }
}

fn keeps_collectives(name: &str, devices: usize, per_process: usize) {
    let target = GpuTarget::parse(name).unwrap();
    let topology = Topology::gpu(compiler(Platform::Cuda), &target).unwrap();
    let mut processes: Vec<i32> = topology.devices().iter().map(|it| it.process).collect();
    assert_eq!(processes.len(), devices);
    processes.dedup();
    assert_eq!(processes.len(), devices / per_process, "{processes:?}");
    let text = gather_and_scatter(devices);
    let executable = topology.compile(&text, &CompileOptions::new(devices)).unwrap();
    let module = executable.optimized_program().unwrap().module().unwrap();
    let found: Vec<_> = collectives(&module).iter().map(|row| (row.kind, row.group_size)).collect();
    let all = Some(devices);
    assert_eq!(found, [(CollectiveKind::AllGather, all), (CollectiveKind::ReduceScatter, all)]);
}

#[test]
fn collectives_are_preserved_on_eight_gpus() {
    keeps_collectives("h200:8", 8, 8);
}

#[test]
fn collectives_are_preserved_on_several_nodes() {
    keeps_collectives("h100:8x2", 16, 8);
}

/// With its own kernels for small collectives the compiler ends the process here.
#[test]
fn small_sums_compile_for_eight_nodes() {
    let target = GpuTarget::parse("h200:8x8").unwrap();
    let topology = Topology::gpu(compiler(Platform::Cuda), &target).unwrap();
    let all: Vec<_> = (0..64).map(|device| device.to_string()).collect();
    let body = format!(
        r#"%y = "stablehlo.all_reduce"(%x) <{{
             channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
             replica_groups = dense<[[{}]]> : tensor<1x64xi64>, use_global_device_ids}}> ({{
             ^bb0(%p: tensor<f32>, %q: tensor<f32>):
               %s = stablehlo.add %p, %q : tensor<f32>
               stablehlo.return %s : tensor<f32>
           }}) : (tensor<1x4xf32>) -> tensor<1x4xf32>"#,
        all.join(", ")
    );
    let text = on_each_device(64, 1, &body, 1);
    let executable = topology.compile(&text, &CompileOptions::new(64)).unwrap();
    let module = executable.optimized_program().unwrap().module().unwrap();
    let found = collectives(&module);
    assert_eq!((found.len(), found[0].kind), (1, CollectiveKind::AllReduce), "{found:?}");
}
