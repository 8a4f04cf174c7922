//! Every way to place a model gives the losses and gradient norms of one device.
//!
//! Ten steps of a model whose vocabulary, widths and heads do not divide by the number of
//! devices, on batches with a different token in every place. Every pair of choices appears in
//! some case.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use fullshard_graph::{DType, Dialect};
use fullshard_models::LoweringOptions;
use fullshard_parallel::{FsdpConfig, Options, Remat, Settings, Strategy, WrapPolicy};
use fullshard_step::Batch;
use fullshard_train::Metrics;
use std::sync::LazyLock;

const GPT2: &str = r#"{"model_type": "gpt2", "vocab_size": 131, "n_positions": 20, "n_embd": 21,
    "n_layer": 2, "n_head": 3, "n_inner": 37, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}"#;
/// Its vocabulary is large enough for the loss in chunks.
const LLAMA: &str = r#"{"model_type": "llama", "vocab_size": 1031, "max_position_embeddings": 20,
    "hidden_size": 18, "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1,
    "intermediate_size": 29, "tie_word_embeddings": false}"#;
const STEPS: usize = 10;

/// The choices, each a list of which a case takes one.
const CHOICES: [(&str, &[&str]); 9] = [
    ("model", &["gpt2", "llama"]),
    ("devices", &["2", "4", "8"]),
    ("wrap", &["none", "blocks", "parts", "size"]),
    ("layout", &["flat", "rows", "flattened", "coalesced", "buckets", "whole"]),
    ("remat", &["none", "dots", "full"]),
    ("reshard", &["yes", "no", "root"]),
    ("batches", &["1", "2", "2 at once"]),
    ("layers", &["written out", "looped", "ahead"]),
    ("dtype", &["f32", "bf16", "bf16 summed in f32"]),
];

/// A case: the position taken in each list of choices.
type Case = [usize; CHOICES.len()];

fn choice(case: &Case, name: &str) -> &'static str {
    let i = CHOICES.iter().position(|(known, _)| *known == name).unwrap();
    CHOICES[i].1[case[i]]
}

fn options(case: &Case) -> Options {
    let choice = |name| choice(case, name);
    let classes =
        |names: &[&str]| WrapPolicy::Classes(names.iter().map(|&name| name.to_owned()).collect());
    let layout = choice("layout");
    let is_gpt2 = choice("model") == "gpt2";
    let settings = Settings {
        compute_dtype: if choice("dtype") == "f32" { DType::F32 } else { DType::Bf16 },
        fp32_reduce_scatter: choice("dtype") == "bf16 summed in f32",
        reshard_after_forward: (choice("reshard") == "root" && layout != "whole").then_some(true),
        disable_reshard_on_root: choice("reshard") != "root",
        shard_param_on_dim_0: layout == "rows" || layout == "buckets",
        flatten_parameters: layout == "flattened",
        coalesce_all_gather_ops: layout == "coalesced",
        reduce_scatter_bucket_size_mb: if layout == "buckets" { 0.008 } else { 0.0 },
        ..Settings::default()
    };
    let wrap = match choice("wrap") {
        "blocks" if is_gpt2 => classes(&["GPT2Block"]),
        "blocks" => classes(&["LlamaDecoderLayer"]),
        "parts" if is_gpt2 => classes(&["GPT2Attention", "GPT2MLP"]),
        "parts" => classes(&["LlamaAttention", "LlamaMLP"]),
        "size" => WrapPolicy::MinSize(2000),
        _ => WrapPolicy::None,
    };
    let kept = choice("reshard") == "no" || layout == "whole";
    let nothing_ahead = choice("wrap") == "none" || kept || choice("batches") == "2 at once";
    Options {
        strategy: match choice("reshard") {
            _ if layout == "whole" => Strategy::NoShard,
            "no" => Strategy::ShardGradOp,
            _ => Strategy::FullShard,
        },
        config: FsdpConfig { wrap, settings, ..FsdpConfig::default() },
        remat: Some(match choice("remat") {
            "dots" => Remat::Dots,
            "full" => Remat::Full,
            _ => Remat::None,
        }),
        scan_layers: choice("layers") != "written out",
        gather_ahead: choice("layers") == "ahead" && !nothing_ahead,
        lowering: LoweringOptions {
            padded_vocabulary: choice("layers") != "ahead",
            loss_custom_call: choice("layers") == "looped",
            flatten_batch: choice("layers") != "written out",
            recomputed_activations: choice("layers") == "ahead",
            last_layer_kept: choice("reshard") != "no",
            split_projections: choice("layers") == "ahead",
            separate_sums: choice("layers") == "ahead",
            separate_updates: choice("layers") == "ahead",
            ..LoweringOptions::default()
        },
        dialect: Dialect {
            called_products: choice("layers") == "looped",
            rooted_logistic: choice("layers") == "ahead",
        },
        frozen: Vec::new(),
    }
}

