//! Reductions around rings of permutes: training as on one device, with the permutes that the
//! placement lists and without reduce-scatters of large gradients.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use fullshard_core::CollectiveKind;
use fullshard_optim::{Adafactor, Sgd};
use fullshard_parallel::{
    FsdpConfig, GatherAhead, Placement, PlacementOptions, Settings, Staging, Strategy,
};
use fullshard_pjrt::hlo::{collective, runs_per_launch};
use fullshard_step::{BatchShape, StepSpec};
use fullshard_train::Metrics;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// Weights of the feed-forward layers and the embedding go around rings, smaller ones do not.
const MODEL: &str = r#"{"model_type": "gpt2", "vocab_size": 1024, "n_positions": 8, "n_embd": 128,
    "n_layer": 3, "n_head": 2, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}"#;
/// The same with grouped keys and values.
const LLAMA: &str = r#"{"model_type": "llama", "vocab_size": 1024, "max_position_embeddings": 8,
    "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 512, "tie_word_embeddings": false}"#;
/// All large weights split in two.
const WIDE: &str = r#"{"model_type": "gpt2", "vocab_size": 1024, "n_positions": 8, "n_embd": 256,
    "n_layer": 2, "n_head": 2, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}"#;
/// Vectors of all layers together that are as large as what goes around rings.
const DEEP: &str = r#"{"model_type": "gpt2", "vocab_size": 1024, "n_positions": 8, "n_embd": 256,
    "n_layer": 64, "n_head": 2, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}"#;
const BATCH: BatchShape =
    BatchShape { sequences: 24, tokens: 8, accumulation: 1, sync_each_microbatch: true };
const STEPS: usize = 3;

fn spec_on(config: &str, mesh: &str, dim_0: bool, options: PlacementOptions) -> StepSpec {
    let settings = Settings { shard_param_on_dim_0: dim_0, ..Settings::default() };
    let (model, mesh) = (model(config), self::mesh(mesh));
    let config = FsdpConfig { settings, ..FsdpConfig::default() };
    let mesh = mesh.resolve(mesh.devices().unwrap()).unwrap();
    let options = PlacementOptions { config, scan_layers: true, ..options };
    let placement = Placement::on_mesh(&model.tree(), &mesh, &options).unwrap();
    StepSpec::new(model, placement, Box::new(Sgd::default()), BATCH, Some(1.0)).unwrap()
}

fn ring(config: &str, mesh: &str, dim_0: bool, gather_ahead: GatherAhead) -> StepSpec {
    let options = PlacementOptions { staging: Staging::Ring, gather_ahead, ..Default::default() };
    spec_on(config, mesh, dim_0, options)
}

fn check(config: &str, mesh: &str, dim_0: bool, ahead: GatherAhead, strategy: Strategy) {
    static ONE: [OnceLock<Vec<Metrics>>; 2] = [const { OnceLock::new() }; 2];
    let one = ONE[usize::from(config == LLAMA)].get_or_init(|| {
        train(&spec_on(config, "fsdp_1", false, PlacementOptions::default()), STEPS)
    });
    let options = PlacementOptions {
        staging: Staging::Ring,
        gather_ahead: ahead,
        strategy,
        ..Default::default()
    };
    compare(&[mesh], &train(&spec_on(config, mesh, dim_0, options), STEPS), one);
}

macro_rules! cases {
    ($($name:ident: $model:ident $mesh:ident $dim_0:literal $ahead:ident $strategy:ident;)*) => {
        $(
            #[test]
            fn $name() {
                let (ahead, strategy) = (GatherAhead::$ahead, Strategy::$strategy);
                check($model, stringify!($mesh), $dim_0, ahead, strategy);
            }
        )*
    };
}

