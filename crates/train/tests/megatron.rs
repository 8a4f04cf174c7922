//! The collectives of tensor parallelism per layer, in programs that the compilers of all platforms
//! made: those of Megatron, and no other.
//!
//! Per layer two all-reduces forward and two backward; with sequence parallelism two all-gathers
//! and two reduce-scatters in each pass. What a layer adds is the difference of two depths.
//!
//! With an automatic axis the compilers insert them.
#![allow(clippy::unwrap_used)]

mod common;

use common::model;
use fullshard_models::LoweringOptions;
use fullshard_optim::Sgd;
use fullshard_parallel::{MeshSpec, Placement, PlacementOptions};
use fullshard_pjrt::CompileOptions;
use fullshard_pjrt::hlo::{CollectiveKind, Members, Module, collective, runs_per_launch};
use fullshard_pjrt::plugins::Platform;
use fullshard_step::{BatchShape, StepSpec};
use fullshard_testing::{CLIENT, compile_ahead};
use std::collections::BTreeMap;

use CollectiveKind::{AllGather, AllReduce, ReduceScatter};

/// How the axis `tensor` is.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Axis {
    Manual,
    Automatic,
}

const WIDTH: usize = 64;
const BATCH: BatchShape =
    BatchShape { sequences: 4, tokens: 32, accumulation: 1, sync_each_microbatch: true };

fn gpt2(layers: usize) -> String {
    format!(
        r#"{{"model_type": "gpt2", "vocab_size": 1031, "n_positions": 32, "n_embd": {WIDTH},
            "n_layer": {layers}, "n_head": 4, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}}"#
    )
}

fn llama(layers: usize) -> String {
    format!(
        r#"{{"model_type": "llama", "vocab_size": 1031, "max_position_embeddings": 32,
            "hidden_size": {WIDTH}, "num_hidden_layers": {layers}, "num_attention_heads": 8,
            "num_key_value_heads": 4, "intermediate_size": 96}}"#
    )
}

fn step(config: &str, sequence_parallel: bool, axis: Axis, flatten_batch: bool) -> StepSpec {
    let lowering = LoweringOptions { flatten_batch, ..LoweringOptions::default() };
    let automatic_axes = match axis {
        Axis::Manual => Vec::new(),
        Axis::Automatic => vec!["tensor".to_owned()],
    };
    let options = PlacementOptions {
        sequence_parallel,
        automatic_axes,
        lowering,
        ..PlacementOptions::default()
    };
    let (model, mesh) = (model(config), "fsdp=2,tensor=4".parse::<MeshSpec>().unwrap());
    let placement =
        Placement::on_mesh(&model.tree(), &mesh.resolve(8).unwrap(), &options).unwrap();
    StepSpec::new(model, placement, Box::new(Sgd::default()), BATCH, Some(1.0)).unwrap()
}

fn compiled(spec: &StepSpec, kind: Platform) -> Module {
    let text = spec.step_program().unwrap().to_text();
    let options = CompileOptions::new(spec.placement.devices());
    let optimized = match kind {
        Platform::Cpu => CLIENT.compile(&text, &options).unwrap().executable().optimized_program(),
        kind => compile_ahead(kind, &text, &options).unwrap().optimized_program(),
    };
    optimized.unwrap().module().unwrap()
}

/// The collectives over `tensor` of the size of activations by kind, and the bytes of all others.
fn over_tensor(spec: &StepSpec, kind: Platform) -> (BTreeMap<CollectiveKind, i64>, i64) {
    let activations = (spec.tokens_per_device() * WIDTH * 4) as u64;
    let module = compiled(spec, kind);
    let runs = runs_per_launch(&module);
    let (mut counts, mut others) = (BTreeMap::new(), 0);
    for instruction in module.instructions().filter(|it| it.collective_kind().is_some()) {
        let found = collective(&module, instruction).unwrap();
        // Groups of neighbors: `tensor` is the last axis.
        let neighbors = |group: &[usize]| group.windows(2).all(|pair| pair[1] == pair[0] + 1);
        if !matches!(&found.members, Members::Group(group) if neighbors(group)) {
            continue;
        }
        let times = runs.count(instruction.computation).unwrap() as i64;
        let bytes = found.bytes.unwrap();
        match bytes.is_multiple_of(activations) {
            true => *counts.entry(found.kind).or_default() += (bytes / activations) as i64 * times,
            false => others += bytes as i64 * times,
        }
    }
    (counts, others)
}

