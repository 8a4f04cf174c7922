//! Steps whose norms, GELU, sums and rounding to FP8 are kernels: how many each has, and that they
//! train as steps without kernels do, which needs a GPU: `./check --gpu`.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use fullshard_core::Platform;
use fullshard_graph::DType;
use fullshard_parallel::{FsdpConfig, PlacementOptions, Remat, Settings, WrapPolicy};
use fullshard_step::{BatchShape, StepSpec, dialect, lowering};

const GPT2: &str = r#"{"model_type": "gpt2", "vocab_size": 131, "n_positions": 64, "n_embd": 48,
    "n_layer": 2, "n_head": 3, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}"#;
const LLAMA: &str = r#"{"model_type": "llama", "vocab_size": 131, "max_position_embeddings": 64,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2}"#;
const BATCH: BatchShape =
    BatchShape { sequences: 4, tokens: 64, accumulation: 1, sync_each_microbatch: true };

/// A step for NVIDIA GPUs in a dtype, with or without kernels.
struct Case {
    config: &'static str,
    compute: DType,
    fp8: bool,
    remat: Remat,
    scanned: bool,
    kernels: bool,
}

impl Case {
    fn of(config: &'static str) -> Case {
        let compute = DType::Bf16;
        Case { config, compute, fp8: false, remat: Remat::None, scanned: false, kernels: true }
    }

    fn spec(&self) -> StepSpec {
        let block = if self.config == GPT2 { "GPT2Block" } else { "LlamaDecoderLayer" };
        let settings =
            Settings { compute_dtype: self.compute, fp8: self.fp8, ..Settings::default() };
        let wrap = WrapPolicy::Classes(vec![block.to_owned()]);
        let mut options = lowering(Platform::Cuda);
        options.kernels = self.kernels;
        let options = PlacementOptions {
            config: FsdpConfig { wrap, settings, ..FsdpConfig::default() },
            remat: Some(self.remat.clone()),
            scan_layers: self.scanned,
            lowering: options,
            dialect: dialect(Platform::Cuda),
            ..PlacementOptions::default()
        };
        spec(self.config, 1, &options, BATCH, adamw())
    }

    /// The calls of kernels in the step, by name.
    fn calls(&self) -> Vec<(String, usize)> {
        calls(&self.spec().step_program().unwrap().to_text())
    }
}

fn calls(text: &str) -> Vec<(String, usize)> {
    let mut calls = std::collections::BTreeMap::new();
    for call in text.split("@__gpu$xla.gpu.triton").skip(1) {
        let name = call.split("name = \"").nth(1).unwrap().split('"').next().unwrap();
        *calls.entry(name.to_owned()).or_insert(0) += 1;
    }
    calls.into_iter().collect()
}

fn counts(expected: &[(&str, usize)]) -> Vec<(String, usize)> {
    expected.iter().map(|&(name, count)| (name.to_owned(), count)).collect()
}

#[test]
fn a_step_has_a_kernel_per_pass() {
    // Two norms per layer and one at the end; biases of three projections, and of two outputs.
    let gpt2 = counts(&[
        ("column_sums", 2 * (3 + 2)),
        ("gelu_backward_sums", 2),
        ("gelu_forward", 2),
        ("layer_norm_backward", 1),
        ("layer_norm_forward", 5),
        ("layer_norm_residual_backward", 4),
    ]);
    assert_eq!(Case::of(GPT2).calls(), gpt2);
    let llama = counts(&[
        ("rms_norm_backward", 1),
        ("rms_norm_forward", 5),
        ("rms_norm_residual_backward", 4),
    ]);
    assert_eq!(Case::of(LLAMA).calls(), llama);
    // Recomputed layers run the forward kernels twice, except the last, which saves everything.
    let recomputed = Case { remat: Remat::Full, ..Case::of(LLAMA) }.calls();
    let forward = recomputed.iter().find(|(name, _)| name == "rms_norm_forward").unwrap();
    assert_eq!(forward.1, 5 + 2);
    // Seven matmuls per layer, with a weight, an input and a gradient each; weights twice.
    let fp8 = Case { fp8: true, ..Case::of(LLAMA) }.calls();
    let rounded = fp8.iter().filter(|(name, _)| name.starts_with("quantize"));
    assert_eq!(rounded.map(|(_, count)| count).sum::<usize>(), 2 * 7 * (2 + 1 + 1));
}

#[test]
fn evaluation_has_forward_kernels_only() {
    let text = Case::of(GPT2).spec().eval_program(2).unwrap().to_text();
    assert_eq!(calls(&text), counts(&[("gelu_forward", 2), ("layer_norm_forward", 5)]));
}

#[test]
fn other_dtypes_and_platforms_have_none() {
    assert_eq!(Case { compute: DType::F32, ..Case::of(GPT2) }.calls(), []);
    for kind in [Platform::Cpu, Platform::Tpu] {
        assert!(!lowering(kind).kernels);
    }
}

/// Losses and gradient norms of ten steps, which differ by the rounding of 16-bit and 8-bit floats.
#[test]
#[ignore = "needs a GPU: ./check --gpu"]
fn gpu_trains_as_without_kernels() {
    for config in [GPT2, LLAMA] {
        for (fp8, remat, scanned) in [
            (false, Remat::None, false),
            (false, Remat::Full, false),
            (false, Remat::Dots, true),
            (true, Remat::None, false),
        ] {
            let [with, without] = [true, false].map(|kernels| {
                let remat = remat.clone();
                let case = Case { fp8, remat, scanned, kernels, ..Case::of(config) };
                train(&case.spec(), 10)
            });
            for (step, (with, without)) in with.iter().zip(&without).enumerate() {
                let off = |with: f32, without: f32| (with / without - 1.0).abs();
                let loss = off(with.loss, without.loss);
                let norm = off(with.gradient_norm, without.gradient_norm);
                println!("{config} fp8 {fp8}, {remat}, {step}: {loss:.1e} {norm:.1e}");
                assert!(loss < 2e-3, "{config}, fp8 {fp8}, {remat}, step {step}: loss {loss}");
                assert!(norm < 2e-2, "{config}, fp8 {fp8}, {remat}, step {step}: norm {norm}");
            }
        }
    }
}