cases! {
    one_ring_of_eight_trains_as_one_device: MODEL fsdp_8            true  Layer   FullShard;
    flat_shards_train_as_one_device:        MODEL fsdp_4            false Nothing FullShard;
    an_odd_ring_trains_as_one_device:       MODEL fsdp_3            false Vectors FullShard;
    two_rings_train_as_one_device:          MODEL data_2_fsdp_4     true  Vectors FullShard;
    three_pairs_train_as_one_device:        MODEL a_2_b_2_fsdp_2    true  Layer   FullShard;
    llama_trains_as_one_device:             LLAMA data_2_fsdp_4     true  Vectors FullShard;
    replicas_train_as_one_device:           MODEL data_2_a_2_fsdp_2 true  Vectors HybridShard;
    a_tensor_axis_trains_as_one_device:     LLAMA fsdp_4_tensor_2   true  Vectors FullShard;
    a_context_axis_trains_as_one_device:    MODEL fsdp_4_context_2  true  Vectors FullShard;
}

/// The number of permutes and reduce-scatters by their bytes.
type Counts = BTreeMap<(CollectiveKind, u64), u64>;

/// Compares the collectives of a program with those that its placement lists, and returns them.
fn check_listed(config: &str, ahead: GatherAhead) -> Counts {
    let kinds = [
        CollectiveKind::CollectivePermute,
        CollectiveKind::ReduceScatter,
        CollectiveKind::AllGather,
    ];
    let spec = ring(config, "data_2_fsdp_4", true, ahead);
    let (module, _) = compile(&spec);
    let runs = runs_per_launch(&module);
    let (mut found, mut listed) = (Counts::new(), Counts::new());
    for instruction in module.instructions().filter(|it| it.collective_kind().is_some()) {
        let it = collective(&module, instruction).unwrap();
        *found.entry((it.kind, it.bytes.unwrap())).or_default() +=
            runs.count(instruction.computation).unwrap();
    }
    // The backward pass gathers no vectors that it does not need.
    let is_compared = |&(kind, bytes): &(CollectiveKind, u64)| {
        kinds.contains(&kind) && (kind != CollectiveKind::AllGather || bytes >= 1 << 16)
    };
    found.retain(|key, _| is_compared(key));
    for it in spec.placement.collectives() {
        *listed.entry((it.kind, it.bytes as u64)).or_default() += it.count as u64;
    }
    listed.retain(|key, _| is_compared(key));
    assert!(listed.contains_key(&(CollectiveKind::CollectivePermute, 4 * 32 * 512)), "{listed:?}");
    // Queries, keys and values are gathered one after another.
    assert!(listed.contains_key(&(CollectiveKind::AllGather, 4 * 256 * 256)), "{listed:?}");
    assert_eq!(found, listed);
    found
}

#[test]
fn a_step_has_the_listed_collectives() {
    check_listed(WIDE, GatherAhead::Nothing);
}

#[test]
fn vectors_are_gathered_for_all_layers_at_once() {
    check_listed(WIDE, GatherAhead::Vectors);
}

#[test]
fn vectors_of_many_layers_go_around_no_ring() {
    let found = check_listed(DEEP, GatherAhead::Vectors);
    assert_eq!(found[&(CollectiveKind::ReduceScatter, 4 * 64 * 1024)], 1);
}

#[test]
fn layers_are_gathered_ahead() {
    check_listed(WIDE, GatherAhead::Layer);
}

/// Each parameter is sharded with another axis first; the statistics of optimizers follow.
#[test]
fn factored_statistics_follow_the_order_of_axes() {
    let train = |mesh: &str, staging| {
        let options = PlacementOptions { staging, ..Default::default() };
        let spec = spec_on(WIDE, mesh, true, options);
        let (placement, model) = (spec.placement, spec.model);
        let mut orders: Vec<_> = placement.parameters.iter().map(|it| it.axes.clone()).collect();
        orders.sort();
        orders.dedup();
        let adafactor = Box::new(Adafactor::trainer());
        let spec = StepSpec::new(model, placement, adafactor, BATCH, Some(1.0)).unwrap();
        (train(&spec, STEPS), orders.len())
    };
    let (found, orders) = train("a_2_b_2_fsdp_2", Staging::Ring);
    assert!(orders >= 3, "{orders} orders of axes");
    compare(&["a_2_b_2_fsdp_2"], &found, &train("fsdp_1", Staging::Flat).0);
}
