//! Every strategy on every mesh gives the losses and gradient norms of one device.
//!
//! Ten steps, as in `mesh.rs`, on meshes with one, two and three axes, one of uneven sizes. Every
//! pair of choices appears in some case; most cases are of the long tier.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use fullshard_core::Platform;
use fullshard_optim::{Adafactor, AdamW, Optimizer, Sgd};
use fullshard_parallel::{
    FsdpConfig, MeshSpec, Placement, PlacementOptions, Remat, Rules, Settings, Staging,
};
use fullshard_step::{BatchShape, StepSpec, dialect};
use fullshard_train::{Metrics, Runner};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// No dimension is a multiple of the devices.
const GPT2: &str = r#"{"model_type": "gpt2", "vocab_size": 131, "n_positions": 20, "n_embd": 21,
    "n_layer": 2, "n_head": 3, "n_inner": 37, "resid_pdrop": 0.1, "embd_pdrop": 0,
    "attn_pdrop": 0}"#;
const LLAMA: &str = r#"{"model_type": "llama", "vocab_size": 1031, "max_position_embeddings": 20,
    "hidden_size": 18, "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1,
    "intermediate_size": 29, "tie_word_embeddings": false}"#;
const STEPS: usize = 10;

/// The options with their choices; a case has one of each.
const CHOICES: [(&str, &[&str]); 9] = [
    ("model", &["gpt2", "llama"]),
    ("mesh", &["fsdp_8", "data_2_fsdp_4", "fsdp_4_data_2", "data_3_fsdp_2", "a_2_b_2_fsdp_2"]),
    (
        "strategy",
        &[
            "full_shard",
            "shard_grad_op",
            "weight_update",
            "hybrid_shard",
            "hybrid_shard_zero2",
            "no_shard",
        ],
    ),
    ("collective", &["flat", "axes", "rotated", "hierarchical"]),
    ("layout", &["flat", "dim_0", "coalesced", "flattened"]),
    ("layers", &["unrolled", "scanned"]),
    ("remat", &["none", "full"]),
    ("batches", &["one", "two", "no_sync"]),
    ("optimizer", &["adamw", "adafactor", "sgd"]),
];

