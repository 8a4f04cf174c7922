//! Estimates against figures worked out by hand.
#![allow(clippy::unwrap_used)]

use fullshard_models::from_json;
use fullshard_optim::AdamW;
use fullshard_parallel::{FsdpConfig, Options, Placement, Remat, Strategy, WrapPolicy};
use fullshard_train::{Batch, Recipe};

/// A block has 12·8² + 13·8 = 872 elements, the root 1024·8 + 16·8 + 2·8 = 8336.
const CONFIG: &str = r#"{"model_type": "gpt2", "vocab_size": 1024, "n_positions": 16, "n_embd": 8,
    "n_layer": 3, "n_head": 2}"#;
const ROOT: u64 = 8336;
const BLOCK: u64 = 872;

fn recipe(devices: usize, settings: &str, change: impl FnOnce(&mut Options, &mut Batch)) -> Recipe {
    let config = format!(
        r#"{{"transformer_layer_cls_to_wrap": "GPT2Block", "xla_fsdp_settings": {settings}}}"#
    );
    let config = FsdpConfig::from_json(&config).unwrap();
    let mut options = Options { config, scan_layers: true, ..Options::default() };
    let mut batch = Batch { sequences: 8, tokens: 16, accumulation: 1, reduce_each: true };
    change(&mut options, &mut batch);
    let model = from_json(CONFIG).unwrap();
    let placement = Placement::new(&model.tree(), devices, &options).unwrap();
    Recipe::new(model, placement, Box::new(AdamW::default()), batch, None).unwrap()
}

#[test]
fn the_state_is_exact() {
    let elements = ROOT + 3 * BLOCK;
    let one = recipe(1, "{}", |_, _| {});
    assert_eq!(one.parameter_count() as u64, elements);
    let estimate = one.estimate().unwrap();
    assert_eq!(estimate.parameters, 4 * elements);
    assert_eq!(estimate.optimizer, 8 * elements);
    assert_eq!(estimate.gradients, 4 * elements);
    assert_eq!(estimate.gathered, 0);
    // Rows of every parameter divide by two, so that no device has padding.
    let two = recipe(2, r#"{"shard_param_on_dim_0": true}"#, |_, _| {}).estimate().unwrap();
    assert_eq!((two.parameters, two.optimizer), (2 * elements, 4 * elements));
}

#[test]
fn frozen_parameters_have_neither_gradients_nor_state() {
    let recipe = recipe(1, "{}", |options, _| options.frozen = vec!["transformer.h.*".into()]);
    assert_eq!(recipe.trained_count() as u64, ROOT);
    let estimate = recipe.estimate().unwrap();
    assert_eq!(estimate.parameters, 4 * (ROOT + 3 * BLOCK));
    assert_eq!((estimate.gradients, estimate.optimizer), (4 * ROOT, 8 * ROOT));
}

#[test]
fn units_are_whole_as_long_as_they_are_kept() {
    let gathered = |settings: &str, change: fn(&mut Options, &mut Batch)| {
        recipe(2, settings, change).estimate().unwrap().gathered
    };
    // Parameters and gradients of the root and of one block.
    assert_eq!(gathered("{}", |_, _| {}), 2 * 4 * (ROOT + BLOCK));
    let half = gathered(r#"{"compute_dtype": "bfloat16"}"#, |_, _| {});
    assert_eq!(half, 2 * 2 * (ROOT + BLOCK));
    let ahead = gathered("{}", |options, _| options.gather_ahead = true);
    assert_eq!(ahead, 2 * 4 * (ROOT + BLOCK) + 4 * BLOCK);
    let kept = gathered(r#"{"reshard_after_forward": false}"#, |_, _| {});
    assert_eq!(kept, 4 * (ROOT + 3 * BLOCK) + 4 * (ROOT + BLOCK));
    let once = gathered("{}", |_, batch| {
        batch.accumulation = 2;
        batch.reduce_each = false;
    });
    assert_eq!(once, 2 * 4 * (ROOT + 3 * BLOCK));
}

#[test]
fn what_is_whole_anyway_is_not_gathered() {
    let gathered = |devices, settings: &str, change: fn(&mut Options)| {
        let recipe = recipe(devices, settings, |options, _| change(options));
        recipe.estimate().unwrap().gathered
    };
    let no_shard = |options: &mut Options| options.strategy = Strategy::NoShard;
    assert_eq!(gathered(2, "{}", no_shard), 0);
    // What is stored is not what is computed with, and of that nothing is let go.
    let half = r#"{"compute_dtype": "bfloat16"}"#;
    let all_and_gradients = 2 * (ROOT + 3 * BLOCK) + 2 * (ROOT + BLOCK);
    assert_eq!(gathered(2, half, no_shard), all_and_gradients);
    assert_eq!(gathered(1, half, |_| {}), all_and_gradients);
    let again = gathered(1, half, |options| options.remat = Some(Remat::Full));
    assert_eq!(again, 2 * 2 * (ROOT + BLOCK));
}

/// The root then owns the layers of the loop, and has them all at once.
#[test]
fn a_unit_around_the_loop_has_all_layers() {
    let recipe = recipe(2, "{}", |options, _| options.config.wrap = WrapPolicy::None);
    let elements = ROOT + 3 * BLOCK;
    let rows = recipe.unit_rows();
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].count, rows[0].elements), (1, elements));
    let estimate = recipe.estimate().unwrap();
    assert_eq!(rows[0].part_bytes, estimate.parameters);
    assert_eq!(estimate.gathered, 2 * 4 * elements);
}

/// Tokens on a device at once: 8·16/2 = 64. A block's products take 8 + 8 + 8 + 32 and give
/// 24 + 8 + 32 + 8 a token; attention gives 8, from probabilities of 2·16 in `f32`, twice.
#[test]
fn activations_follow_what_is_remembered() {
    let estimate = |remat, settings: &str| {
        recipe(2, settings, |options, _| options.remat = Some(remat)).estimate().unwrap()
    };
    let input = 64 * 8 * 4;
    let dots = 64 * (72 + 8) * 4 + 64 * 2 * 16 * 2 * 4;
    let all = dots + 64 * (56 + 72) * 4;
    let of = |remat| estimate(remat, "{}").activations;
    assert_eq!(of(Remat::Full), 3 * input + all);
    assert_eq!(of(Remat::Dots), 3 * (input + dots) + all);
    assert_eq!(of(Remat::None), 3 * (input + all) + all);
    let logits = estimate(Remat::Full, "{}").logits;
    // And the gradient of a head of 1024·8, which the chunks add to.
    assert_eq!(logits, 2 * 64 * 1024 * 4 + 1024 * 8 * 4);
}

#[test]
fn rows_are_the_units() {
    let rows = recipe(2, "{}", |_, _| {}).unit_rows();
    let shown: Vec<_> =
        rows.iter().map(|row| (row.path.as_str(), row.class, row.count, row.elements)).collect();
    let root = ("", "GPT2LMHeadModel", 1, ROOT);
    assert_eq!(shown, [root, ("transformer.h.*", "GPT2Block", 3, BLOCK)]);
    assert_eq!((rows[1].whole_bytes, rows[0].reshard, rows[1].reshard), (4 * BLOCK, false, true));
    // Flat parts are padded to multiples of 128 elements.
    assert!(rows[1].part_bytes >= 2 * BLOCK && rows[1].part_bytes.is_multiple_of(4 * 128));
}
