//! Every rematerialization policy trains as without rematerialization: it changes what is saved,
//! not what is computed. Offloaded activations stay on the device here, as CPUs have no other.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use fullshard_parallel::{FsdpConfig, PlacementOptions, Remat, WrapPolicy};
use fullshard_step::BatchShape;
use fullshard_train::Metrics;
use std::sync::{Mutex, OnceLock, PoisonError};

const GPT2: &str = r#"{"model_type": "gpt2", "vocab_size": 131, "n_positions": 20, "n_embd": 21,
    "n_layer": 2, "n_head": 3, "n_inner": 37, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}"#;
const LLAMA: &str = r#"{"model_type": "llama", "vocab_size": 131, "max_position_embeddings": 20,
    "hidden_size": 18, "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1,
    "intermediate_size": 29, "tie_word_embeddings": false}"#;
const LISTS: [&str; 2] = ["qkv,attn_out", "mlp_in,offload:out_proj"];
const STEPS: usize = 3;
const BATCH: BatchShape =
    BatchShape { sequences: 4, tokens: 11, accumulation: 1, sync_each_microbatch: true };

fn trained(model: &str, devices: usize, scan_layers: bool, remat: Remat) -> Vec<Metrics> {
    let block = if model == GPT2 { "GPT2Block" } else { "LlamaDecoderLayer" };
    let wrap = WrapPolicy::Classes(vec![block.to_owned()]);
    let config = FsdpConfig { wrap, ..FsdpConfig::default() };
    let remat = Some(remat);
    let options = PlacementOptions { config, remat, scan_layers, ..PlacementOptions::default() };
    train(&spec(model, devices, &options, BATCH, adamw()), STEPS)
}

/// One device, unrolled layers that save everything.
fn expected(model: &'static str) -> &'static [Metrics] {
    static RUNS: [OnceLock<Vec<Metrics>>; 2] = [const { OnceLock::new() }; 2];
    RUNS[usize::from(model == LLAMA)].get_or_init(|| trained(model, 1, false, Remat::None))
}

/// Losses within 1e-5, gradient norms within 1e-4: `f32` sums in another order. Programs with
/// collectives run one at a time.
fn check(model: &'static str, devices: usize, scan_layers: bool) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let expected = expected(model);
    let off = |found: f32, expected: f32| (found / expected - 1.0).abs();
    let lists = LISTS.map(|list| list.parse().unwrap());
    for remat in Remat::presets().chain(lists) {
        let found = trained(model, devices, scan_layers, remat.clone());
        for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
            let same = off(found.loss, expected.loss) < 1e-5
                && off(found.gradient_norm, expected.gradient_norm) < 1e-4;
            assert!(same, "{remat}, step {step}: {found:?}, expected {expected:?}");
        }
    }
}

/// A test for each model, number of devices, and scanned or unrolled layers.
macro_rules! cases {
    ($($(#[$tier:meta])? $name:ident: $model:ident, $devices:literal, $scanned:literal;)*) => {
        $(#[test]
        $(#[$tier])?
        fn $name() {
            check($model, $devices, $scanned);
        })*
    };
}

cases! {
    gpt2_unrolled: GPT2, 1, false;
    #[ignore = "long: eleven programs"]
    long_gpt2_scanned: GPT2, 1, true;
    #[ignore = "long: eleven programs"]
    long_gpt2_unrolled_on_two_devices: GPT2, 2, false;
    #[ignore = "long: eleven programs"]
    long_gpt2_scanned_on_two_devices: GPT2, 2, true;
    #[ignore = "long: eleven programs"]
    long_llama_unrolled: LLAMA, 1, false;
    #[ignore = "long: eleven programs"]
    long_llama_scanned: LLAMA, 1, true;
    #[ignore = "long: eleven programs"]
    long_llama_unrolled_on_two_devices: LLAMA, 2, false;
    llama_scanned_on_two_devices: LLAMA, 2, true;
}
