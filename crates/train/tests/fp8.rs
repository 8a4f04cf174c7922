//! Training with FP8 matmuls: losses as in `bf16`, with any rematerialization, scanning and
//! sharding, and with the same collectives.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use fullshard_graph::DType;
use fullshard_parallel::{FsdpConfig, Placement, PlacementOptions, Remat, Settings, WrapPolicy};
use fullshard_pjrt::hlo::{CollectiveKind, collectives};
use fullshard_pjrt::{CompileCache, HostTensor};
use fullshard_step::{BatchShape, StepSpec};
use fullshard_train::{Compiler, Runner};
use std::sync::LazyLock;

const GPT2: &str = r#"{"model_type": "gpt2", "vocab_size": 96, "n_positions": 32, "n_embd": 64,
    "n_layer": 2, "n_head": 4, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}"#;
const LLAMA: &str = r#"{"model_type": "llama", "vocab_size": 96, "max_position_embeddings": 32,
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 112, "tie_word_embeddings": true}"#;
const BATCH: BatchShape =
    BatchShape { sequences: 8, tokens: 32, accumulation: 1, sync_each_microbatch: true };

fn options(fp8: bool) -> PlacementOptions {
    let settings = Settings { compute_dtype: DType::Bf16, fp8, ..Settings::default() };
    let config = FsdpConfig { settings, ..FsdpConfig::default() };
    PlacementOptions { config, scan_layers: true, ..PlacementOptions::default() }
}

/// Text in which a token mostly depends on the two before it.
fn text(step: usize) -> HostTensor {
    let mut state = 0x9E37_79B9_u64.wrapping_mul(step as u64 + 1) | 1;
    let mut draw = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % below
    };
    let mut values = Vec::new();
    for _ in 0..BATCH.sequences {
        let (mut before, mut last) = (draw(96), draw(96));
        for _ in 0..BATCH.tokens {
            let next = if draw(8) == 0 { draw(96) } else { (5 * last + before / 8 + 3) % 96 };
            values.push(last as i32);
            (before, last) = (last, next);
        }
    }
    HostTensor::from_values(&[1, BATCH.sequences, BATCH.tokens], &values).unwrap()
}

