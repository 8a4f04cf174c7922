//! Compiled training steps: the collectives that the placement lists and no others, a shard of the
//! state on each device, and no full weights between the forward and backward pass.
//!
//! Layers are scanned. With unrolled layers the CPU compiler drops barriers early and merges the
//! second all-gather of a unit with the first; it also communicates `bf16` as `f32`. Both are
//! checked with the TPU compiler in `tpu.rs`.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use fullshard_optim::{Adafactor, Optimizer, Sgd};
use fullshard_parallel::{
    FsdpConfig, GatherAhead, PlacementOptions, ShardedParam, Strategy, UnitCollective,
};
use fullshard_pjrt::hlo::{CollectiveKind, Module, collectives};
use fullshard_step::{BatchShape, StepSpec};
use std::collections::BTreeMap;

/// A model whose sizes are not divisible by the number of devices.
const MODEL: &str = r#"{"model_type": "gpt2", "vocab_size": 131, "n_positions": 20, "n_embd": 21,
    "n_layer": 3, "n_head": 3, "n_inner": 37, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}"#;
const DEVICES: usize = 4;
const BATCH: BatchShape =
    BatchShape { sequences: 8, tokens: 5, accumulation: 1, sync_each_microbatch: true };

const BLOCKS: &str = r#""transformer_layer_cls_to_wrap": "GPT2Block""#;
const PARTS: &str = r#""transformer_layer_cls_to_wrap": "GPT2Attention,GPT2MLP""#;
/// Wraps each attention and the rest of its block, which have 1696 elements or more.
const BY_SIZE: &str = r#""min_num_params": 1650"#;
const NONE: &str = r#""transformer_layer_cls_to_wrap": []"#;

/// Scanned layers with the fields of an FSDP config and its settings.
fn options(config: &str, settings: &str) -> PlacementOptions {
    let json = format!(r#"{{{config}, "xla_fsdp_settings": {{{settings}}}}}"#);
    let config = FsdpConfig::from_json(&json).unwrap();
    PlacementOptions { config, scan_layers: true, ..PlacementOptions::default() }
}

/// Number of collectives, by kind and bytes.
type Counts = BTreeMap<(CollectiveKind, u64), u64>;

const GATHER: CollectiveKind = CollectiveKind::AllGather;
const SCATTER: CollectiveKind = CollectiveKind::ReduceScatter;
const SUM: CollectiveKind = CollectiveKind::AllReduce;

/// The collectives of a compiled step, without the sums of losses, labels and gradient norms.
fn found(spec: &StepSpec, module: &Module) -> Counts {
    let mut counts = Counts::new();
    for row in collectives(module) {
        assert!([GATHER, SCATTER, SUM].contains(&row.kind), "{} in a step", row.kind);
        if row.kind == SUM && row.bytes.unwrap() <= numbers_summed(spec) {
            continue;
        }
        assert_eq!(row.group_size, Some(DEVICES));
        let times = row.count * row.runs.expect("loops have known lengths");
        *counts.entry((row.kind, row.bytes.unwrap())).or_default() += times;
    }
    counts
}

/// The bytes of a norm of each parameter and a loss, which the compiler reduces together.
fn numbers_summed(spec: &StepSpec) -> u64 {
    4 * (spec.placement.parameters.len() as u64 + 1)
}

fn listed<'a>(collectives: impl IntoIterator<Item = &'a UnitCollective>) -> Counts {
    let mut listed = Counts::new();
    for collective in collectives {
        let key = (collective.kind, collective.bytes as u64);
        *listed.entry(key).or_default() += collective.count as u64;
    }
    listed
}

fn count(counts: &Counts, kind: CollectiveKind) -> u64 {
    counts.iter().filter(|((known, _), _)| *known == kind).map(|(_, count)| count).sum()
}

fn spec_of(options: &PlacementOptions, batch: BatchShape) -> StepSpec {
    spec(MODEL, DEVICES, options, batch, Box::new(Sgd::default()))
}