fn batch(case: &Case) -> Batch {
    let accumulation = if choice(case, "batches") == "1" { 1 } else { 2 };
    let sync_each_microbatch = choice(case, "batches") != "2 at once";
    Batch { sequences: 16 / accumulation, tokens: 11, accumulation, sync_each_microbatch }
}

fn model_of(case: &Case) -> &'static str {
    if choice(case, "model") == "gpt2" { GPT2 } else { LLAMA }
}

/// One device, nothing wrapped, nothing looped, everything at once; each model in `f32` and in
/// `bf16`.
fn one_device(case: &Case) -> &'static [Metrics] {
    static RUNS: LazyLock<[Vec<Metrics>; 4]> = LazyLock::new(|| {
        [(GPT2, DType::F32), (GPT2, DType::Bf16), (LLAMA, DType::F32), (LLAMA, DType::Bf16)].map(
            |(model, compute_dtype)| {
                let settings = Settings { compute_dtype, ..Settings::default() };
                let config = FsdpConfig { settings, ..FsdpConfig::default() };
                let options = Options { config, ..Options::default() };
                let batch = Batch {
                    sequences: 16,
                    tokens: 11,
                    accumulation: 1,
                    sync_each_microbatch: true,
                };
                train(&spec(model, 1, &options, batch, adamw()), STEPS)
            },
        )
    });
    let short = usize::from(choice(case, "dtype") != "f32");
    &RUNS[2 * usize::from(model_of(case) == LLAMA) + short]
}

/// A list of cases in which every two choices of different lists appear together, made by always
/// taking, of many cases, the one with the most pairs that have not appeared.
fn cases() -> Vec<Case> {
    let sizes = CHOICES.map(|(_, choices)| choices.len());
    let mut missing: Vec<(usize, usize, usize, usize)> = Vec::new();
    for a in 0..sizes.len() {
        for b in a + 1..sizes.len() {
            let pairs = (0..sizes[a]).flat_map(|x| (0..sizes[b]).map(move |y| (a, x, b, y)));
            missing.extend(pairs);
        }
    }
    let mut state = 1_u64;
    let mut random = |limit: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % limit
    };
    let mut cases = Vec::new();
    while let Some(&(a, x, b, y)) = missing.first() {
        let candidates = (0..200).map(|_| {
            let mut case = sizes.map(&mut random);
            (case[a], case[b]) = (x, y);
            case
        });
        let new = |case: &Case| {
            missing.iter().filter(|(a, x, b, y)| case[*a] == *x && case[*b] == *y).count()
        };
        let best = candidates.max_by_key(new).unwrap();
        missing.retain(|(a, x, b, y)| best[*a] != *x || best[*b] != *y);
        cases.push(best);
    }
    cases
}

#[test]
fn placements_agree_with_one_device() {
    for case in cases() {
        let devices = choice(&case, "devices").parse().unwrap();
        let found =
            train(&spec(model_of(&case), devices, &options(&case), batch(&case), adamw()), STEPS);
        let names: Vec<_> = CHOICES.iter().map(|(name, _)| choice(&case, name)).collect();
        let is_f32 = choice(&case, "dtype") == "f32";
        let (loss, norm) = if is_f32 { (1e-5, 1e-4) } else { (3e-3, 3e-2) };
        for (step, (found, expected)) in found.iter().zip(one_device(&case)).enumerate() {
            let off = |found: f32, expected: f32| (found / expected - 1.0).abs();
            let fine = off(found.loss, expected.loss) < loss
                && off(found.gradient_norm, expected.gradient_norm) < norm
                && found.labels == expected.labels;
            assert!(fine, "{names:?}, step {step}: {found:?} for {expected:?}");
        }
        println!("{names:?}");
    }
}
