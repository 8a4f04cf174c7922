//! What each strategy compiles to: on meshes with several axes, the collectives that the placement
//! lists, over the devices of its axes; with weight-update sharding, an update of 1/N per device.
//!
//! Layers are scanned and units packed, as in `compiled.rs`, which is about one axis.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use fullshard_optim::{Optimizer, Sgd};
use fullshard_parallel::{
    FsdpConfig, MeshSpec, Placement, PlacementOptions, Settings, Staging, Strategy,
};
use fullshard_pjrt::hlo::{CollectiveKind, Members, Module, collective, runs_per_launch};
use fullshard_plan::update_bytes;
use fullshard_step::{BatchShape, StepSpec};
use std::collections::BTreeMap;

/// No size is a multiple of the devices. The embedding is large enough for a sum in stages.
const MODEL: &str = r#"{"model_type": "gpt2", "vocab_size": 1031, "n_positions": 20, "n_embd": 21,
    "n_layer": 3, "n_head": 3, "n_inner": 37, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}"#;
const BATCH: BatchShape =
    BatchShape { sequences: 8, tokens: 5, accumulation: 1, sync_each_microbatch: true };
const TWO: &str = "data=2,fsdp=4";
const THREE: &str = "a=2,b=2,fsdp=2";

/// The number of collectives by kind, bytes and the devices of their first group. Of all-reduces,
/// which the compiler combines, there is one number per group: their bytes.
type Counts = BTreeMap<(CollectiveKind, u64, Vec<usize>), u64>;

fn add(counts: &mut Counts, kind: CollectiveKind, bytes: u64, group: Vec<usize>, times: u64) {
    match kind {
        CollectiveKind::AllReduce => *counts.entry((kind, 0, group)).or_default() += bytes * times,
        _ => *counts.entry((kind, bytes, group)).or_default() += times,
    }
}

fn found(module: &Module, devices: usize) -> Counts {
    let runs = runs_per_launch(module);
    let mut counts = Counts::new();
    for instruction in module.instructions().filter(|it| it.collective_kind().is_some()) {
        let found = collective(module, instruction).unwrap();
        let group = match found.members {
            Members::Group(group) => group,
            Members::All => (0..devices).collect(),
            Members::OnePerSlice(_) | Members::OnePerProcess(_) => {
                panic!("several slices or processes")
            }
        };
        let times = runs.count(instruction.computation).expect("loops have known lengths");
        add(&mut counts, found.kind, found.bytes.unwrap(), group, times);
    }
    counts
}

fn listed(spec: &StepSpec) -> Counts {
    let placement = &spec.placement;
    let mut counts = Counts::new();
    for collective in placement.collectives() {
        let passes = if collective.per_step { 1 } else { spec.batch.accumulation };
        let group = placement.mesh.groups(&collective.axes).swap_remove(0);
        let times = (collective.count * passes) as u64;
        add(&mut counts, collective.kind, collective.bytes as u64, group, times);
    }
    counts
}

/// The bytes of a norm of each parameter, a loss and a number of labels, which are summed too.
fn numbers_summed(spec: &StepSpec) -> u64 {
    4 * (spec.placement.parameters.len() as u64 + 2)
}

fn spec_on(mesh: &str, options: &PlacementOptions, batch: BatchShape) -> StepSpec {
    let (model, mesh) = (model(MODEL), mesh.parse::<MeshSpec>().unwrap());
    let mesh = mesh.resolve(mesh.devices().unwrap()).unwrap();
    let placement = Placement::on_mesh(&model.tree(), &mesh, options).unwrap();
    StepSpec::new(model, placement, Box::new(Sgd::default()), batch, Some(1.0)).unwrap()
}

fn options(strategy: Strategy, staging: Staging) -> PlacementOptions {
    let settings = Settings { flatten_parameters: true, ..Settings::default() };
    let config = FsdpConfig { settings, ..FsdpConfig::default() };
    PlacementOptions { strategy, staging, config, scan_layers: true, ..PlacementOptions::default() }
}

