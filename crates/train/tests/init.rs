//! Initialization: the same weights in every placement, from the right distributions.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use fullshard_graph::Program;
use fullshard_models::Initializer;
use fullshard_optim::Sgd;
use fullshard_parallel::{FsdpConfig, PlacementOptions, Settings, Strategy};
use fullshard_pjrt::Array;
use fullshard_step::{BatchShape, StepSpec};
use fullshard_train::initial_state;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Every parameter of a model by its full name, one layer at a time.
type Weights = BTreeMap<String, Vec<f32>>;

/// Widths that are not divisible by any number of devices.
const SMALL: &str = r#"{"model_type": "gpt2", "vocab_size": 131, "n_positions": 20, "n_embd": 21,
    "n_layer": 2, "n_head": 3, "n_inner": 37}"#;

/// Enough elements for tight bounds: 65536 in the smallest matrix.
const LARGE: &str = r#"{"model_type": "gpt2", "vocab_size": 512, "n_positions": 256,
    "n_embd": 256, "n_layer": 4, "n_head": 4}"#;

fn placed(config: &str, devices: usize, layout: &str, scan_layers: bool) -> StepSpec {
    let settings = Settings { shard_param_on_dim_0: layout == "dim_0", ..Settings::default() };
    let options = PlacementOptions {
        strategy: if layout == "replicated" { Strategy::NoShard } else { Strategy::FullShard },
        config: FsdpConfig { settings, ..FsdpConfig::default() },
        scan_layers,
        ..PlacementOptions::default()
    };
    let batch =
        BatchShape { sequences: devices, tokens: 2, accumulation: 1, sync_each_microbatch: true };
    spec(config, devices, &options, batch, Box::new(Sgd::default()))
}

/// The weights that a spec's programs initialize from each seed. Padding is checked to be zero.
fn initialized(spec: &StepSpec, seeds: &[u64]) -> Vec<Weights> {
    let init = spec.init_programs().unwrap();
    let programs: Vec<&Program> = init.iter().map(|init| &init.program).collect();
    let compiled = compiler(spec.placement.devices()).compile_all(&programs).unwrap();
    let run = |&seed: &u64| weights(spec, &initial_state(&CLIENT, &init, &compiled, seed).unwrap());
    seeds.iter().map(run).collect()
}

fn weights(spec: &StepSpec, arrays: &[Array]) -> Weights {
    let mut weights = Weights::new();
    for (param, array) in spec.placement.parameters.iter().zip(arrays) {
        let numbers: Vec<f32> = array.to_host().unwrap().values().unwrap();
        let values = param.unpack(&numbers);
        assert_eq!(param.pack(&values), numbers, "padding of {} is not zero", param.name);
        let first = param.layer.unwrap_or(0);
        for (i, layer) in values.chunks(values.len() / param.stack.unwrap_or(1)).enumerate() {
            let name = param.template.replacen('*', &(first + i).to_string(), 1);
            weights.insert(name, layer.to_vec());
        }
    }
    weights
}

/// The weights on one device, replicated and unrolled, which every other placement must match.
static EXPECTED: LazyLock<Weights> =
    LazyLock::new(|| initialized(&placed(SMALL, 1, "replicated", false), &[7]).remove(0));

fn matches_one_device(devices: usize, layout: &str, scan_layers: bool) {
    assert_eq!(EXPECTED.len(), 2 + 2 * 12 + 2);
    let found = initialized(&placed(SMALL, devices, layout, scan_layers), &[7]).remove(0);
    let found = found.iter().map(|(name, layer)| (name, bits(layer)));
    assert!(found.eq(EXPECTED.iter().map(|(name, layer)| (name, bits(layer)))));
}

/// A test for each placement, unrolled and scanned.
macro_rules! placements {
    ($($name:ident: $devices:literal $layout:literal;)*) => {
        $(mod $name {
            #[test]
            fn matches_one_device_unrolled() {
                super::matches_one_device($devices, $layout, false);
            }

            #[test]
            fn matches_one_device_scanned() {
                super::matches_one_device($devices, $layout, true);
            }
        })*
    };
}

