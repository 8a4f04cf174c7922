//! Options besides the placement: dropout, frozen parameters, gradient divide factors, ignored
//! labels, optimizers. Each gives the same results sharded as on one device.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use fullshard_graph::DType;
use fullshard_optim::{Adafactor, Optimizer, Sgd, StepSize};
use fullshard_parallel::{
    FsdpConfig, Placement, PlacementOptions, Remat, Settings, ShardedParam, WrapPolicy,
};
use fullshard_pjrt::HostTensor;
use fullshard_step::{BatchShape, StepSpec};
use fullshard_train::{Compiler, Metrics, Runner};

const PLAIN: &str = r#"{"model_type": "gpt2", "vocab_size": 131, "n_positions": 20, "n_embd": 21,
    "n_layer": 2, "n_head": 3, "n_inner": 37, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}"#;
const VOCABULARY: usize = 131;
const BATCH: BatchShape =
    BatchShape { sequences: 8, tokens: 11, accumulation: 1, sync_each_microbatch: true };
const RATE: f64 = 1e-3;

/// A placement: devices, whether shards are on dim 0, whether layers are scanned.
type Place = (usize, bool, bool);

const ONE: Place = (1, false, false);

fn options((_, dim_0, scan_layers): Place) -> PlacementOptions {
    let settings = Settings { shard_param_on_dim_0: dim_0, ..Settings::default() };
    let wrap = WrapPolicy::Classes(vec!["GPT2Block".to_owned()]);
    let config = FsdpConfig { wrap, settings, ..FsdpConfig::default() };
    PlacementOptions { config, scan_layers, ..PlacementOptions::default() }
}

fn plain(place: Place, optimizer: Box<dyn Optimizer>) -> StepSpec {
    spec(PLAIN, place.0, &options(place), BATCH, optimizer)
}

fn runner<'a>(compiler: &'a Compiler<'a>, spec: &'a StepSpec, seed: u64) -> Runner<'a> {
    Runner::with_parameters(compiler, spec, seed, |param| Ok(weights(param))).unwrap()
}

/// Weights large enough for every option to affect the loss.
fn weights(param: &ShardedParam) -> Vec<f32> {
    numbers(param).into_iter().map(|number| 3.0 * number).collect()
}

/// Some steps, each on the same tokens.
fn steps(runner: &mut Runner<'_>, batch: BatchShape, count: usize, rate: f64) -> Vec<Metrics> {
    let tokens = tokens(batch, VOCABULARY, 0);
    let step = |_| runner.step(&[&tokens, &tokens], rate).unwrap().wait().unwrap();
    (0..count).map(step).collect()
}

/// The metrics of some steps of a spec.
fn run(spec: &StepSpec, seed: u64, count: usize, rate: f64) -> Vec<Metrics> {
    let compiler = compiler(spec.placement.devices());
    steps(&mut runner(&compiler, spec, seed), spec.batch, count, rate)
}

fn off(found: f32, expected: f32) -> f32 {
    (found / expected - 1.0).abs()
}

/// Losses within 1e-5, norms within 1e-4: `f32` sums in another order.
fn check_same(what: &str, found: &[Metrics], expected: &[Metrics]) {
    assert_eq!(found.len(), expected.len());
    for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
        let fine = off(found.loss, expected.loss) < 1e-5
            && off(found.gradient_norm, expected.gradient_norm) < 1e-4
            && found.labels == expected.labels;
        assert!(fine, "{what}, step {step}: {found:?}, expected {expected:?}");
    }
}

