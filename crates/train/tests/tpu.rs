//! Training steps compiled ahead of time for the four chips of a v4-8: the collectives of the
//! placement, in the dtypes of the config, within the available memory.
//!
//! The steps are those of the PyTorch/XLA FSDP blog post on narrower models, since its own takes
//! minutes to compile:
//!
//!     cargo test -p fullshard-train --test tpu -- --include-ignored --nocapture
#![allow(clippy::unwrap_used)]

mod common;

use common::spec;
use fullshard_optim::{Adafactor, Optimizer, Sgd};
use fullshard_parallel::{FsdpConfig, PlacementOptions, UnitCollective};
use fullshard_pjrt::hlo::{CollectiveKind, Module, collectives};
use fullshard_pjrt::plugins::{Platform, Store};
use fullshard_pjrt::{CompileOptions, CompiledMemory, Plugin, Topology, TpuSlice};
use fullshard_step::{BatchShape, StepSpec};
use std::sync::LazyLock;
use std::time::Instant;

const CHIPS: usize = 4;
const BATCH: BatchShape =
    BatchShape { sequences: 16, tokens: 128, accumulation: 1, sync_each_microbatch: true };

static TOPOLOGY: LazyLock<Topology> = LazyLock::new(|| {
    let store = Store::default_location().unwrap();
    let plugin = Plugin::load(&store.install(Platform::Tpu).unwrap().path).unwrap();
    Topology::tpu(plugin, &TpuSlice::parse("v4-8").unwrap()).unwrap()
});

/// GPT-2 with weights far larger than everything else that is communicated.
fn gpt2(layers: usize) -> String {
    format!(
        r#"{{"model_type": "gpt2", "vocab_size": 1031, "n_positions": 128, "n_embd": 512,
            "n_layer": {layers}, "n_head": 4, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}}"#
    )
}

/// The blog post's units: blocks that compute in `bf16`, are sharded on dim 0 and checkpointed.
fn blog_post(scan_layers: bool) -> PlacementOptions {
    let config = include_str!("../../../examples/configs/fsdp_config.json");
    let config = FsdpConfig::from_json(config).unwrap();
    PlacementOptions { config, scan_layers, ..PlacementOptions::default() }
}

fn sgd() -> Box<dyn Optimizer> {
    Box::new(Sgd::default())
}

fn adafactor() -> Box<dyn Optimizer> {
    Box::new(Adafactor::trainer())
}

fn compile(spec: &StepSpec) -> (Module, CompiledMemory) {
    let text = spec.step_program().unwrap().to_text();
    let start = Instant::now();
    let executable = TOPOLOGY.compile(&text, &CompileOptions::new(CHIPS)).unwrap();
    println!("compiled in {:.1} s", start.elapsed().as_secs_f64());
    (executable.optimized_program().unwrap().module().unwrap(), executable.memory().unwrap())
}

/// The kind of a collective, its dtype and the number of elements of the full tensor.
type Large = (CollectiveKind, String, u64);

/// Every collective of at least `min` elements in a compiled step, sorted by kind, dtype and size.
/// Only weights are that large, so there must be no others.
fn found(module: &Module, min: u64) -> Vec<Large> {
    let mut large = Vec::new();
    for row in collectives(module) {
        let element = row.element.unwrap();
        let elements = row.bytes.unwrap() * 8 / u64::from(element.bits().unwrap());
        let times = row.count * row.runs.unwrap();
        println!("{} of {elements} {element}, {times} times", row.kind);
        let one = (row.kind, element.to_string(), elements);
        let times = if elements >= min { times } else { 0 };
        large.extend(std::iter::repeat_n(one, times as usize));
    }
    large.sort();
    large
}

/// Every collective of at least `min` elements that the placement lists, in the same order.
fn listed(spec: &StepSpec, min: u64) -> Vec<Large> {
    let large = spec.placement.collectives().into_iter().flat_map(|collective: UnitCollective| {
        let elements = (collective.bytes / collective.dtype.size()) as u64;
        let dtype = collective.dtype.name().to_owned();
        std::iter::repeat_n((collective.kind, dtype, elements), collective.count)
    });
    let mut large: Vec<Large> = large.filter(|(_, _, elements)| *elements >= min).collect();
    large.sort();
    large
}

/// Compiles a step and checks that weights are communicated as listed, with these numbers of
/// all-gathers and reduce-scatters in these dtypes, and that it fits on a chip.
fn check(spec: &StepSpec, gathers: (usize, &str), scatters: (usize, &str)) {
    let (module, memory) = compile(spec);
    let width = spec.model.dimensions().hidden as u64;
    let (found, listed) = (found(&module, width * width), listed(spec, width * width));
    assert_eq!(found.len(), listed.len());
    for (found, listed) in found.iter().zip(&listed) {
        assert_eq!((found.0, &found.1), (listed.0, &listed.1));
        // The compiler pads shards to full tiles.
        let most = listed.2 + listed.2 / 16;
        assert!((listed.2..=most).contains(&found.2), "{found:?}, expected {listed:?}");
    }
    let count = |kind, dtype: &str| found.iter().filter(|it| it.0 == kind && it.1 == dtype).count();
    assert_eq!(count(CollectiveKind::AllGather, gathers.1), gathers.0);
    assert_eq!(count(CollectiveKind::ReduceScatter, scatters.1), scatters.0);
    assert_eq!(found.len(), gathers.0 + scatters.0, "nothing else of that size");

    let limit = TOPOLOGY.memory_limit().unwrap();
    println!("{memory:?}, {} of {limit} bytes", memory.total());
    assert!(memory.arguments + memory.temporaries <= limit);
    assert!(memory.total() <= limit);
}

/// Four weights per layer, twice; of the root the embedding, which is not resharded.
#[test]
fn blog_post_step_communicates_bf16() {
    let spec = spec(&gpt2(6), CHIPS, &blog_post(true), BATCH, adafactor());
    check(&spec, (1 + 6 * 4 * 2, "bf16"), (1 + 6 * 4, "bf16"));
}

#[test]
fn gradients_can_be_reduced_in_f32() {
    let mut options = blog_post(true);
    options.config.settings.fp32_reduce_scatter = true;
    let spec = spec(&gpt2(6), CHIPS, &options, BATCH, sgd());
    check(&spec, (1 + 6 * 4 * 2, "bf16"), (1 + 6 * 4, "f32"));
}

/// Unrolled layers are gathered again in the backward pass.
#[test]
fn unrolled_layers_are_resharded() {
    let mut options = blog_post(false);
    options.config.gradient_checkpointing = false;
    let spec = spec(&gpt2(2), CHIPS, &options, BATCH, sgd());
    check(&spec, (1 + 2 * 4 * 2, "bf16"), (1 + 2 * 4, "bf16"));
}

#[test]
#[ignore = "long: four minutes of a processor"]
fn long_blog_post_model_fits_on_four_chips() {
    let config = include_str!("../../../examples/configs/gpt2_config.json");
    let batch =
        BatchShape { sequences: 128, tokens: 1024, accumulation: 1, sync_each_microbatch: true };
    let spec = spec(config, CHIPS, &blog_post(true), batch, adafactor());
    check(&spec, (1 + 18 * 4 * 2, "bf16"), (1 + 18 * 4, "bf16"));
}
