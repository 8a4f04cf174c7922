//! What the compiler makes of training steps: the exchanges that the placement lists and no
//! others, a share of the state on each device, and no whole weights between the passes.
//!
//! Layers are looped over. Written out, the CPU compiler drops barriers early and merges the
//! second gather of a unit with the first; it also sends `bf16` as `f32`. Both are checked with
//! the TPU compiler in `tpu.rs`.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use fullshard_optim::{Adafactor, Optimizer, Sgd};
use fullshard_parallel::{Exchange, ExchangeKind, FsdpConfig, PlacementOptions, Stored, Strategy};
use fullshard_pjrt::hlo::{CollectiveKind, Module, collectives};
use fullshard_pjrt::{CompiledMemory, Flag};
use fullshard_step::{BatchShape, StepSpec};
use std::collections::BTreeMap;

/// A model of which nothing divides by the number of devices.
const MODEL: &str = r#"{"model_type": "gpt2", "vocab_size": 131, "n_positions": 20, "n_embd": 21,
    "n_layer": 3, "n_head": 3, "n_inner": 37, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}"#;
const DEVICES: usize = 4;
const BATCH: BatchShape =
    BatchShape { sequences: 8, tokens: 5, accumulation: 1, sync_each_microbatch: true };

const BLOCKS: &str = r#""transformer_layer_cls_to_wrap": "GPT2Block""#;
const PARTS: &str = r#""transformer_layer_cls_to_wrap": "GPT2Attention,GPT2MLP""#;
/// Of 1696 elements or more are an attention and the rest of its block.
const BY_SIZE: &str = r#""min_num_params": 1650"#;
const NONE: &str = r#""min_num_params": 0"#;

