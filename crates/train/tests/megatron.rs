//! The collectives of tensor parallelism per layer, in programs that the compilers of all platforms
//! made: those of Megatron, and no other.
//!
//! Per layer two all-reduces forward and two backward; with sequence parallelism two all-gathers
//! and two reduce-scatters in each pass. What a layer adds is the difference of two depths.
//!
//! With an automatic axis the compilers insert the same. The CPU compiler does less: it slices
//! all-reduces instead of scattering, and sums the gradient of each projection of one input.
#![allow(clippy::unwrap_used)]

mod common;

use common::model;
use fullshard_graph::DType;
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

/// Who shards layers over `tensor`: layers themselves, or the compiler.
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

fn options(sequence_parallel: bool, axis: Axis, flatten_batch: bool) -> PlacementOptions {
    let lowering = LoweringOptions { flatten_batch, ..LoweringOptions::default() };
    let automatic = (axis == Axis::Automatic).then(|| "tensor".to_owned());
    let automatic_axes = automatic.into_iter().collect();
    PlacementOptions { sequence_parallel, automatic_axes, lowering, ..PlacementOptions::default() }
}

fn step(config: &str, options: &PlacementOptions) -> StepSpec {
    let (model, mesh) = (model(config), "fsdp=2,tensor=4".parse::<MeshSpec>().unwrap());
    let placement = Placement::on_mesh(&model.tree(), &mesh.resolve(8).unwrap(), options).unwrap();
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
    let activations = (spec.tokens_per_device() * WIDTH) as u64;
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
        // TPUs all-gather `f32` as `bf16` where it is rounded to that next.
        let bytes = found.bytes.unwrap();
        // GPUs combine collectives of several types, such as `f32` and `i32`.
        let bits = found.element.map_or(32, |element| element.bits().unwrap());
        let elements = bytes * 8 / u64::from(bits);
        match elements.is_multiple_of(activations) {
            true => {
                *counts.entry(found.kind).or_default() += (elements / activations) as i64 * times
            }
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
    options: &PlacementOptions,
    expected: &[(CollectiveKind, i64)],
) {
    let [two, three] = [2, 3].map(|layers| step(&config(layers), options));
    let [two, three] = [two, three].map(|spec| over_tensor(&spec, kind));
    let kinds = three.0.iter().map(|(kind, count)| (*kind, count - two.0.get(kind).unwrap_or(&0)));
    assert_eq!(kinds.filter(|(_, count)| *count != 0).collect::<Vec<_>>(), expected);
    // A number per sliced bias for the norm of gradients; with sequence parallelism the gradients of
    // norms and of biases after a sum too, whose shards are padded to 128 elements.
    let small = 16 + if options.sequence_parallel { 6 * 128 * 4 } else { 0 };
    assert!((three.1 - two.1).abs() <= small, "{} bytes besides, then {}", two.1, three.1);
}

const REDUCED: [(CollectiveKind, i64); 1] = [(AllReduce, 4)];
const SCATTERED: [(CollectiveKind, i64); 2] = [(AllGather, 4), (ReduceScatter, 4)];
/// By the TPU compiler over an automatic axis: the inputs of the first projections are gathered again
/// for the gradients of their weights, rather than saved.
const GATHERED_AGAIN: [(CollectiveKind, i64); 2] = [(AllGather, 6), (ReduceScatter, 4)];
/// By the CPU compiler over an automatic axis.
const SLICED: [(CollectiveKind, i64); 2] = [(AllGather, 4), (AllReduce, 4)];
/// Llama has three projections of one input, and two of another.
const LLAMA_REDUCED: [(CollectiveKind, i64); 1] = [(AllReduce, 7)];
const LLAMA_SLICED: [(CollectiveKind, i64); 2] = [(AllGather, 4), (AllReduce, 7)];

macro_rules! cases {
    ($($(#[$tier:meta])? $name:ident: $model:ident $kind:ident $sequence:literal $axis:ident $expected:ident;)*) => {
        $(
            #[test]
            $(#[$tier])?
            fn $name() {
                let flat = Platform::$kind != Platform::Tpu;
                let options = options($sequence, Axis::$axis, flat);
                check($model, Platform::$kind, &options, &$expected);
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
    #[ignore = "long: ahead-of-time compiles"]
    long_llama_reduces_twice_per_pass_on_gpus: llama Cuda false Manual REDUCED;
    #[ignore = "long: ahead-of-time compiles"]
    long_gpt2_reduces_twice_per_pass_on_gpus: gpt2 Cuda false Manual REDUCED;
    #[ignore = "long: ahead-of-time compiles"]
    long_gpt2_gathers_and_scatters_twice_per_pass_on_gpus: gpt2 Cuda true Manual SCATTERED;
    #[ignore = "long: ahead-of-time compiles"]
    long_llama_reduces_twice_per_pass_on_tpus: llama Tpu false Manual REDUCED;
    llama_gathers_and_scatters_twice_per_pass_on_tpus: llama Tpu true Manual SCATTERED;
    #[ignore = "long: ahead-of-time compiles"]
    long_gpt2_reduces_twice_per_pass_on_tpus: gpt2 Tpu false Manual REDUCED;
    #[ignore = "long: ahead-of-time compiles"]
    long_gpt2_gathers_and_scatters_twice_per_pass_on_tpus: gpt2 Tpu true Manual SCATTERED;
    #[ignore = "long: many compiles"]
    long_automatic_gpt2_reduces_twice_per_pass_on_cpu: gpt2 Cpu false Automatic REDUCED;
    automatic_gpt2_gathers_twice_per_pass_on_cpu: gpt2 Cpu true Automatic SLICED;
    #[ignore = "long: many compiles"]
    long_automatic_llama_reduces_each_gradient_on_cpu: llama Cpu false Automatic LLAMA_REDUCED;
    automatic_llama_gathers_twice_per_pass_on_cpu: llama Cpu true Automatic LLAMA_SLICED;
    #[ignore = "long: ahead-of-time compiles"]
    long_automatic_llama_gathers_and_scatters_on_gpus: llama Cuda true Automatic SCATTERED;
    #[ignore = "long: ahead-of-time compiles"]
    long_automatic_llama_reduces_on_gpus: llama Cuda false Automatic REDUCED;
    #[ignore = "long: ahead-of-time compiles"]
    long_automatic_gpt2_reduces_on_gpus: gpt2 Cuda false Automatic REDUCED;
    #[ignore = "long: ahead-of-time compiles"]
    long_automatic_gpt2_gathers_and_scatters_on_gpus: gpt2 Cuda true Automatic SCATTERED;
    #[ignore = "long: ahead-of-time compiles"]
    long_automatic_llama_reduces_on_tpus: llama Tpu false Automatic REDUCED;
    #[ignore = "long: ahead-of-time compiles"]
    long_automatic_llama_gathers_again_on_tpus: llama Tpu true Automatic GATHERED_AGAIN;
    #[ignore = "long: ahead-of-time compiles"]
    long_automatic_gpt2_reduces_on_tpus: gpt2 Tpu false Automatic REDUCED;
    #[ignore = "long: ahead-of-time compiles"]
    long_automatic_gpt2_gathers_again_on_tpus: gpt2 Tpu true Automatic GATHERED_AGAIN;
}

/// Nothing is gathered around cuDNN's kernel, which the compiler cannot shard.
#[test]
fn automatic_llama_gathers_and_scatters_around_the_kernel_on_gpus() {
    let mut options = options(true, Axis::Automatic, true);
    options.config.settings.compute_dtype = DType::Bf16;
    options.lowering.fused_attention = true;
    let spec = step(&llama(2), &options);
    assert_eq!(spec.attention_unsupported_reason(), None);
    assert!(spec.step_program().unwrap().to_text().contains("__cudnn$fmha"));
    check(llama, Platform::Cuda, &options, &SCATTERED);
}
