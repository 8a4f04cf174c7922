//! Training with the products of layers in 8 bits: as good as in `bf16`, whatever remembers,
//! loops or is cut, and with the same exchanges.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use fullshard_graph::DType;
use fullshard_parallel::{FsdpConfig, PlacementOptions, Remat, Settings, WrapPolicy};
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

/// Text in which a token mostly follows from the two before it.
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

/// The mean of the last losses from each of some seeds, which all see the same text.
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

/// Noise is what other initial weights change in `bf16`.
fn losses_are_those_of_bf16_within_noise(model: &str) {
    let (half, eight) = (after_training(model, false), after_training(model, true));
    let apart = half.iter().map(|loss| (loss - mean(&half)).powi(2)).sum::<f64>();
    let noise = (apart / (half.len() - 1) as f64).sqrt();
    let difference = mean(&eight) - mean(&half);
    assert!(difference.abs() < noise, "{half:?} and {eight:?}");
    assert!(mean(&half) < 0.7 * f64::ln(96.0), "nothing was learned: {half:?}");
    assert_ne!(half, eight);
}

/// The losses of a few steps, run in some way.
fn few(model: &str, devices: usize, options: &PlacementOptions) -> Vec<f64> {
    losses(&spec(model, devices, options, BATCH, adamw()), None, 7, 6)
}

/// Scales are those of a device's own tokens, so that a sharded batch is rounded differently; how
/// much that may change is what rounding changes at all.
fn nearly_equal(found: &[f64], expected: &[f64]) {
    for (found, expected) in found.iter().zip(expected) {
        let apart = (found / expected - 1.0).abs();
        assert!(apart < 5e-3, "{found} in place of {expected}");
    }
}

/// The tests of a model: each way to run it is one.
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
                losses_are_those_of_bf16_within_noise($model);
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
        }
    };
}

model_tests!(gpt2, GPT2, "GPT2Block");
model_tests!(llama, LLAMA, "LlamaDecoderLayer");

/// Weights go over the wire as in `bf16`, are let go between the passes and gathered again.
#[test]
fn the_exchanges_are_those_of_bf16() {
    let exchanged = |fp8| {
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
    assert_eq!(exchanged(true), exchanged(false));
    assert!(!exchanged(true).is_empty());
}