/// Checks that a step runs the listed collectives, with these numbers of all-gathers and
/// reduce-scatters.
fn check(what: &str, options: &PlacementOptions, expected: [u64; 2]) {
    let spec = spec_of(options, BATCH);
    let found = found(&spec, &compile(&spec).0);
    assert_eq!(found, listed(&spec.placement.collectives()), "{what}");
    assert_eq!([GATHER, SCATTER].map(|kind| count(&found, kind)), expected, "{what}");
}

const PACKED: &str = r#""flatten_parameters": true"#;

/// One all-gather per unit in the forward pass, one more in the backward pass if it was resharded,
/// and one reduce-scatter. The root is never resharded by default.
#[test]
fn packed_units_are_gathered_once_per_pass() {
    let no_reshard = r#""flatten_parameters": true, "reshard_after_forward": false"#;
    let checkpointed = &format!(r#"{BLOCKS}, "xla_fsdp_grad_ckpt": true"#);
    for (what, wrap, settings, expected) in [
        ("blocks", BLOCKS, PACKED, [1 + 3 * 2, 1 + 3]),
        ("blocks, not resharded", BLOCKS, no_reshard, [1 + 3, 1 + 3]),
        ("attention and MLP", PARTS, PACKED, [1 + 6 * 2, 1 + 6]),
        ("units in units", BY_SIZE, PACKED, [1 + 6 * 2, 1 + 6]),
        ("only the root", NONE, PACKED, [1, 1]),
        ("checkpointed", checkpointed, PACKED, [1 + 3 * 2, 1 + 3]),
        ("checkpointed, not resharded", checkpointed, no_reshard, [1 + 3, 1 + 3]),
    ] {
        check(what, &options(wrap, settings), expected);
    }
    let blocks = options(BLOCKS, PACKED);
    let grad_op = PlacementOptions { strategy: Strategy::ShardGradOp, ..blocks.clone() };
    check("shard_grad_op", &grad_op, [1 + 3, 1 + 3]);
    check("unrolled", &PlacementOptions { scan_layers: false, ..grad_op }, [1 + 3, 1 + 3]);
    // Each pass gathers the first layer before its loop, and an extra one in the last iteration.
    let ahead = PlacementOptions { gather_ahead: GatherAhead::Layer, ..blocks };
    check("gather ahead", &ahead, [1 + 2 * (3 + 1), 1 + 3]);
}

/// The root has four parameters and a block twelve.
#[test]
fn each_bucket_is_reduced_once() {
    let dim_0 = r#""shard_param_on_dim_0": true, "coalesce_all_gather_ops": true"#;
    let bucket = |mb: f64| format!(r#"{dim_0}, "reduce_scatter_bucket_size_mb": {mb}"#);
    let gathers = 1 + 3 * 2;
    for (what, settings, scatters) in [
        ("no buckets", dim_0.to_owned(), 4 + 3 * 12),
        // Of the root: the embedding of 11 KB, and the rest. Of a block: up to `c_attn` of 6 KB,
        // then up to `c_fc`, and the rest.
        ("buckets", bucket(0.0055), 2 + 3 * 3),
    ] {
        check(what, &options(BLOCKS, &settings), [gathers, scatters]);
    }
}

#[test]
fn unpacked_parameters_are_gathered_separately() {
    let dim_0 = r#""shard_param_on_dim_0": true"#;
    let checkpointed = format!(r#"{BLOCKS}, "xla_fsdp_grad_ckpt": true"#);
    for (what, wrap, settings) in
        [("flat", BLOCKS, ""), ("dim 0, checkpointed", &checkpointed, dim_0)]
    {
        let spec = spec_of(&options(wrap, settings), BATCH);
        let found = found(&spec, &compile(&spec).0);
        let listed = listed(&spec.placement.collectives());
        assert_eq!(count(&found, SCATTER), 4 + 3 * 12, "{what}");
        assert_eq!(count(&found, SUM), 0, "{what}");
        for (&(kind, bytes), &most) in &listed {
            let times = found.get(&(kind, bytes)).copied().unwrap_or(0);
            // Biases are not needed in the backward pass.
            let least = if kind == GATHER { most.div_ceil(2) } else { most };
            assert!((least..=most).contains(&times), "{what}, {kind} of {bytes}: {times}");
        }
        assert!(found.keys().all(|key| listed.contains_key(key)), "{what}: {found:?}");
        // Each block has four weights, which are needed.
        assert!(count(&found, GATHER) >= 4 + 3 * (12 + 4), "{what}: {found:?}");
    }
}

#[test]
fn replicated_parameters_are_only_all_reduced() {
    let options = PlacementOptions { strategy: Strategy::NoShard, ..options(BLOCKS, "") };
    let spec = spec_of(&options, BATCH);
    let listed = listed(&spec.placement.collectives());
    let found = found(&spec, &compile(&spec).0);
    assert_eq!(count(&listed, SUM), 4 + 3 * 12);
    for kind in [GATHER, SCATTER] {
        assert_eq!((count(&listed, kind), count(&found, kind)), (0, 0), "{kind}");
    }
    // The compiler combines those of a layer, and the others with a few more numbers.
    assert_eq!(count(&found, SUM), 3 + 1);
    let bytes = |it: &Counts| it.iter().map(|((_, bytes), count)| bytes * count).sum::<u64>();
    let more = bytes(&found) - bytes(&listed);
    assert!(more <= numbers_summed(&spec), "{found:?}, expected {listed:?}");
}

/// Frozen parameters are gathered separately from the rest of their unit.
#[test]
fn frozen_parameters_have_no_reduce_scatter() {
    let frozen = |wrap: &str, names: &[&str]| {
        let frozen = names.iter().map(|&name| name.to_owned()).collect();
        PlacementOptions { frozen, ..options(wrap, PACKED) }
    };
    check("attention", &frozen(PARTS, &["*.attn.*"]), [1 + 6 * 2, 1 + 3]);
    let halves = frozen(BLOCKS, &["*.mlp.*", "transformer.wte.*"]);
    check("halves of units", &halves, [2 + 3 * 4, 1 + 3]);
}

#[test]
fn microbatches_sync_each_or_once() {
    let options = options(BLOCKS, PACKED);
    let batch = BatchShape { accumulation: 3, ..BATCH };
    let spec = spec_of(&options, batch);
    // The root is not resharded and is the same for all micro-batches: it is gathered before them.
    let times = |collective: &UnitCollective| match (collective.unit.as_str(), collective.kind) {
        ("", CollectiveKind::AllGather) => 1,
        _ => 3,
    };
    let collectives = spec.placement.collectives().into_iter();
    let collectives = collectives.map(|it| UnitCollective { count: it.count * times(&it), ..it });
    let each = listed(&collectives.collect::<Vec<_>>());
    assert_eq!(found(&spec, &compile(&spec).0), each);

    // Gathered before the micro-batches, all layers of a kind at once.
    let spec = spec_of(&options, BatchShape { sync_each_microbatch: false, ..batch });
    let collectives = spec.placement.collectives().into_iter().map(|collective| {
        let unit = spec.placement.units.iter().find(|unit| unit.path == collective.unit);
        UnitCollective { bytes: collective.bytes * unit.unwrap().count, count: 1, ..collective }
    });
    let once = listed(&collectives.collect::<Vec<_>>());
    assert_eq!(found(&spec, &compile(&spec).0), once);
    assert_eq!([GATHER, SCATTER].map(|kind| count(&once, kind)), [2, 2]);
}

/// The bytes of the state per device that a step is compiled for.
fn compiled_state(spec: &StepSpec) -> u64 {
    state_bytes(spec, &compile(spec).1)
}

#[test]
fn each_device_has_its_shard_of_the_state() {
    const WIDE: &str = r#"{"model_type": "gpt2", "vocab_size": 1031, "n_positions": 8,
        "n_embd": 1028, "n_layer": 2, "n_head": 2, "resid_pdrop": 0, "embd_pdrop": 0,
        "attn_pdrop": 0}"#;
    let of = |devices: usize, dim_0: bool, optimizer: Box<dyn Optimizer>| {
        let options = options(NONE, &format!(r#""shard_param_on_dim_0": {dim_0}"#));
        spec(WIDE, devices, &options, BATCH, optimizer)
    };
    let adafactor = || Box::new(Adafactor::trainer());
    let full = [adamw(), adafactor()].map(|optimizer| compiled_state(&of(1, false, optimizer)));
    let check_shard = |devices: usize, state: u64, full: u64| {
        let ratio = (state * devices as u64) as f64 / full as f64;
        assert!((1.0..1.03).contains(&ratio), "{devices} devices: {ratio} times an even shard");
    };
    for (devices, dim_0) in [(2, true), (4, false), (8, true)] {
        let spec = of(devices, dim_0, adamw());
        // A shard of each parameter and of its two slots, by the formula of the layout.
        let shard = |param: &ShardedParam| {
            let elements = param.dims.iter().product::<usize>();
            let rest = elements / param.dims[0];
            param.stack.unwrap_or(1)
                * match dim_0 {
                    true => param.dims[0].div_ceil(devices) * rest,
                    false => elements.div_ceil(128 * devices) * 128,
                }
        };
        let shards: usize = spec.placement.parameters.iter().map(shard).sum();
        let state = compiled_state(&spec);
        assert_eq!(state, 3 * 4 * shards as u64, "{devices} devices, dim 0: {dim_0}");
        check_shard(devices, state, full[0]);
    }
    for (devices, dim_0) in [(4, true), (8, false)] {
        check_shard(devices, compiled_state(&of(devices, dim_0, adafactor())), full[1]);
    }
}

const LAYERS: usize = 24;
const WIDTH: usize = 64;

/// A model with far more weights than activations per batch.
fn deep(layers: usize, options: &PlacementOptions) -> StepSpec {
    let config = format!(
        r#"{{"model_type": "gpt2", "vocab_size": 131, "n_positions": 8, "n_embd": {WIDTH},
            "n_layer": {layers}, "n_head": 2, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}}"#
    );
    spec(&config, 8, options, BATCH, Box::new(Sgd::default()))
}

/// No tensor has the full weights of all layers, so no loop carries them, and they are never in
/// memory at once.
#[test]
fn no_full_weights_live_between_passes() {
    let all_weights = (LAYERS * 12 * WIDTH * WIDTH * 4) as u64;
    // The smallest of the weights, of all layers. One layer is half of that, and so are the
    // shards of the largest weight.
    let smallest_full = (LAYERS * WIDTH * WIDTH) as u64;
    let checkpointed = format!(r#"{BLOCKS}, "xla_fsdp_grad_ckpt": true"#);
    for (what, config, settings, has_full) in [
        ("checkpointed", checkpointed.as_str(), "", false),
        ("checkpointed and packed", &checkpointed, PACKED, false),
        ("resharded", BLOCKS, "", false),
        ("not resharded", BLOCKS, r#""reshard_after_forward": false"#, true),
    ] {
        let (module, memory) = compile(&deep(LAYERS, &options(config, settings)));
        let leaves = module.instructions().flat_map(|instruction| instruction.shape.leaves());
        let arrays = leaves.filter_map(|leaf| leaf.as_array());
        let full = arrays.filter(|array| array.elements() >= smallest_full).count();
        let temporaries = memory.temporaries;
        println!(
            "{what}: {full} stacks, {temporaries} bytes of temporaries, {all_weights} of weights"
        );
        assert_eq!(full > 0, has_full, "{what}");
        assert_eq!(temporaries > all_weights, has_full, "{what}: {temporaries} of {all_weights}");
    }
}

#[test]
fn program_size_is_independent_of_depth() {
    let options = options(&format!(r#"{BLOCKS}, "xla_fsdp_grad_ckpt": true"#), "");
    let [few, many] = [12, 48].map(|layers| compile(&deep(layers, &options)).0);
    assert_eq!(few.instructions().count(), many.instructions().count());
}