fn with_dropout(config: &str) -> String {
    ["resid", "embd", "attn"].iter().fold(config.to_owned(), |config, which| {
        config.replace(&format!(r#""{which}_pdrop": 0"#), &format!(r#""{which}_pdrop": 0.1"#))
    })
}

#[test]
fn dropout_is_independent_of_placement() {
    let config = with_dropout(PLAIN);
    let with = |place: Place, remat| {
        let options = PlacementOptions { remat: Some(remat), ..options(place) };
        spec(&config, place.0, &options, BATCH, adamw())
    };
    let one = with(ONE, Remat::None);
    let expected = run(&one, 5, 5, RATE);
    for (place, remat) in [((2, true, true), Remat::Full), ((8, false, false), Remat::None)] {
        let case = format!("{place:?}, {remat}");
        check_same(&case, &run(&with(place, remat), 5, 5, RATE), &expected);
    }

    // Without an update only masks change from step to step, and from seed to seed.
    let compiler = compiler(1);
    let mut other = runner(&compiler, &one, 6);
    let fixed = steps(&mut other, BATCH, 2, 0.0);
    assert!(off(fixed[0].loss, fixed[1].loss) > 1e-4, "masks of two steps");
    assert!(off(fixed[0].loss, expected[0].loss) > 1e-4, "masks of two seeds");

    let tokens = tokens(BATCH, VOCABULARY, 0);
    let flat = tokens.values::<i32>().unwrap();
    let tokens = HostTensor::from_values(&[BATCH.sequences, BATCH.tokens], &flat).unwrap();
    let (sum, count) = other.evaluate_batch(&[&tokens, &tokens]).unwrap().wait().unwrap();
    let no_dropout = run(&plain(ONE, adamw()), 0, 1, 0.0);
    assert!(off(sum / count, no_dropout[0].loss) < 1e-6, "evaluation has no dropout");
    assert!(off(fixed[0].loss, no_dropout[0].loss) > 1e-4, "training has dropout");
}

#[test]
fn blocked_attention_dropout_is_independent_of_placement() {
    let config = r#"{"model_type": "gpt2", "vocab_size": 131, "n_positions": 512, "n_embd": 8,
        "n_layer": 1, "n_head": 2, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0.1}"#;
    let batch =
        BatchShape { sequences: 2, tokens: 512, accumulation: 1, sync_each_microbatch: true };
    let run =
        |place: Place| run(&spec(config, place.0, &options(place), batch, adamw()), 5, 2, RATE);
    check_same("two devices", &run((2, false, true)), &run(ONE));
}

/// Two layers, recomputed as requested: no matmul and no kernel with `dots`, kernels with
/// `minimal`, no kernel with `save_out`; with `full` all matmuls of a layer but the last, and none
/// of a last layer that saves everything.
#[test]
fn recomputes_no_more_than_requested() {
    let config = r#"{"model_type": "gpt2", "vocab_size": 131, "n_positions": 64, "n_embd": 32,
        "n_layer": 2, "n_head": 2, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}"#;
    let batch =
        BatchShape { sequences: 2, tokens: 64, accumulation: 1, sync_each_microbatch: true };
    let counts = |remat, save_last_layer| {
        let mut options = PlacementOptions { remat: Some(remat), ..options((1, false, false)) };
        options.config.settings.compute_dtype = DType::Bf16;
        options.lowering.fused_attention = true;
        options.lowering.recomputed_activations = true;
        options.lowering.save_last_layer = save_last_layer;
        let text = spec(config, 1, &options, batch, adamw()).step_program().unwrap().to_text();
        let calls = |what: &str| text.matches(what).count();
        (calls("stablehlo.dot_general"), calls("@__cudnn$fmhaSoftmax("))
    };
    let (matmuls, kernels) = counts(Remat::None, false);
    assert_eq!(kernels, 2);
    for (remat, save_last_layer, more_matmuls, more_kernels) in [
        (Remat::None, true, 0, 0),
        (Remat::Dots, false, 0, 0),
        (Remat::Dots, true, 0, 0),
        (Remat::Minimal, false, 0, 2),
        (Remat::SaveOut, false, 2 * 2, 0),
        (Remat::Full, false, 2 * 3, 2),
        (Remat::Full, true, 3, 1),
    ] {
        let case = format!("{remat}, last layer saved: {save_last_layer}");
        let (found_matmuls, found_kernels) = counts(remat, save_last_layer);
        let found = (found_matmuls - matmuls, found_kernels - kernels);
        assert_eq!(found, (more_matmuls, more_kernels), "{case}");
    }
}

/// If attention is a kernel with dropout, a step calls it per layer once in the forward pass, once
/// more if layers are recomputed, and once in the backward pass; evaluation has no dropout.
#[test]
fn attention_kernels_apply_dropout_in_training() {
    let config = r#"{"model_type": "gpt2", "vocab_size": 131, "n_positions": 64, "n_embd": 32,
        "n_layer": 2, "n_head": 2, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0.1}"#;
    let batch =
        BatchShape { sequences: 2, tokens: 64, accumulation: 1, sync_each_microbatch: true };
    let calls = |text: &str, target: &str| text.matches(&format!("@{target}(")).count();
    let [forward, backward] = ["__cudnn$fmhaSoftmaxDropout", "__cudnn$fmhaSoftmaxDropoutBackward"];
    for (scanned, remat, expected) in [
        (false, Remat::None, (2, 2)),
        (false, Remat::Full, (4, 2)),
        (true, Remat::None, (0, 0)),
        (true, Remat::Full, (0, 0)),
    ] {
        let case = format!("scanned: {scanned}, {remat}");
        let mut options = PlacementOptions { remat: Some(remat), ..options((1, false, scanned)) };
        options.config.settings.compute_dtype = DType::Bf16;
        options.lowering.fused_attention = true;
        let spec = spec(config, 1, &options, batch, adamw());
        let text = spec.step_program().unwrap().to_text();
        let found = (calls(&text, forward), calls(&text, backward));
        assert_eq!(found, expected, "{case}");
        assert_eq!(spec.attention_unsupported_reason().is_some(), scanned);
        let text = spec.eval_program(2).unwrap().to_text();
        assert!(text.contains("@__cudnn$fmhaSoftmax(") && !text.contains(forward), "evaluation");
    }
}

