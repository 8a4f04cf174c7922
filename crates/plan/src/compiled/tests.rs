//! Plans of programs that real compilers made: recorded ones of TPUs, and fresh ones of the CPU.

use super::paths::Paths;
use super::source::{AheadCompiler, Made};
use super::{alive, compiled, time};
use crate::describe::Budget;
use crate::machine::Machine;
use crate::network::Network;
use crate::report::Report;
use fullshard_models::from_json;
use fullshard_optim::AdamW;
use fullshard_parallel::{FsdpConfig, Placement, PlacementOptions, Remat};
use fullshard_pjrt::hlo::{Module, collectives, runs_per_launch};
use fullshard_pjrt::plugins::{Platform, Store, find_or_install};
use fullshard_pjrt::{CompileOptions, Plugin};
use fullshard_step::{BatchShape, StepSpec};

const V4: &[u8] = include_bytes!("../../../pjrt/tests/data/tpu_v4.pb");
const V5E: &[u8] = include_bytes!("../../../pjrt/tests/data/tpu_v5e_wide.pb");
const V6E: &[u8] = include_bytes!("../../../pjrt/tests/data/tpu_v6e.pb");

fn recorded(bytes: &[u8]) -> Module {
    Module::decode("hlo_with_config", bytes).unwrap()
}

/// How often there are exchanges, and the seconds that a network takes for all of them.
fn exchanged(module: &Module, machine: &Machine, network: &Network) -> (u64, f64) {
    let rows = collectives(module).into_iter();
    rows.fold((0, 0.0), |(count, seconds), row| {
        let times = row.count * row.runs.unwrap();
        let group = row.group_size.unwrap_or(machine.devices);
        let each = network.seconds(row.kind, row.bytes.unwrap(), group, machine.devices);
        (count + times, seconds + times as f64 * each)
    })
}

#[test]
fn every_exchange_is_waited_for_or_hidden() {
    for (bytes, machine) in [(V4, "v4-8"), (V5E, "v5e-16"), (V6E, "v6e-8")] {
        let (module, machine) = (recorded(bytes), Machine::parse(machine).unwrap());
        let played = time::play(&module, &machine, &Paths::none());
        let (count, in_turn) = exchanged(&module, &machine, &machine.network);
        let (_, rotated) = exchanged(&module, &machine, &machine.network.rotated());
        let rows = &played.exchanged;
        assert_eq!(rows.iter().map(|row| row.count).sum::<u64>(), count, "{}", machine.name);
        let total = played.time.exposed + played.time.hidden;
        let listed: f64 = rows.iter().map(|row| row.seconds).sum();
        assert!((total - listed).abs() < 1e-9 + 1e-6 * listed, "{total} {listed}");
        // Some go through the dimensions one after another, some through all of them at once.
        assert!((0.999 * rotated..1.001 * in_turn).contains(&listed), "{listed} {machine:?}");
        assert_eq!(played.time.step, played.time.compute + played.time.exposed);
    }
}

#[test]
fn cycles_count_as_often_as_they_run() {
    let (module, machine) = (recorded(V4), Machine::parse("v4-8").unwrap());
    let runs = runs_per_launch(&module);
    let cycles = module.instructions().filter_map(|instruction| {
        let runs = runs.count(instruction.computation)?;
        Some(instruction.estimated_cycles()? * runs)
    });
    let seconds = cycles.sum::<u64>() as f64 / machine.chip.clock.unwrap();
    let compute = time::play(&module, &machine, &Paths::none()).time.compute;
    // What has no estimate comes on top, and is little.
    assert!(seconds > 0.0 && (seconds..1.2 * seconds).contains(&compute), "{compute} {seconds}");
}

/// The compiler of v5e gathers beside computing, that of v4 by itself.
#[test]
fn what_is_asynchronous_hides() {
    let hidden = |bytes, machine| {
        let machine = Machine::parse(machine).unwrap();
        time::play(&recorded(bytes), &machine, &Paths::none()).time.hidden
    };
    assert_eq!(hidden(V4, "v4-8"), 0.0);
    assert!(hidden(V5E, "v5e-16") > 0.0);
}

const GPT2: &str = r#"{"model_type": "gpt2", "vocab_size": 512, "n_positions": 64, "n_embd": 256,
    "n_layer": 4, "n_head": 4, "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}"#;

fn spec(remat: Remat, devices: usize) -> StepSpec {
    let model = from_json(GPT2).unwrap();
    let config = FsdpConfig::from_json(r#"{"transformer_layer_cls_to_wrap": "GPT2Block"}"#);
    let config = config.unwrap();
    let options = PlacementOptions {
        config,
        remat: Some(remat),
        scan_layers: true,
        ..PlacementOptions::default()
    };
    let placement = Placement::new(&model.tree(), devices, &options).unwrap();
    let batch =
        BatchShape { sequences: 24, tokens: 64, accumulation: 1, sync_each_microbatch: true };
    StepSpec::new(model, placement, Box::new(AdamW::default()), batch, None).unwrap()
}

fn made(spec: &StepSpec, machine: &Machine) -> Made {
    let store = Store::default_location().unwrap();
    let plugin = find_or_install(Platform::Cpu, None, &store).unwrap();
    let plugin = Plugin::load(&plugin.path).unwrap();
    let options = CompileOptions::new(machine.devices);
    let compiler = AheadCompiler { plugin, options, folder: None };
    compiler.compile(&spec.step_program().unwrap().to_text(), machine).unwrap()
}

fn part(report: &Report, what: &str) -> f64 {
    let part = report.memory.parts.iter().find(|part| part.what == what).unwrap();
    part.bytes as f64
}

#[test]
fn the_walk_finds_what_the_compiler_needs() {
    let machine = Machine::parse("cpu:2").unwrap();
    let reports = [Remat::None, Remat::Full].map(|remat| {
        let spec = spec(remat, 2);
        let made = made(&spec, &machine);
        let found = alive::peak(&made.module, &Paths::new(spec.model.as_ref())).bytes as f64;
        let needed = made.memory.temporaries as f64;
        assert!((0.8..1.25).contains(&(found / needed)), "{remat:?}: {found} of {needed}");
        let report = compiled(&spec, &machine, &made, Budget::default()).unwrap();
        assert_eq!(report.memory.total, made.memory.total());
        report
    });
    let [all, little] = reports;
    // What layers remember is what differs; gradients are as large as parameters at least.
    let [kept, made_again] = [&all, &little].map(|report| part(report, "activations"));
    assert!(kept > 2.0 * made_again, "{kept} and {made_again}");
    assert!(part(&little, "gradients") > 0.9 * part(&little, "parameters"));
    let largest = &all.memory.largest[0];
    assert!(largest.module.starts_with("transformer.h.*"), "{largest:?}");
}