/// Checks what one more layer adds.
#[track_caller]
fn check(
    config: fn(usize) -> String,
    kind: Platform,
    sequence_parallel: bool,
    axis: Axis,
    expected: &[(CollectiveKind, i64)],
) {
    let flat = kind != Platform::Tpu;
    let [two, three] =
        [2, 3].map(|layers| step(&config(layers), sequence_parallel, axis, flat));
    let [two, three] = [two, three].map(|spec| over_tensor(&spec, kind));
    eprintln!("FOUND {kind:?} {sequence_parallel} {axis:?} {two:?} {three:?}");
    let kinds = three.0.iter().map(|(kind, count)| (*kind, count - two.0.get(kind).unwrap_or(&0)));
    assert_eq!(kinds.filter(|(_, count)| *count != 0).collect::<Vec<_>>(), expected);
    // With sequence parallelism the gradients of norms and of biases after a sum.
    let small = if sequence_parallel { 6 * WIDTH as i64 * 4 } else { 0 };
    assert!((three.1 - two.1).abs() <= small, "{} bytes besides, then {}", two.1, three.1);
}

const REDUCED: [(CollectiveKind, i64); 1] = [(AllReduce, 4)];
const SCATTERED: [(CollectiveKind, i64); 2] = [(AllGather, 4), (ReduceScatter, 4)];

macro_rules! cases {
    ($($(#[$tier:meta])? $name:ident: $model:ident $kind:ident $sequence:literal $axis:ident $expected:ident;)*) => {
        $(
            #[test]
            $(#[$tier])?
            fn $name() {
                check($model, Platform::$kind, $sequence, Axis::$axis, &$expected);
            }
        )*
    };
}

cases! {
    gpt2_reduces_twice_per_pass_on_cpu: gpt2 Cpu false Manual REDUCED;
    gpt2_gathers_and_scatters_twice_per_pass_on_cpu: gpt2 Cpu true Manual SCATTERED;
    llama_reduces_twice_per_pass_on_cpu: llama Cpu false Manual REDUCED;
    llama_gathers_and_scatters_twice_per_pass_on_cpu: llama Cpu true Manual SCATTERED;
    llama_gathers_and_scatters_twice_per_pass_on_gpus: llama Cuda true Manual SCATTERED;
    gpt2_auto_cpu: gpt2 Cpu false Automatic REDUCED;
    gpt2_auto_cpu_seq: gpt2 Cpu true Automatic SCATTERED;
    llama_auto_cpu: llama Cpu false Automatic REDUCED;
    llama_auto_cpu_seq: llama Cpu true Automatic SCATTERED;
    gpt2_auto_cuda: gpt2 Cuda false Automatic REDUCED;
    gpt2_auto_cuda_seq: gpt2 Cuda true Automatic SCATTERED;
    llama_auto_cuda: llama Cuda false Automatic REDUCED;
    llama_auto_cuda_seq: llama Cuda true Automatic SCATTERED;
    gpt2_auto_tpu: gpt2 Tpu false Automatic REDUCED;
    gpt2_auto_tpu_seq: gpt2 Tpu true Automatic SCATTERED;
    llama_auto_tpu: llama Tpu false Automatic REDUCED;
    llama_auto_tpu_seq: llama Tpu true Automatic SCATTERED;
    #[ignore = "long: ahead-of-time compiles"]
    long_llama_reduces_twice_per_pass_on_gpus: llama Cuda false Manual REDUCED;
    #[ignore = "long: ahead-of-time compiles"]
    long_gpt2_reduces_twice_per_pass_on_gpus: gpt2 Cuda false Manual REDUCED;
    #[ignore = "long: ahead-of-time compiles"]
    long_gpt2_gathers_and_scatters_twice_per_pass_on_gpus: gpt2 Cuda true Manual SCATTERED;
    #[ignore = "long: ahead-of-time compiles"]
    long_llama_reduces_twice_per_pass_on_tpus: llama Tpu false Manual REDUCED;
    #[ignore = "long: ahead-of-time compiles"]
    long_llama_gathers_and_scatters_twice_per_pass_on_tpus: llama Tpu true Manual SCATTERED;
    #[ignore = "long: ahead-of-time compiles"]
    long_gpt2_reduces_twice_per_pass_on_tpus: gpt2 Tpu false Manual REDUCED;
    #[ignore = "long: ahead-of-time compiles"]
    long_gpt2_gathers_and_scatters_twice_per_pass_on_tpus: gpt2 Tpu true Manual SCATTERED;
}