/// A run with frozen parameters: metrics, and all final parameters by name.
fn frozen_run(place: Place, frozen: &[&str]) -> (Vec<Metrics>, Vec<(String, Vec<f32>)>) {
    let frozen = frozen.iter().map(|&pattern| pattern.to_owned()).collect();
    let spec = spec(PLAIN, place.0, &PlacementOptions { frozen, ..options(place) }, BATCH, adamw());
    let compiler = compiler(place.0);
    let mut runner = runner(&compiler, &spec, 0);
    let metrics = steps(&mut runner, BATCH, 5, RATE);
    let placement = &spec.placement;
    let state = runner.state();
    assert_eq!(state.parameters.len(), placement.parameters.len());
    assert_eq!(state.optimizer.len(), 2 * placement.trained().len(), "none for frozen parameters");
    let mut layers = Vec::new();
    for param in &placement.parameters {
        let (before, after) = (weights(param), runner.parameters().get(&param.name).unwrap());
        assert_eq!(before == after, param.frozen, "{}", param.name);
        let first = param.layer.unwrap_or(0);
        for (i, layer) in after.chunks(after.len() / param.stack.unwrap_or(1)).enumerate() {
            let name = param.template.replacen('*', &(first + i).to_string(), 1);
            layers.push((name, layer.to_vec()));
        }
    }
    layers.sort_by(|a, b| a.0.cmp(&b.0));
    (metrics, layers)
}

#[test]
fn frozen_parameters_are_independent_of_placement() {
    let cases: [(&[&str], &[Place]); 3] = [
        // The tied embedding by its other name, and parts of every unit.
        (&["lm_head.weight", "*.bias"], &[(4, false, true)]),
        // Every unit but the root; gradients still pass through them.
        (&["transformer.h.*"], &[(8, true, true)]),
        // All of one unit.
        (&["transformer.h.0.*"], &[(4, false, false)]),
    ];
    for (frozen, places) in cases {
        let (expected, expected_parameters) = frozen_run(ONE, frozen);
        for &place in places {
            let (found, parameters) = frozen_run(place, frozen);
            check_same(&format!("{frozen:?}, {place:?}"), &found, &expected);
            for ((name, found), (expected_name, expected)) in
                parameters.iter().zip(&expected_parameters)
            {
                assert_eq!(name, expected_name);
                let errors = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
                let error = errors.fold(0.0, f32::max);
                // A step of AdamW is 1e-3 at most; that of a gradient near zero is uncertain.
                assert!(error < 2e-4, "{frozen:?}, {place:?}: {name} is {error} off");
            }
        }
    }
}

#[test]
fn scanned_layers_are_frozen_together() {
    let options = PlacementOptions {
        frozen: vec!["transformer.h.0.*".to_owned()],
        ..options((2, false, true))
    };
    let error = Placement::new(&model(PLAIN).tree(), 2, &options).unwrap_err().to_string();
    assert!(error.contains("transformer.h.*"), "{error}");
}

#[test]
fn divide_factors_scale_gradients() {
    let placed = |factors| {
        let mut options = options((4, false, true));
        options.config.settings.gradient_divide_factors = factors;
        spec(PLAIN, 4, &options, BATCH, adamw())
    };
    let with = |factors| run(&placed(factors), 0, 3, RATE);
    // Factors of 1 give the mean.
    assert_eq!(placed(Some((1.0, 1.0))).placement.comm.divide, (1.0, 4.0));
    let default = with(None);
    check_same("divided after the reduction", &with(Some((1.0, 4.0))), &default);
    let half = with(Some((2.0, 4.0)));
    assert_eq!(half[0].loss, default[0].loss);
    assert!(off(2.0 * half[0].gradient_norm, default[0].gradient_norm) < 1e-6);
}