/// A case: one choice per option.
type Case = [&'static str; CHOICES.len()];

macro_rules! cases {
    ($($(#[$tier:meta])? $name:ident: [$($choice:tt)*];)*) => {
        const CASES: &[Case] = &[$([$(stringify!($choice)),*]),*];

        $(
            #[test]
            $(#[$tier])?
            fn $name() {
                check([$(stringify!($choice)),*]);
            }
        )*
    };
}

#[rustfmt::skip]
cases! {
    // model, mesh, strategy, collective, layout, layers, remat, batches, optimizer
    gpt2_fsdp_8_full_shard_flat_flat_unrolled:                              [gpt2  fsdp_8         full_shard         flat         flat      unrolled none one     adamw];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_fsdp_8_weight_update_rotated_flat_unrolled:                   [gpt2  fsdp_8         weight_update      rotated      flat      unrolled none two     adafactor];
    gpt2_fsdp_8_hybrid_shard_zero2_axes_coalesced_unrolled:                 [gpt2  fsdp_8         hybrid_shard_zero2 axes         coalesced unrolled full no_sync sgd];
    gpt2_fsdp_4_data_2_hybrid_shard_rotated_flattened_scanned:              [gpt2  fsdp_4_data_2  hybrid_shard       rotated      flattened scanned  full one     adafactor];
    gpt2_data_3_fsdp_2_shard_grad_op_hierarchical_coalesced_unrolled:       [gpt2  data_3_fsdp_2  shard_grad_op      hierarchical coalesced unrolled none one     adafactor];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_data_3_fsdp_2_no_shard_flat_flat_unrolled:                    [gpt2  data_3_fsdp_2  no_shard           flat         flat      unrolled none one     adamw];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_a_2_b_2_fsdp_2_hybrid_shard_axes_flat_unrolled:               [gpt2  a_2_b_2_fsdp_2 hybrid_shard       axes         flat      unrolled none no_sync adamw];
    #[ignore = "long: all pairs of settings"]
    long_llama_data_2_fsdp_4_full_shard_flat_coalesced_scanned:             [llama data_2_fsdp_4  full_shard         flat         coalesced scanned  none no_sync adafactor];
    llama_data_2_fsdp_4_shard_grad_op_axes_dim_0_unrolled:                  [llama data_2_fsdp_4  shard_grad_op      axes         dim_0     unrolled full two     adafactor];
    llama_data_3_fsdp_2_hybrid_shard_zero2_rotated_dim_0_scanned:           [llama data_3_fsdp_2  hybrid_shard_zero2 rotated      dim_0     scanned  none no_sync adamw];
    llama_a_2_b_2_fsdp_2_weight_update_hierarchical_coalesced_scanned:      [llama a_2_b_2_fsdp_2 weight_update      hierarchical coalesced scanned  none no_sync sgd];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_fsdp_8_shard_grad_op_rotated_flat_unrolled:                   [gpt2  fsdp_8         shard_grad_op      rotated      flat      unrolled none one     adamw];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_fsdp_8_hybrid_shard_hierarchical_dim_0_unrolled:              [gpt2  fsdp_8         hybrid_shard       hierarchical dim_0     unrolled none one     adamw];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_data_2_fsdp_4_full_shard_hierarchical_flattened_unrolled:     [gpt2  data_2_fsdp_4  full_shard         hierarchical flattened unrolled full one     sgd];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_data_2_fsdp_4_weight_update_axes_flattened_unrolled:          [gpt2  data_2_fsdp_4  weight_update      axes         flattened unrolled none one     adamw];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_data_2_fsdp_4_hybrid_shard_flat_flat_unrolled:                [gpt2  data_2_fsdp_4  hybrid_shard       flat         flat      unrolled none one     adamw];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_data_2_fsdp_4_hybrid_shard_zero2_flat_flat_unrolled:          [gpt2  data_2_fsdp_4  hybrid_shard_zero2 flat         flat      unrolled none one     adamw];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_data_2_fsdp_4_no_shard_rotated_flat_unrolled:                 [gpt2  data_2_fsdp_4  no_shard           rotated      flat      unrolled none one     adamw];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_fsdp_4_data_2_full_shard_axes_flat_unrolled:                  [gpt2  fsdp_4_data_2  full_shard         axes         flat      unrolled none one     adamw];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_fsdp_4_data_2_weight_update_flat_dim_0_unrolled:              [gpt2  fsdp_4_data_2  weight_update      flat         dim_0     unrolled full one     adamw];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_fsdp_4_data_2_hybrid_shard_zero2_hierarchical_flat_unrolled:  [gpt2  fsdp_4_data_2  hybrid_shard_zero2 hierarchical flat      unrolled none two     adafactor];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_fsdp_4_data_2_no_shard_axes_coalesced_unrolled:               [gpt2  fsdp_4_data_2  no_shard           axes         coalesced unrolled none no_sync adamw];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_data_3_fsdp_2_full_shard_flat_flat_unrolled:                  [gpt2  data_3_fsdp_2  full_shard         flat         flat      unrolled none one     adamw];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_data_3_fsdp_2_shard_grad_op_axes_flattened_unrolled:          [gpt2  data_3_fsdp_2  shard_grad_op      axes         flattened unrolled full no_sync adamw];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_data_3_fsdp_2_weight_update_flat_flat_unrolled:               [gpt2  data_3_fsdp_2  weight_update      flat         flat      unrolled none one     adamw];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_a_2_b_2_fsdp_2_full_shard_rotated_dim_0_unrolled:             [gpt2  a_2_b_2_fsdp_2 full_shard         rotated      dim_0     unrolled none two     adamw];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_a_2_b_2_fsdp_2_shard_grad_op_flat_flattened_unrolled:         [gpt2  a_2_b_2_fsdp_2 shard_grad_op      flat         flattened unrolled none one     adamw];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_a_2_b_2_fsdp_2_hybrid_shard_zero2_flat_flattened_unrolled:    [gpt2  a_2_b_2_fsdp_2 hybrid_shard_zero2 flat         flattened unrolled none one     adamw];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_a_2_b_2_fsdp_2_no_shard_flat_dim_0_unrolled:                  [gpt2  a_2_b_2_fsdp_2 no_shard           flat         dim_0     unrolled none one     sgd];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_a_2_b_2_fsdp_2_no_shard_hierarchical_flat_unrolled:           [gpt2  a_2_b_2_fsdp_2 no_shard           hierarchical flat      unrolled full two     adafactor];
    #[ignore = "long: all pairs of settings"]
    long_llama_fsdp_8_no_shard_flat_flattened_scanned:                      [llama fsdp_8         no_shard           flat         flattened scanned  none two     adamw];
    #[ignore = "long: all pairs of settings"]
    long_llama_fsdp_4_data_2_shard_grad_op_axes_flat_scanned:               [llama fsdp_4_data_2  shard_grad_op      axes         flat      scanned  none one     sgd];
    #[ignore = "long: all pairs of settings"]
    long_llama_data_3_fsdp_2_hybrid_shard_rotated_coalesced_unrolled:       [llama data_3_fsdp_2  hybrid_shard       rotated      coalesced unrolled none two     sgd];
}

/// Every two choices of different options appear together in some case.
#[test]
fn every_pair_of_choices_has_a_case() {
    check_pairs(&CHOICES, CASES);
}

fn choice(case: &Case, name: &str) -> &'static str {
    case[CHOICES.iter().position(|(known, _)| *known == name).unwrap()]
}

fn options(case: &Case) -> PlacementOptions {
    let layout = choice(case, "layout");
    let settings = Settings {
        shard_param_on_dim_0: layout == "dim_0",
        flatten_parameters: layout == "flattened",
        coalesce_all_gather_ops: layout == "coalesced",
        ..Settings::default()
    };
    let staging = match choice(case, "collective") {
        "axes" => Staging::Axes,
        "rotated" => Staging::Rotated,
        "hierarchical" => Staging::Hierarchical,
        _ => Staging::Flat,
    };
    PlacementOptions {
        strategy: choice(case, "strategy").parse().unwrap(),
        staging,
        gather_staging: staging,
        config: FsdpConfig { settings, ..FsdpConfig::default() },
        remat: Some(if choice(case, "remat") == "full" { Remat::Full } else { Remat::None }),
        scan_layers: choice(case, "layers") == "scanned",
        dialect: dialect(Platform::Cpu),
        ..PlacementOptions::default()
    }
}

fn optimizer(case: &Case) -> Box<dyn Optimizer> {
    match choice(case, "optimizer") {
        "adafactor" => Box::new(Adafactor::trainer()),
        "sgd" => {
            Box::new(Sgd { momentum: 0.9, dampening: 0.0, nesterov: false, weight_decay: 0.0 })
        }
        _ => Box::new(AdamW::default()),
    }
}

/// Sequences that six and eight devices can share.
fn batch(case: &Case) -> BatchShape {
    let accumulation = if choice(case, "batches") == "one" { 1 } else { 2 };
    let sync_each_microbatch = choice(case, "batches") != "no_sync";
    BatchShape { sequences: 48 / accumulation, tokens: 11, accumulation, sync_each_microbatch }
}

fn trained(spec: &StepSpec) -> Vec<Metrics> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let compiler = compiler(spec.placement.devices());
    let mut runner =
        Runner::with_parameters(&compiler, spec, 42, |param| Ok(numbers(param))).unwrap();
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let step = |step: usize| {
        let tokens = tokens(spec.batch, spec.model.dimensions().vocabulary, step % 3);
        runner.step(&[&tokens, &tokens], 1e-3).unwrap().wait().unwrap()
    };
    (0..STEPS).map(step).collect()
}

fn spec_of(case: &Case, mesh: &MeshSpec, options: &PlacementOptions) -> StepSpec {
    let model = model(if choice(case, "model") == "gpt2" { GPT2 } else { LLAMA });
    let mesh = mesh.resolve(mesh.devices().unwrap()).unwrap();
    let placement = Placement::on_mesh(&model.tree(), &mesh, options).unwrap();
    StepSpec::new(model, placement, optimizer(case), batch(case), Some(1.0)).unwrap()
}

/// The same model, batches and optimizer on one device, unrolled. Dropout draws one mask per
/// microbatch, so accumulation is the case's own.
fn one_device(case: &Case) -> Vec<Metrics> {
    static RUNS: Mutex<Option<HashMap<String, Vec<Metrics>>>> = Mutex::new(None);
    let key = format!("{} {:?} {}", choice(case, "model"), batch(case), choice(case, "optimizer"));
    let mut runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
    let run = || trained(&spec_of(case, &mesh("fsdp_1"), &PlacementOptions::default()));
    runs.get_or_insert_default().entry(key).or_insert_with(run).clone()
}

fn check(case: Case) {
    let expected = one_device(&case);
    let found = trained(&spec_of(&case, &mesh(choice(&case, "mesh")), &options(&case)));
    compare(&case, &found, &expected);
}

/// Rules with names shard weights on any dim, here each on its own axis.
#[test]
fn named_dims_are_sharded_over_their_axes() {
    const MODEL: &str = r#"{"model_type": "gpt2", "vocab_size": 132, "n_positions": 20,
        "n_embd": 24, "n_layer": 2, "n_head": 3, "n_inner": 40, "resid_pdrop": 0,
        "embd_pdrop": 0, "attn_pdrop": 0}"#;
    let rules = serde_json::json!({
        "activations": [["batch", ["data", "fsdp"]]],
        "parameters": [["norm", []], ["mlp", "fsdp"], ["vocab", "data"], ["embed", ["fsdp", "data"]],
                       ["dim_0", "*"]],
    });
    let rules: Rules = serde_json::from_value(rules).unwrap();
    for optimizer in ["adamw", "adafactor"] {
        let mut case: Case = CASES[0];
        case[CHOICES.len() - 1] = optimizer;
        let spec_on = |mesh: &str, rules: Option<Rules>| {
            let (model, options) = (model(MODEL), options(&case));
            let options = PlacementOptions { rules, ..options };
            let mesh = self::mesh(mesh).resolve(self::mesh(mesh).devices().unwrap()).unwrap();
            let placement = Placement::on_mesh(&model.tree(), &mesh, &options).unwrap();
            StepSpec::new(model, placement, self::optimizer(&case), batch(&case), Some(1.0))
                .unwrap()
        };
        let spec = spec_on("data_2_fsdp_4", Some(rules.clone()));
        let table = spec.placement.table();
        for row in [
            "wte.weight  dim 0 over data",
            "c_fc.weight  dim 1 over fsdp",
            "ln_1.weight  replicated",
        ] {
            let columns = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(columns(&table).contains(&columns(row)), "{row} in\n{table}");
        }
        compare(&case, &trained(&spec), &trained(&spec_on("fsdp_1", None)));
    }
}
