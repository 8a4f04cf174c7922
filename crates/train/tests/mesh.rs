//! Every placement of a model gives the losses and gradient norms of one device.
//!
//! Ten steps of a model whose vocabulary, widths and heads are not divisible by the number of
//! devices, on batches with a different token at every position. Every pair of choices appears in
//! some case, each with the lowering options of one platform.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use fullshard_graph::DType;
use fullshard_parallel::{
    FsdpConfig, GatherAhead, PlacementOptions, Remat, Settings, Strategy, WrapPolicy,
};
use fullshard_pjrt::plugins::Platform;
use fullshard_step::{BatchShape, dialect, lowering};
use fullshard_train::{Metrics, Runner};
use std::sync::{Mutex, OnceLock, PoisonError};

const GPT2: &str = r#"{"model_type": "gpt2", "vocab_size": 131, "n_positions": 20, "n_embd": 21,
    "n_layer": 2, "n_head": 3, "n_inner": 37, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}"#;
/// Its vocabulary is large enough for the chunked loss.
const LLAMA: &str = r#"{"model_type": "llama", "vocab_size": 1031, "max_position_embeddings": 20,
    "hidden_size": 18, "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1,
    "intermediate_size": 29, "tie_word_embeddings": false}"#;
const STEPS: usize = 10;

/// The options with their choices; a case has one of each.
const CHOICES: [(&str, &[&str]); 10] = [
    ("model", &["gpt2", "llama"]),
    ("devices", &["2", "4", "8"]),
    ("wrap", &["root", "blocks", "parts", "size"]),
    ("layout", &["flat", "dim_0", "flattened", "coalesced", "buckets", "replicated"]),
    ("remat", &["none", "dots", "full"]),
    ("reshard", &["yes", "no", "root"]),
    ("batches", &["one", "two", "no_sync"]),
    ("layers", &["unrolled", "scanned", "ahead", "vectors"]),
    ("dtype", &["f32", "bf16", "f32_sums"]),
    ("platform", &["cpu", "cuda", "tpu"]),
];