/// Labels of a batch, ignored where `counts(sequence, position)` is false.
fn labels(
    tokens: &HostTensor,
    batch: BatchShape,
    counts: impl Fn(usize, usize) -> bool,
) -> HostTensor {
    let label = |(i, token): (usize, i32)| {
        if counts(i / batch.tokens, i % batch.tokens) { token } else { -100 }
    };
    let tokens: Vec<i32> = tokens.values().unwrap();
    let labels: Vec<i32> = tokens.into_iter().enumerate().map(label).collect();
    let dims = [batch.accumulation, batch.sequences, batch.tokens];
    HostTensor::from_values(&dims, &labels).unwrap()
}

/// The devices' sequences are distinguished by which labels count. There are no updates.
#[test]
fn devices_have_their_own_sequences_and_global_label_counts() {
    let one = plain(ONE, adamw());
    let four = plain((4, true, true), adamw());
    let twice = BatchShape { sequences: 4, accumulation: 2, ..BATCH };
    let twice = spec(PLAIN, 4, &options((4, false, true)), twice, adamw());
    let pair = BatchShape { sequences: 2, ..BATCH };
    let pair = spec(PLAIN, 1, &options(ONE), pair, adamw());
    let (single, many) = (compiler(1), compiler(4));
    let [mut one_runner, mut pair_runner] = [&one, &pair].map(|r| runner(&single, r, 0));
    let [mut four_runner, mut twice_runner] = [&four, &twice].map(|r| runner(&many, r, 0));
    let tokens = tokens(BATCH, VOCABULARY, 0);
    let step = |runner: &mut Runner<'_>, tokens: &HostTensor, labels: &HostTensor| {
        vec![runner.step(&[tokens, labels], 0.0).unwrap().wait().unwrap()]
    };
    let in_two = |tensor: &HostTensor| {
        HostTensor::from_values(&[2, 4, BATCH.tokens], &tensor.values::<i32>().unwrap()).unwrap()
    };

    // The first device has no labels, the last has most.
    let uneven = labels(&tokens, BATCH, |sequence, position| position * 7 < sequence * 11);
    let expected = step(&mut one_runner, &tokens, &uneven);
    check_same("uneven", &step(&mut four_runner, &tokens, &uneven), &expected);
    let found = step(&mut twice_runner, &in_two(&tokens), &in_two(&uneven));
    check_same("uneven in two batches", &found, &expected);

    let mut losses = Vec::new();
    for device in 0..4 {
        let own_labels = labels(&tokens, BATCH, |sequence, _| sequence / 2 == device);
        let found = step(&mut four_runner, &tokens, &own_labels);
        check_same("the full batch", &found, &step(&mut one_runner, &tokens, &own_labels));
        let sequences: Vec<i32> = tokens.values().unwrap();
        let sequences = &sequences[2 * device * BATCH.tokens..2 * (device + 1) * BATCH.tokens];
        let sequences = HostTensor::from_values(&[1, 2, BATCH.tokens], sequences).unwrap();
        let alone = step(&mut pair_runner, &sequences, &sequences);
        check_same("its sequences alone", &found, &alone);
        losses.push(alone[0].loss);
    }
    for (i, loss) in losses.iter().enumerate() {
        assert!(losses[..i].iter().all(|other| off(*loss, *other) > 1e-3), "{losses:?}");
    }
}

/// Compares ten steps of an optimizer in these placements with those on one device.
fn check_optimizer(make: impl Fn() -> Box<dyn Optimizer>, rate: f64, places: &[Place]) {
    let expected = run(&plain(ONE, make()), 0, 10, rate);
    assert!(expected[9].loss < 0.99 * expected[0].loss, "{expected:?}");
    for &place in places {
        let found = run(&plain(place, make()), 0, 10, rate);
        check_same(&format!("{place:?}"), &found, &expected);
    }
}

#[test]
fn adafactor_is_independent_of_placement() {
    // Everything it can reduce over devices. The epsilon keeps it from making steps of rounding
    // errors, which are the only gradient of key biases.
    let adafactor = Adafactor {
        step_size: StepSize::LearningRate,
        epsilon: 1e-12,
        beta1: Some(0.5),
        weight_decay: 0.1,
        ..Adafactor::paper()
    };
    let places = [(2, true, true), (4, false, true), (8, false, true), (8, true, true)];
    check_optimizer(|| Box::new(adafactor), 0.05, &places);
}

#[test]
fn sgd_is_independent_of_placement() {
    let sgd = Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.1, ..Sgd::default() };
    let places = [(2, true, true), (4, false, false), (8, false, true)];
    check_optimizer(|| Box::new(sgd), 0.05, &places);
}
