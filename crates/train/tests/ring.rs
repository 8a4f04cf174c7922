//! Reductions around rings of permutes: training as on one device, with the permutes that the
//! placement lists and without reduce-scatters of large gradients.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use fullshard_core::CollectiveKind;
use fullshard_optim::Sgd;
use fullshard_parallel::{FsdpConfig, Placement, PlacementOptions, Settings, Staging};
use fullshard_pjrt::hlo::{collective, runs_per_launch};
use fullshard_step::{BatchShape, StepSpec};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Weights of the feed-forward layers and the embedding go around rings, smaller ones do not.
const MODEL: &str = r#"{"model_type": "gpt2", "vocab_size": 1024, "n_positions": 8, "n_embd": 128,
    "n_layer": 3, "n_head": 2, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}"#;
/// All large weights split in two.
const WIDE: &str = r#"{"model_type": "gpt2", "vocab_size": 1024, "n_positions": 8, "n_embd": 256,
    "n_layer": 2, "n_head": 2, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}"#;
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

fn ring(config: &str, mesh: &str, dim_0: bool, gather_ahead: bool) -> StepSpec {
    let options = PlacementOptions { staging: Staging::Ring, gather_ahead, ..Default::default() };
    spec_on(config, mesh, dim_0, options)
}

fn check(mesh: &str, dim_0: bool, gather_ahead: bool) {
    static ONE: LazyLock<Vec<fullshard_train::Metrics>> = LazyLock::new(|| {
        train(&spec_on(MODEL, "fsdp_1", false, PlacementOptions::default()), STEPS)
    });
    compare(&[mesh], &train(&ring(MODEL, mesh, dim_0, gather_ahead), STEPS), &ONE);
}

macro_rules! cases {
    ($($name:ident: $mesh:ident $dim_0:literal $ahead:literal;)*) => {
        $(
            #[test]
            fn $name() {
                check(stringify!($mesh), $dim_0, $ahead);
            }
        )*
    };
}

cases! {
    one_ring_of_eight_trains_as_one_device:        fsdp_8         true  true;
    flat_shards_train_as_one_device:               fsdp_4         false false;
    an_odd_ring_trains_as_one_device:              fsdp_3         false true;
    two_rings_train_as_one_device:                 data_2_fsdp_4  true  false;
    three_pairs_train_as_one_device:               a_2_b_2_fsdp_2 true  true;
}

/// The number of permutes and reduce-scatters by their bytes.
type Counts = BTreeMap<(CollectiveKind, u64), u64>;

#[test]
fn large_gradients_have_the_listed_permutes() {
    let kinds = [CollectiveKind::CollectivePermute, CollectiveKind::ReduceScatter];
    let spec = ring(WIDE, "data_2_fsdp_4", true, false);
    let (module, _) = compile(&spec);
    let runs = runs_per_launch(&module);
    let (mut found, mut listed) = (Counts::new(), Counts::new());
    for instruction in module.instructions().filter(|it| it.collective_kind().is_some()) {
        let it = collective(&module, instruction).unwrap();
        *found.entry((it.kind, it.bytes.unwrap())).or_default() +=
            runs.count(instruction.computation).unwrap();
    }
    found.retain(|(kind, _), _| kinds.contains(kind));
    for it in spec.placement.collectives().iter().filter(|it| kinds.contains(&it.kind)) {
        *listed.entry((it.kind, it.bytes as u64)).or_default() += it.count as u64;
    }
    assert!(listed.contains_key(&(CollectiveKind::CollectivePermute, 4 * 32 * 512)), "{listed:?}");
    assert_eq!(found, listed);
}
