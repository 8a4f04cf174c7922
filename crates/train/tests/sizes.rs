//! Sizes of a run's state, compared with figures computed by hand.
#![allow(clippy::unwrap_used)]

use fullshard_models::from_json;
use fullshard_optim::AdamW;
use fullshard_parallel::{FsdpConfig, Placement, PlacementOptions, WrapPolicy};
use fullshard_step::{BatchShape, StepSpec};

/// A block has 12·8² + 13·8 = 872 elements, the root 1024·8 + 16·8 + 2·8 = 8336.
const CONFIG: &str = r#"{"model_type": "gpt2", "vocab_size": 1024, "n_positions": 16, "n_embd": 8,
    "n_layer": 3, "n_head": 2}"#;
const ROOT: u64 = 8336;
const BLOCK: u64 = 872;

fn spec(devices: usize, settings: &str, change: impl FnOnce(&mut PlacementOptions)) -> StepSpec {
    let config = format!(
        r#"{{"transformer_layer_cls_to_wrap": "GPT2Block", "xla_fsdp_settings": {settings}}}"#
    );
    let config = FsdpConfig::from_json(&config).unwrap();
    let mut options = PlacementOptions { config, scan_layers: true, ..PlacementOptions::default() };
    let batch =
        BatchShape { sequences: 8, tokens: 16, accumulation: 1, sync_each_microbatch: true };
    change(&mut options);
    let model = from_json(CONFIG).unwrap();
    let placement = Placement::new(&model.tree(), devices, &options).unwrap();
    StepSpec::new(model, placement, Box::new(AdamW::default()), batch, None).unwrap()
}

#[test]
fn state_bytes_are_exact() {
    let elements = ROOT + 3 * BLOCK;
    let one = spec(1, "{}", |_| {});
    assert_eq!(one.parameter_count() as u64, elements);
    let state = one.state_bytes().unwrap();
    assert_eq!(state.parameters, 4 * elements);
    assert_eq!(state.optimizer, 8 * elements);
    assert_eq!(state.gradients, 4 * elements);
    // Dim 0 of every parameter is divisible by two, so that no device has padding.
    let two = spec(2, r#"{"shard_param_on_dim_0": true}"#, |_| {}).state_bytes().unwrap();
    assert_eq!((two.parameters, two.optimizer), (2 * elements, 4 * elements));
}

#[test]
fn frozen_parameters_have_neither_gradients_nor_state() {
    let spec = spec(1, "{}", |options| options.frozen = vec!["transformer.h.*".into()]);
    assert_eq!(spec.trained_count() as u64, ROOT);
    let state = spec.state_bytes().unwrap();
    assert_eq!(state.parameters, 4 * (ROOT + 3 * BLOCK));
    assert_eq!((state.gradients, state.optimizer), (4 * ROOT, 8 * ROOT));
}

/// The root then owns the scanned layers, and has them all at once.
#[test]
fn a_unit_around_the_scan_has_all_layers() {
    let spec = spec(2, "{}", |options| options.config.wrap = WrapPolicy::Root);
    let elements = ROOT + 3 * BLOCK;
    let rows = spec.unit_rows();
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].count, rows[0].elements), (1, elements));
    assert_eq!(rows[0].shard_bytes, spec.state_bytes().unwrap().parameters);
}

#[test]
fn rows_match_the_units() {
    let rows = spec(2, "{}", |_| {}).unit_rows();
    let shown: Vec<_> =
        rows.iter().map(|row| (row.path.as_str(), row.class, row.count, row.elements)).collect();
    let root = ("", "GPT2LMHeadModel", 1, ROOT);
    assert_eq!(shown, [root, ("transformer.h.*", "GPT2Block", 3, BLOCK)]);
    assert_eq!(
        (rows[1].unsharded_bytes, rows[0].reshard, rows[1].reshard),
        (4 * BLOCK, false, true)
    );
    // Flat shards are padded to multiples of 128 elements.
    assert!(rows[1].shard_bytes >= 2 * BLOCK && rows[1].shard_bytes.is_multiple_of(4 * 128));
}