/// A case: one choice per option.
type Case = [&'static str; CHOICES.len()];

/// A test for each case, and one of the long tier with the lowering options of all platforms.
macro_rules! cases {
    ($($name:ident: [$($choice:tt)*];)*) => {
        const CASES: &[Case] = &[$([$(stringify!($choice)),*]),*];

        $(mod $name {
            #[test]
            fn trains_as_one_device() {
                super::check([$(stringify!($choice)),*]);
            }

            #[test]
            #[ignore = "long: the same case on the other platforms"]
            fn long_on_every_platform() {
                super::check_platforms([$(stringify!($choice)),*]);
            }
        })*
    };
}

#[rustfmt::skip]
cases! {
    // model, devices, wrap, layout, remat, reshard, batches, layers, dtype, platform
    gpt2_on_2_coalesced_ahead_tpu:            [gpt2  2  root   coalesced  dots root one     ahead    f32      tpu];
    gpt2_on_2_replicated_unrolled_cpu:        [gpt2  2  parts  replicated full root no_sync unrolled bf16     cpu];
    gpt2_on_4_flat_scanned_cuda:              [gpt2  4  root   flat       none yes  two     scanned  f32      cuda];
    gpt2_on_4_coalesced_unrolled_cuda:        [gpt2  4  blocks coalesced  dots yes  no_sync unrolled f32_sums cuda];
    gpt2_on_4_flattened_scanned_cuda:         [gpt2  4  parts  flattened  dots yes  one     scanned  f32_sums cuda];
    gpt2_on_4_buckets_ahead_cpu:              [gpt2  4  parts  buckets    none yes  one     ahead    f32      cpu];
    gpt2_on_4_replicated_ahead_tpu:           [gpt2  4  size   replicated dots yes  one     ahead    bf16     tpu];
    gpt2_on_4_flat_ahead_cuda:                [gpt2  4  blocks flat       full yes  two     ahead    bf16     cuda];
    gpt2_on_8_dim_0_scanned_tpu:              [gpt2  8  blocks dim_0      dots no   one     scanned  bf16     tpu];
    gpt2_on_8_flattened_ahead_tpu:            [gpt2  8  size   flattened  full no   two     ahead    f32_sums tpu];
    gpt2_on_8_coalesced_scanned_cpu:          [gpt2  8  size   coalesced  full no   one     scanned  bf16     cpu];
    llama_on_2_dim_0_ahead_cuda:              [llama 2  root   dim_0      none yes  one     ahead    f32      cuda];
    llama_on_2_flattened_unrolled_tpu:        [llama 2  root   flattened  none no   no_sync unrolled f32      tpu];
    llama_on_2_flat_ahead_cpu:                [llama 2  blocks flat       none root one     ahead    f32_sums cpu];
    llama_on_2_dim_0_scanned_cpu:             [llama 2  blocks dim_0      full yes  two     scanned  f32      cpu];
    llama_on_2_flattened_unrolled_cpu:        [llama 2  blocks flattened  full root no_sync unrolled bf16     cpu];
    llama_on_2_buckets_scanned_cuda:          [llama 2  size   buckets    full root no_sync scanned  f32      cuda];
    llama_on_4_replicated_scanned_cuda:       [llama 4  root   replicated full root one     scanned  f32_sums cuda];
    llama_on_4_flat_scanned_cpu:              [llama 4  size   flat       dots no   no_sync scanned  bf16     cpu];
    llama_on_4_dim_0_unrolled_cpu:            [llama 4  size   dim_0      none root no_sync unrolled f32_sums cpu];
    llama_on_4_replicated_scanned_tpu:        [llama 4  size   replicated none no   two     scanned  bf16     tpu];
    llama_on_8_buckets_unrolled_cpu:          [llama 8  root   buckets    dots root two     unrolled bf16     cpu];
    llama_on_8_buckets_unrolled_tpu:          [llama 8  blocks buckets    full no   no_sync unrolled f32_sums tpu];
    llama_on_8_replicated_ahead_cuda:         [llama 8  blocks replicated full no   no_sync ahead    f32      cuda];
    llama_on_8_flat_unrolled_tpu:             [llama 8  parts  flat       full yes  one     unrolled bf16     tpu];
    llama_on_8_dim_0_unrolled_cuda:           [llama 8  parts  dim_0      full yes  no_sync unrolled bf16     cuda];
    llama_on_8_coalesced_ahead_cuda:          [llama 8  parts  coalesced  none no   two     ahead    bf16     cuda];
    llama_on_8_dim_0_ahead_tpu:               [llama 8  blocks dim_0      dots root two     ahead    f32      tpu];
    gpt2_on_2_flattened_vectors_tpu:          [gpt2  2  blocks flattened  dots yes  one     vectors  f32_sums tpu];
    gpt2_on_4_flat_vectors_tpu:               [gpt2  4  blocks flat       full yes  two     vectors  bf16     tpu];
    gpt2_on_8_replicated_vectors_cpu:         [gpt2  8  root   replicated full no   no_sync vectors  bf16     cpu];
    llama_on_2_buckets_vectors_cpu:           [llama 2  size   buckets    none yes  two     vectors  f32      cpu];
    llama_on_4_coalesced_vectors_cuda:        [llama 4  root   coalesced  none no   no_sync vectors  f32      cuda];
    llama_on_8_dim_0_vectors_cuda:            [llama 8  parts  dim_0      dots root one     vectors  f32_sums cuda];
}

fn choice(case: &Case, name: &str) -> &'static str {
    case[CHOICES.iter().position(|(known, _)| *known == name).unwrap()]
}

/// Every two choices of different options appear together in some case.
#[test]
fn every_pair_of_choices_has_a_case() {
    let all = |i: usize| CHOICES[i].1.iter().map(move |choice| (i, *choice));
    let mut missing = Vec::new();
    for (a, b) in (0..CHOICES.len()).flat_map(|b| (0..b).map(move |a| (a, b))) {
        let pairs = all(a).flat_map(|x| all(b).map(move |y| [x, y]));
        let has = |case: &Case, pair: &[(usize, &str)]| pair.iter().all(|&(i, c)| case[i] == c);
        missing.extend(pairs.filter(|pair| !CASES.iter().any(|case| has(case, pair))));
    }
    assert!(missing.is_empty(), "{missing:?}");
    for (i, choice) in CASES.iter().flat_map(|case| case.iter().enumerate()) {
        assert!(CHOICES[i].1.contains(choice), "{choice} is not a {}", CHOICES[i].0);
    }
}