fn check(mesh: &str, strategy: Strategy, staging: Staging, accumulation: usize) {
    let batch = BatchShape { accumulation, ..BATCH };
    let spec = spec_on(mesh, &options(strategy, staging), batch);
    let found = found(&compile(&spec).0, spec.placement.devices());
    let listed = listed(&spec);
    assert!(!listed.is_empty());
    for key in found.keys().chain(listed.keys()) {
        let [found, listed] = [&found, &listed].map(|it| it.get(key).copied().unwrap_or(0));
        let more = match key.0 {
            CollectiveKind::AllReduce => numbers_summed(&spec),
            _ => 0,
        };
        assert!((listed..=listed + more).contains(&found), "{key:?}: {found}, listed {listed}");
    }
}

macro_rules! cases {
    ($($name:ident: $mesh:ident $strategy:ident $staging:ident $accumulation:literal;)*) => {
        $(
            #[test]
            fn $name() {
                check($mesh, Strategy::$strategy, Staging::$staging, $accumulation);
            }
        )*
    };
}

#[rustfmt::skip]
cases! {
    full_shard_has_the_listed_collectives:            TWO   FullShard        Flat         1;
    hybrid_shard_has_the_listed_collectives:          TWO   HybridShard      Flat         1;
    shard_grad_op_has_the_listed_collectives:         TWO   ShardGradOp      Flat         1;
    hybrid_shard_zero2_has_the_listed_collectives:    TWO   HybridShardZero2 Flat         1;
    weight_update_has_the_listed_collectives:         TWO   WeightUpdate     Flat         1;
    weight_update_gathers_once_for_two_microbatches:  TWO   WeightUpdate     Flat         2;
    no_shard_has_the_listed_collectives:              TWO   NoShard          Flat         1;
    full_shard_runs_along_two_axes:                   TWO   FullShard        Axes         1;
    full_shard_runs_from_the_nearest_of_two_axes:     TWO   FullShard        Hierarchical 1;
    no_shard_runs_along_two_axes:                     TWO   NoShard          Axes         1;
    no_shard_runs_from_the_nearest_of_two_axes:       TWO   NoShard          Hierarchical 1;
    full_shard_runs_along_three_axes:                 THREE FullShard        Axes         1;
    full_shard_runs_from_the_nearest_of_three_axes:   THREE FullShard        Hierarchical 1;
    no_shard_runs_along_three_axes:                   THREE NoShard          Axes         1;
    no_shard_runs_from_the_nearest_of_three_axes:     THREE NoShard          Hierarchical 1;
}

/// A model with little padding in eight shards.
const WIDE: &str = r#"{"model_type": "gpt2", "vocab_size": 1024, "n_positions": 8, "n_embd": 256,
    "n_layer": 2, "n_head": 2, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}"#;

/// The bytes per device of the optimizer's state, and those that the update reads and writes.
fn update(devices: usize, optimizer: Box<dyn Optimizer>) -> [u64; 2] {
    let options = PlacementOptions {
        strategy: Strategy::WeightUpdate,
        scan_layers: true,
        ..PlacementOptions::default()
    };
    let spec = spec(WIDE, devices, &options, BATCH, optimizer);
    let (module, memory) = compile(&spec);
    let state = spec.state_bytes().unwrap();
    assert_eq!(state_bytes(&spec, &memory) - state.parameters, state.optimizer);
    [state.optimizer, update_bytes(spec.model.as_ref(), &module)]
}

/// Optimizer state and update fall as 1/N.
fn check_update(optimizer: impl Fn() -> Box<dyn Optimizer>, slots: u64) {
    let full = update(1, optimizer());
    for devices in [2, 4, 8] {
        let shard = update(devices, optimizer());
        let ratios = [0, 1].map(|i| (devices as u64 * shard[i]) as f64 / full[i] as f64);
        println!("{devices} devices: {shard:?}, {ratios:?} of an even share");
        assert!(ratios.iter().all(|ratio| (0.95..1.05).contains(ratio)), "{devices}: {ratios:?}");
    }
    // The compiler has a kernel per result. Each reads the gradient: its square, which is written
    // for the norm; each slot, read and written; the parameter, which reads all slots too.
    let kernels = 2 + 3 * slots + (3 + slots);
    let parameters = full[0] / slots;
    let moved = full[1] as f64 / parameters as f64;
    assert!((moved / kernels as f64 - 1.0).abs() < 0.01, "{moved} times the parameters");
}

#[test]
fn momentum_update_falls_as_one_over_n() {
    check_update(|| Box::new(Sgd { momentum: 0.9, ..Sgd::default() }), 1);
}

#[test]
fn adamw_update_falls_as_one_over_n() {
    check_update(adamw, 2);
}