/// The losses of training from a seed.
fn losses(spec: &StepSpec, cache: Option<CompileCache>, seed: u64, steps: usize) -> Vec<f64> {
    let compiler = Compiler { cache, ..compiler(spec.placement.devices()) };
    let mut runner = Runner::new(&compiler, spec, seed).unwrap();
    let run = |step: usize| {
        let text = text(step);
        let metrics = runner.step(&[&text, &text], 3e-3).unwrap().wait().unwrap();
        f64::from(metrics.loss)
    };
    (0..steps).map(run).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The mean of the last losses for each of several seeds, on the same text.
fn after_training(model: &str, fp8: bool) -> Vec<f64> {
    const STEPS: usize = 100;
    let folder = tempfile::tempdir().unwrap();
    let spec = spec(model, 1, &options(fp8), BATCH, adamw());
    let last = |seed| {
        let losses = losses(&spec, Some(CompileCache::at(folder.path())), seed, STEPS);
        mean(&losses[STEPS - 20..])
    };
    (1..=3).map(last).collect()
}

/// Noise is the effect of other initial weights in `bf16`.
fn losses_match_bf16_within_noise(model: &str) {
    let (bf16, fp8) = (after_training(model, false), after_training(model, true));
    let squares = bf16.iter().map(|loss| (loss - mean(&bf16)).powi(2)).sum::<f64>();
    let noise = (squares / (bf16.len() - 1) as f64).sqrt();
    let difference = mean(&fp8) - mean(&bf16);
    assert!(difference.abs() < noise, "{bf16:?} and {fp8:?}");
    assert!(mean(&bf16) < 0.7 * f64::ln(96.0), "nothing was learned: {bf16:?}");
    assert_ne!(bf16, fp8);
}

/// The losses of a few steps with some options.
fn few(model: &str, devices: usize, options: &PlacementOptions) -> Vec<f64> {
    losses(&spec(model, devices, options, BATCH, adamw()), None, 7, 6)
}

/// Scales are computed from each device's tokens, so a sharded batch is rounded differently; the
/// tolerance is the effect of rounding.
fn nearly_equal(found: &[f64], expected: &[f64]) {
    for (found, expected) in found.iter().zip(expected) {
        let error = (found / expected - 1.0).abs();
        assert!(error < 5e-3, "{found}, expected {expected}");
    }
}

/// The tests of a model, one per configuration.
macro_rules! model_tests {
    ($name:ident, $model:expr, $class:expr) => {
        mod $name {
            use super::*;

            static ONE_DEVICE: LazyLock<Vec<f64>> =
                LazyLock::new(|| few($model, 1, &options(true)));

            fn wrapped() -> PlacementOptions {
                let mut options = options(true);
                options.config.wrap = WrapPolicy::Classes(vec![$class.to_owned()]);
                options
            }

            #[test]
            fn learns_as_in_bf16() {
                losses_match_bf16_within_noise($model);
            }

            #[test]
            fn unrolled() {
                let options = PlacementOptions { scan_layers: false, ..options(true) };
                nearly_equal(&few($model, 1, &options), &ONE_DEVICE);
            }

            #[test]
            fn matmuls_saved() {
                let options = PlacementOptions { remat: Some(Remat::Dots), ..options(true) };
                nearly_equal(&few($model, 1, &options), &ONE_DEVICE);
            }

            #[test]
            fn all_recomputed() {
                let options = PlacementOptions { remat: Some(Remat::Full), ..options(true) };
                nearly_equal(&few($model, 1, &options), &ONE_DEVICE);
            }

            #[test]
            fn wrapped_on_two() {
                nearly_equal(&few($model, 2, &wrapped()), &ONE_DEVICE);
            }

            #[test]
            fn wrapped_and_matmuls_saved_on_four() {
                let options = PlacementOptions { remat: Some(Remat::Dots), ..wrapped() };
                nearly_equal(&few($model, 4, &options), &ONE_DEVICE);
            }

            #[test]
            fn sliced_on_four() {
                let options = PlacementOptions { sequence_parallel: true, ..wrapped() };
                let mesh = mesh("fsdp_2_tensor_2").resolve(4).unwrap();
                let model = model($model);
                let placement = Placement::on_mesh(&model.tree(), &mesh, &options).unwrap();
                let spec = StepSpec::new(model, placement, adamw(), BATCH, None).unwrap();
                nearly_equal(&losses(&spec, None, 7, 6), &ONE_DEVICE);
            }
        }
    };
}

model_tests!(gpt2, GPT2, "GPT2Block");
model_tests!(llama, LLAMA, "LlamaDecoderLayer");

/// Weights are communicated as in `bf16`, resharded between the passes and gathered again.
#[test]
fn collectives_match_bf16() {
    let run_collectives = |fp8| {
        let mut options = options(fp8);
        options.config.wrap = WrapPolicy::Classes(vec!["GPT2Block".to_owned()]);
        let spec = spec(GPT2, 2, &options, BATCH, adamw());
        let step = compiler(2).compile(&spec.step_program().unwrap()).unwrap();
        let module = step.program.executable().optimized_program().unwrap().module().unwrap();
        let mut rows: Vec<_> = collectives(&module)
            .into_iter()
            .filter(|row| row.kind != CollectiveKind::AllReduce)
            .map(|row| (row.kind.to_string(), row.bytes, row.runs.map(|runs| runs * row.count)))
            .collect();
        rows.sort();
        rows
    };
    assert_eq!(run_collectives(true), run_collectives(false));
    assert!(!run_collectives(true).is_empty());
}