fn options(case: &Case) -> PlacementOptions {
    let choice = |name| choice(case, name);
    let classes =
        |names: &[&str]| WrapPolicy::Classes(names.iter().map(|&name| name.to_owned()).collect());
    let layout = choice("layout");
    let is_gpt2 = choice("model") == "gpt2";
    let settings = Settings {
        compute_dtype: if choice("dtype") == "f32" { DType::F32 } else { DType::Bf16 },
        fp32_reduce_scatter: choice("dtype") == "f32_sums",
        reshard_after_forward: (choice("reshard") == "root" && layout != "replicated")
            .then_some(true),
        disable_reshard_on_root: choice("reshard") != "root",
        shard_param_on_dim_0: layout == "dim_0" || layout == "buckets",
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
        _ => WrapPolicy::Root,
    };
    let no_reshard = choice("reshard") == "no" || layout == "replicated";
    let nothing_ahead = choice("wrap") == "root" || no_reshard || choice("batches") == "no_sync";
    let is_packed = layout == "flattened" || layout == "coalesced";
    let platform: Platform = choice("platform").parse().unwrap();
    PlacementOptions {
        strategy: match choice("reshard") {
            _ if layout == "replicated" => Strategy::NoShard,
            "no" => Strategy::ShardGradOp,
            _ => Strategy::FullShard,
        },
        config: FsdpConfig { wrap, settings, ..FsdpConfig::default() },
        remat: Some(match choice("remat") {
            "dots" => Remat::Dots,
            "full" => Remat::Full,
            _ => Remat::None,
        }),
        scan_layers: choice("layers") != "unrolled",
        gather_ahead: match choice("layers") {
            "ahead" if !nothing_ahead => GatherAhead::Layer,
            "vectors" if !nothing_ahead && !is_packed => GatherAhead::Vectors,
            _ => GatherAhead::Nothing,
        },
        // cuDNN's kernel is the only part that a CPU cannot run.
        lowering: lowering(platform).without_kernels(),
        dialect: dialect(platform),
        frozen: Vec::new(),
        ..PlacementOptions::default()
    }
}

fn batch(case: &Case) -> BatchShape {
    let accumulation = if choice(case, "batches") == "one" { 1 } else { 2 };
    let sync_each_microbatch = choice(case, "batches") != "no_sync";
    BatchShape { sequences: 16 / accumulation, tokens: 11, accumulation, sync_each_microbatch }
}

fn model_of(case: &Case) -> &'static str {
    if choice(case, "model") == "gpt2" { GPT2 } else { LLAMA }
}

/// The metrics of some steps. Programs are compiled in parallel and run one at a time: two with
/// collectives may deadlock, each holding threads that the other waits for.
fn trained(
    model: &str,
    devices: usize,
    options: &PlacementOptions,
    batch: BatchShape,
) -> Vec<Metrics> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let spec = spec(model, devices, options, batch, adamw());
    let compiler = compiler(devices);
    let mut runner =
        Runner::with_parameters(&compiler, &spec, 42, |param| Ok(numbers(param))).unwrap();
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let step = |step: usize| {
        let tokens = tokens(batch, spec.model.dimensions().vocabulary, step % 3);
        runner.step(&[&tokens, &tokens], 1e-3).unwrap().wait().unwrap()
    };
    (0..STEPS).map(step).collect()
}

/// One device, nothing wrapped or scanned, one micro-batch; each model in `f32` and in `bf16`.
fn one_device(case: &Case) -> &'static [Metrics] {
    static RUNS: [OnceLock<Vec<Metrics>>; 4] = [const { OnceLock::new() }; 4];
    let is_bf16 = choice(case, "dtype") != "f32";
    let model = model_of(case);
    RUNS[2 * usize::from(model == LLAMA) + usize::from(is_bf16)].get_or_init(|| {
        let compute_dtype = if is_bf16 { DType::Bf16 } else { DType::F32 };
        let settings = Settings { compute_dtype, ..Settings::default() };
        let config = FsdpConfig { settings, ..FsdpConfig::default() };
        let batch =
            BatchShape { sequences: 16, tokens: 11, accumulation: 1, sync_each_microbatch: true };
        trained(model, 1, &PlacementOptions { config, ..PlacementOptions::default() }, batch)
    })
}

fn check(case: Case) {
    let devices = choice(&case, "devices").parse().unwrap();
    let found = trained(model_of(&case), devices, &options(&case), batch(&case));
    let is_f32 = choice(&case, "dtype") == "f32";
    let (loss, norm) = if is_f32 { (1e-5, 1e-4) } else { (3e-3, 3e-2) };
    let expected = one_device(&case);
    assert_eq!(found.len(), expected.len());
    for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
        let off = |found: f32, expected: f32| (found / expected - 1.0).abs();
        let fine = off(found.loss, expected.loss) < loss
            && off(found.gradient_norm, expected.gradient_norm) < norm
            && found.labels == expected.labels;
        assert!(fine, "{case:?}, step {step}: {found:?}, expected {expected:?}");
    }
}

fn check_platforms(mut case: Case) {
    let i = CHOICES.iter().position(|(name, _)| *name == "platform").unwrap();
    for platform in CHOICES[i].1 {
        case[i] = platform;
        check(case);
    }
}