/// Looped layers as the inside of an FSDP config says, settings apart.
fn options(config: &str, settings: &str) -> PlacementOptions {
    let json = format!(r#"{{{config}, "xla_fsdp_settings": {{{settings}}}}}"#);
    let config = FsdpConfig::from_json(&json).unwrap();
    PlacementOptions { config, scan_layers: true, ..PlacementOptions::default() }
}

/// Compiles a step that is not run, so without the work on its machine code that can be left out.
fn compile(spec: &StepSpec) -> (Module, CompiledMemory) {
    let mut compiler = compiler(spec.placement.devices());
    let flags = [
        ("xla_llvm_disable_expensive_passes", Flag::Bool(true)),
        ("xla_cpu_parallel_codegen_split_count", Flag::Int(1)),
    ];
    compiler.options =
        flags.into_iter().fold(compiler.options, |options, (name, flag)| options.flag(name, flag));
    let compiled = compiler.compile(&spec.step_program().unwrap()).unwrap();
    let executable = compiled.program.executable();
    (executable.optimized_program().unwrap().module().unwrap(), executable.memory().unwrap())
}

/// How often something of a size is exchanged, by kind and bytes.
type Exchanges = BTreeMap<(&'static str, u64), u64>;

const GATHER: &str = "gather";
const SCATTER: &str = "reduce-scatter";
const SUM: &str = "all-reduce";

/// What a compiled step exchanges, without the sums of losses, labels and norms of gradients.
fn found(spec: &StepSpec, module: &Module) -> Exchanges {
    let mut exchanges = Exchanges::new();
    for row in collectives(module) {
        let kind = match row.kind {
            CollectiveKind::AllGather => GATHER,
            CollectiveKind::ReduceScatter => SCATTER,
            CollectiveKind::AllReduce if row.bytes.unwrap() <= numbers_summed(spec) => continue,
            CollectiveKind::AllReduce => SUM,
            other => panic!("{other} in a step"),
        };
        assert_eq!(row.group_size, Some(DEVICES));
        let times = row.count * row.runs.expect("loops have known lengths");
        *exchanges.entry((kind, row.bytes.unwrap())).or_default() += times;
    }
    exchanges
}

/// The bytes of a norm of each parameter and a loss, which the compiler sums together.
fn numbers_summed(spec: &StepSpec) -> u64 {
    4 * (spec.placement.parameters.len() as u64 + 1)
}

fn listed<'a>(exchanges: impl IntoIterator<Item = &'a Exchange>) -> Exchanges {
    let mut listed = Exchanges::new();
    for exchange in exchanges {
        let kind = match exchange.kind {
            ExchangeKind::Gather => GATHER,
            ExchangeKind::ReduceScatter => SCATTER,
            ExchangeKind::AllReduce => SUM,
        };
        *listed.entry((kind, exchange.bytes as u64)).or_default() += exchange.count as u64;
    }
    listed
}

fn count(exchanges: &Exchanges, kind: &str) -> u64 {
    exchanges.iter().filter(|((known, _), _)| *known == kind).map(|(_, count)| count).sum()
}

fn recipe_of(options: &PlacementOptions, batch: BatchShape) -> StepSpec {
    spec(MODEL, DEVICES, options, batch, Box::new(Sgd::default()))
}

/// Checks that a step exchanges what is listed, and that this is so many gathers and
/// reduce-scatters.
fn check(what: &str, options: &PlacementOptions, expected: [u64; 2]) {
    let spec = recipe_of(options, BATCH);
    let found = found(&spec, &compile(&spec).0);
    assert_eq!(found, listed(&spec.placement.exchanges()), "{what}");
    assert_eq!([GATHER, SCATTER].map(|kind| count(&found, kind)), expected, "{what}");
}

const PACKED: &str = r#""flatten_parameters": true"#;

/// One gather of a unit going forth, one more going back if it was let go, and one
/// reduce-scatter. The root is never let go by default.
#[test]
fn packed_units_are_exchanged_once_a_pass() {
    let kept = r#""flatten_parameters": true, "reshard_after_forward": false"#;
    let checkpointed = &format!(r#"{BLOCKS}, "xla_fsdp_grad_ckpt": true"#);
    for (what, wrap, settings, expected) in [
        ("blocks", BLOCKS, PACKED, [1 + 3 * 2, 1 + 3]),
        ("blocks kept", BLOCKS, kept, [1 + 3, 1 + 3]),
        ("attention and MLP", PARTS, PACKED, [1 + 6 * 2, 1 + 6]),
        ("units in units", BY_SIZE, PACKED, [1 + 6 * 2, 1 + 6]),
        ("only the root", NONE, PACKED, [1, 1]),
        ("checkpointed", checkpointed, PACKED, [1 + 3 * 2, 1 + 3]),
        ("checkpointed and kept", checkpointed, kept, [1 + 3, 1 + 3]),
    ] {
        check(what, &options(wrap, settings), expected);
    }
    let blocks = options(BLOCKS, PACKED);
    let kept = PlacementOptions { strategy: Strategy::ShardGradOp, ..blocks.clone() };
    check("shard_grad_op", &kept, [1 + 3, 1 + 3]);
    check("written out", &PlacementOptions { scan_layers: false, ..kept }, [1 + 3, 1 + 3]);
    // Each direction gathers the first layer before its loop, and in the last round one too many.
    let ahead = PlacementOptions { gather_ahead: true, ..blocks };
    check("ahead", &ahead, [1 + 2 * (3 + 1), 1 + 3]);
}

/// A root has four parameters and a block twelve.
#[test]
fn buckets_are_reduced_once_each() {
    let rows = r#""shard_param_on_dim_0": true, "coalesce_all_gather_ops": true"#;
    let bucket = |mb: f64| format!(r#"{rows}, "reduce_scatter_bucket_size_mb": {mb}"#);
    let gathers = 1 + 3 * 2;
    for (what, settings, scatters) in [
        ("one by one", rows.to_owned(), 4 + 3 * 12),
        // Of the root, the embedding with its 11 KB and the rest. Of a block, `c_attn` with its
        // 6 KB and what is before, up to `c_fc`, and the rest.
        ("some together", bucket(0.0055), 2 + 3 * 3),
    ] {
        check(what, &options(BLOCKS, &settings), [gathers, scatters]);
    }
}

#[test]
fn unpacked_parameters_are_exchanged_by_themselves() {
    let rows = r#""shard_param_on_dim_0": true"#;
    let checkpointed = format!(r#"{BLOCKS}, "xla_fsdp_grad_ckpt": true"#);
    for (what, wrap, settings) in
        [("flat", BLOCKS, ""), ("rows and checkpointed", &checkpointed, rows)]
    {
        let spec = recipe_of(&options(wrap, settings), BATCH);
        let found = found(&spec, &compile(&spec).0);
        let listed = listed(&spec.placement.exchanges());
        assert_eq!(count(&found, SCATTER), 4 + 3 * 12, "{what}");
        assert_eq!(count(&found, SUM), 0, "{what}");
        for (&(kind, bytes), &most) in &listed {
            let times = found.get(&(kind, bytes)).copied().unwrap_or(0);
            // Biases are not needed going back.
            let least = if kind == GATHER { most.div_ceil(2) } else { most };
            assert!((least..=most).contains(&times), "{what}, {kind} of {bytes}: {times}");
        }
        assert!(found.keys().all(|key| listed.contains_key(key)), "{what}: {found:?}");
        // Each block has four weights, and those are needed.
        assert!(count(&found, GATHER) >= 4 + 3 * (12 + 4), "{what}: {found:?}");
    }
}

#[test]
fn whole_parameters_are_only_summed() {
    let options = PlacementOptions { strategy: Strategy::NoShard, ..options(BLOCKS, "") };
    let spec = recipe_of(&options, BATCH);
    let listed = listed(&spec.placement.exchanges());
    let found = found(&spec, &compile(&spec).0);
    assert_eq!(count(&listed, SUM), 4 + 3 * 12);
    for kind in [GATHER, SCATTER] {
        assert_eq!((count(&listed, kind), count(&found, kind)), (0, 0), "{kind}");
    }
    // The compiler sums those of a layer together, and others with a few numbers more.
    assert_eq!(count(&found, SUM), 3 + 1);
    let bytes = |it: &Exchanges| it.iter().map(|((_, bytes), count)| bytes * count).sum::<u64>();
    let more = bytes(&found) - bytes(&listed);
    assert!(more <= numbers_summed(&spec), "{found:?} for {listed:?}");
}

/// What is frozen is gathered apart from the rest of its unit.
#[test]
fn frozen_parameters_have_no_gradients_to_scatter() {
    let frozen = |wrap: &str, names: &[&str]| {
        let frozen = names.iter().map(|&name| name.to_owned()).collect();
        PlacementOptions { frozen, ..options(wrap, PACKED) }
    };
    check("attention", &frozen(PARTS, &["*.attn.*"]), [1 + 6 * 2, 1 + 3]);
    let halves = frozen(BLOCKS, &["*.mlp.*", "transformer.wte.*"]);
    check("halves of units", &halves, [2 + 3 * 4, 1 + 3]);
}

#[test]
fn accumulated_batches_exchange_each_or_once() {
    let options = options(BLOCKS, PACKED);
    let batch = BatchShape { accumulation: 3, ..BATCH };
    let spec = recipe_of(&options, batch);
    // The root is kept, and is the same for every batch: the compiler gathers it before them.
    let times = |exchange: &Exchange| match (exchange.unit.as_str(), exchange.kind) {
        ("", ExchangeKind::Gather) => 1,
        _ => 3,
    };
    let exchanges = spec.placement.exchanges().into_iter();
    let exchanges = exchanges.map(|it| Exchange { count: it.count * times(&it), ..it });
    let each = listed(&exchanges.collect::<Vec<_>>());
    assert_eq!(found(&spec, &compile(&spec).0), each);

    // Gathered before the batches, all layers of a kind at once.
    let spec = recipe_of(&options, BatchShape { sync_each_microbatch: false, ..batch });
    let exchanges = spec.placement.exchanges().into_iter().map(|exchange| {
        let unit = spec.placement.units.iter().find(|unit| unit.path == exchange.unit);
        Exchange { bytes: exchange.bytes * unit.unwrap().count, count: 1, ..exchange }
    });
    let once = listed(&exchanges.collect::<Vec<_>>());
    assert_eq!(found(&spec, &compile(&spec).0), once);
    assert_eq!([GATHER, SCATTER].map(|kind| count(&once, kind)), [2, 2]);
}

/// The bytes of arguments on each device without what a step is fed: two batches, the
/// optimizer's scalars, a seed, a number and the metrics of the step before.
fn state_bytes(spec: &StepSpec) -> u64 {
    let batch = spec.batch;
    let tokens = batch.sequences / spec.placement.devices() * batch.tokens;
    let fed = 2 * tokens + spec.optimizer.scalar_count() + 2 + 1 + 3;
    compile(spec).1.arguments - 4 * fed as u64
}

#[test]
fn each_device_has_its_share_of_the_state() {
    const WIDE: &str = r#"{"model_type": "gpt2", "vocab_size": 1031, "n_positions": 8,
        "n_embd": 1028, "n_layer": 2, "n_head": 2, "resid_pdrop": 0, "embd_pdrop": 0,
        "attn_pdrop": 0}"#;
    let of = |devices: usize, rows: bool, optimizer: Box<dyn Optimizer>| {
        let options = options(NONE, &format!(r#""shard_param_on_dim_0": {rows}"#));
        spec(WIDE, devices, &options, BATCH, optimizer)
    };
    let adafactor = || Box::new(Adafactor::trainer());
    let whole = [adamw(), adafactor()].map(|optimizer| state_bytes(&of(1, false, optimizer)));
    let share = |devices: usize, state: u64, whole: u64| {
        let share = (state * devices as u64) as f64 / whole as f64;
        assert!((1.0..1.03).contains(&share), "{devices} devices: {share} of a share");
    };
    for (devices, rows) in [(2, true), (4, false), (8, true)] {
        let spec = of(devices, rows, adamw());
        // Of each parameter and of two slots like it a part, by the formula of its layout.
        let part = |stored: &Stored| {
            let elements = stored.dims.iter().product::<usize>();
            let rest = elements / stored.dims[0];
            stored.stack.unwrap_or(1)
                * match rows {
                    true => stored.dims[0].div_ceil(devices) * rest,
                    false => elements.div_ceil(128 * devices) * 128,
                }
        };
        let parts: usize = spec.placement.parameters.iter().map(part).sum();
        let state = state_bytes(&spec);
        assert_eq!(state, 3 * 4 * parts as u64, "{devices} devices, rows: {rows}");
        share(devices, state, whole[0]);
    }
    for (devices, rows) in [(4, true), (8, false)] {
        share(devices, state_bytes(&of(devices, rows, adafactor())), whole[1]);
    }
}

const LAYERS: usize = 24;
const WIDTH: usize = 64;

/// A model with far more weights than a batch has activations.
fn deep(layers: usize, options: &PlacementOptions) -> StepSpec {
    let config = format!(
        r#"{{"model_type": "gpt2", "vocab_size": 131, "n_positions": 8, "n_embd": {WIDTH},
            "n_layer": {layers}, "n_head": 2, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}}"#
    );
    spec(&config, 8, options, BATCH, Box::new(Sgd::default()))
}

/// Whole weights of all layers are in no tensor, so in none that a loop carries, and never in
/// memory together.
#[test]
fn no_whole_weight_lives_from_one_pass_to_the_other() {
    let all_weights = (LAYERS * 12 * WIDTH * WIDTH * 4) as u64;
    // The smallest of the weights, of all layers. One layer is half of that, and so are the
    // parts of the largest weight.
    let smallest_whole = (LAYERS * WIDTH * WIDTH) as u64;
    let checkpointed = format!(r#"{BLOCKS}, "xla_fsdp_grad_ckpt": true"#);
    for (what, config, settings, kept) in [
        ("checkpointed", checkpointed.as_str(), "", false),
        ("checkpointed and packed", &checkpointed, PACKED, false),
        ("let go", BLOCKS, "", false),
        ("kept", BLOCKS, r#""reshard_after_forward": false"#, true),
    ] {
        let (module, memory) = compile(&deep(LAYERS, &options(config, settings)));
        let leaves = module.instructions().flat_map(|instruction| instruction.shape.leaves());
        let arrays = leaves.filter_map(|leaf| leaf.as_array());
        let whole = arrays.filter(|array| array.elements() >= smallest_whole).count();
        let temporaries = memory.temporaries;
        println!(
            "{what}: {whole} stacks, {temporaries} bytes of temporaries, {all_weights} of weights"
        );
        assert_eq!(whole > 0, kept, "{what}");
        assert_eq!(temporaries > all_weights, kept, "{what}: {temporaries} of {all_weights}");
    }
}

#[test]
fn a_deep_model_compiles_to_the_program_of_a_shallow_one() {
    let options = options(&format!(r#"{BLOCKS}, "xla_fsdp_grad_ckpt": true"#), "");
    let [few, many] = [12, 48].map(|layers| compile(&deep(layers, &options)).0);
    assert_eq!(few.instructions().count(), many.instructions().count());
}