placements! {
    one_device: 1 "replicated";
    flat_on_2: 2 "flat";
    flat_on_4: 4 "flat";
    flat_on_8: 8 "flat";
    dim_0_on_2: 2 "dim_0";
    dim_0_on_4: 4 "dim_0";
    dim_0_on_8: 8 "dim_0";
    replicated_on_2: 2 "replicated";
    replicated_on_4: 4 "replicated";
    replicated_on_8: 8 "replicated";
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

/// The mean product of two lists of numbers, in units of its standard deviation if all were
/// independent with this deviation.
fn correlation(a: &[f32], b: &[f32], deviation: f64) -> f64 {
    let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
    let count = a.len().min(b.len()) as f64;
    products.sum::<f64>() / (count.sqrt() * deviation * deviation)
}

/// Checks that numbers are normal: moments within five standard deviations.
fn check_normal(name: &str, numbers: &[f32], deviation: f64) {
    let count = numbers.len() as f64;
    let moment = |power: i32| {
        let powers = numbers.iter().map(|number| (f64::from(*number) / deviation).powi(power));
        powers.sum::<f64>() / count
    };
    // The variances of moments of normal numbers: 1, 2, 15 and 96 over the count.
    for (power, expected, spread) in [(1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)]
    {
        let off = (moment(power) - expected) / f64::sqrt(spread / count);
        assert!(off.abs() < 5.0, "moment {power} of {name}: {off} deviations off");
    }
    let neighbors = correlation(numbers, &numbers[1..], deviation);
    assert!(neighbors.abs() < 5.0, "neighbors in {name}: {neighbors}");
}

#[test]
fn gpt2_initializes_as_in_transformers() {
    let spec = placed(LARGE, 8, "flat", true);
    let [first, second] = initialized(&spec, &[1, 2]).try_into().unwrap();
    let scaled = 0.02 / f64::sqrt(2.0 * 4.0);
    let mut drawn: Vec<(&String, &Vec<f32>, f64)> = Vec::new();
    for (name, numbers) in &first {
        let is_norm = name.contains("ln_");
        if name.ends_with("bias") {
            assert!(numbers.iter().all(|&number| number == 0.0), "{name}");
        } else if is_norm {
            assert!(numbers.iter().all(|&number| number == 1.0), "{name}");
        } else {
            let deviation = if name.contains("c_proj") { scaled } else { 0.02 };
            check_normal(name, numbers, deviation);
            let other = correlation(numbers, &second[name], deviation);
            assert!(other.abs() < 5.0, "{name} with another seed: {other}");
            drawn.push((name, numbers, deviation));
        }
    }
    // wte, wpe and four matrices in each of four layers.
    assert_eq!(drawn.len(), 18);
    for (i, (name, a, deviation)) in drawn.iter().enumerate() {
        for (other, b, other_deviation) in &drawn[..i] {
            let found = correlation(a, b, (deviation * other_deviation).sqrt());
            assert!(found.abs() < 5.0, "{name} and {other}: {found}");
        }
    }
    let deviations = spec.placement.parameters.iter().filter_map(|param| {
        let Initializer::Normal { std: deviation } = param.initializer else { return None };
        Some(deviation)
    });
    assert!(deviations.into_iter().all(|deviation| deviation == 0.02 || deviation == scaled));
}

/// Llama's embeddings may be tied or not; no weights are scaled.
#[test]
fn llama_initializes_as_in_transformers() {
    let config = r#"{"model_type": "llama", "vocab_size": 512, "hidden_size": 128,
        "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
        "initializer_range": 0.05, "attention_bias": true}"#;
    let weights = initialized(&placed(config, 2, "dim_0", true), &[3]).remove(0);
    for (name, numbers) in &weights {
        match () {
            _ if name.contains("norm") => assert!(numbers.iter().all(|&x| x == 1.0), "{name}"),
            _ if name.ends_with("bias") => assert!(numbers.iter().all(|&x| x == 0.0), "{name}"),
            _ => check_normal(name, numbers, 0.05),
        }
    }
    assert_eq!(weights.len(), 3 + 2 * 13);
    assert!(weights["lm_head.weight"] != weights["model.embed_tokens.weight"]);
}

#[test]
fn layers_share_initialization_programs() {
    let programs = |layers: usize, scanned: bool| {
        let config = SMALL.replace("\"n_layer\": 2", &format!("\"n_layer\": {layers}"));
        placed(&config, 2, "flat", scanned).init_programs().unwrap()
    };
    for scanned in [false, true] {
        // One program for constants; wte, wpe and the four matrices of a layer.
        assert_eq!(programs(2, scanned).len(), 1 + 6, "scanned: {scanned}");
        assert_eq!(programs(9, scanned).len(), 1 + 6, "scanned: {scanned}");
    }
    let texts = |layers| -> usize {
        programs(layers, false)[1..].iter().map(|init| init.program.to_text().len()).sum()
    };
    // Only the digits of deviations differ, which depend on the number of layers.
    assert!(texts(9).abs_diff(texts(2)) < 100, "{} and {}", texts(2), texts(9));
}
