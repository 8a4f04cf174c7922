//! Plans of programs by real compilers: recorded ones for TPUs, and fresh ones for the CPU.

use super::cost::Route;
use super::paths::Paths;
use super::source::{AheadCompiler, CompiledStep};
use super::{collectives_by_module, compiled, cost, liveness, time};
use crate::describe::Budget;
use crate::machine::Machine;
use crate::network::Network;
use crate::report::{ModuleCollectives, Report};
use fullshard_graph::Mesh;
use fullshard_models::from_json;
use fullshard_optim::AdamW;
use fullshard_parallel::{FsdpConfig, Placement, PlacementOptions, Remat};
use fullshard_pjrt::hlo::{Module, Shape, collectives, runs_per_launch};
use fullshard_pjrt::plugins::{Platform, Store, find_or_install};
use fullshard_pjrt::{CompileOptions, Plugin};
use fullshard_step::{BatchShape, StepSpec};

const V4: &[u8] = include_bytes!("../../../pjrt/tests/data/tpu_v4.pb");
const V5E: &[u8] = include_bytes!("../../../pjrt/tests/data/tpu_v5e_wide.pb");
const V6E: &[u8] = include_bytes!("../../../pjrt/tests/data/tpu_v6e.pb");

fn recorded(bytes: &[u8]) -> Module {
    Module::decode("hlo_with_config", bytes).unwrap()
}

fn simulate(module: &Module, machine: &Machine) -> time::Simulation {
    let mesh = Mesh::new(&[("fsdp", machine.devices)]).unwrap();
    time::simulate(module, machine, &mesh, &Paths::none())
}

/// Number of collectives, and their total seconds on a network.
fn collective_times(module: &Module, machine: &Machine, network: &Network) -> (u64, f64) {
    let rows = collectives(module).into_iter();
    rows.fold((0, 0.0), |(count, seconds), row| {
        let times = row.count * row.runs.unwrap();
        let members: Vec<usize> = (0..row.group_size.unwrap_or(machine.devices)).collect();
        let each = network.seconds(row.kind, row.bytes.unwrap(), &members);
        (count + times, seconds + times as f64 * each)
    })
}

#[test]
fn collectives_are_exposed_or_hidden() {
    for (bytes, machine) in [(V4, "v4-8"), (V5E, "v5e-16"), (V6E, "v6e-8")] {
        let (module, machine) = (recorded(bytes), Machine::parse(machine).unwrap());
        let simulation = simulate(&module, &machine);
        let (count, sequential) = collective_times(&module, &machine, &machine.network);
        let (_, rotated) = collective_times(&module, &machine, &machine.network.rotated());
        let rows = &simulation.collective_times;
        assert_eq!(rows.iter().map(|row| row.count).sum::<u64>(), count, "{}", machine.name);
        let time = &simulation.time;
        let total = time.exposed - time.contention + time.hidden;
        let listed: f64 = rows.iter().map(|row| row.seconds).sum();
        assert!((total - listed).abs() < 1e-9 + 1e-6 * listed, "{total} {listed}");
        // Some use the dimensions sequentially, some all of them at once.
        assert!((0.999 * rotated..1.001 * sequential).contains(&listed), "{listed} {machine:?}");
        assert_eq!(simulation.time.step, simulation.time.compute + simulation.time.exposed);
    }
}

#[test]
fn cycles_are_multiplied_by_runs() {
    let (module, machine) = (recorded(V4), Machine::parse("v4-8").unwrap());
    let runs = runs_per_launch(&module);
    let cycles = module.instructions().filter_map(|instruction| {
        let runs = runs.count(instruction.computation)?;
        Some(instruction.estimated_cycles()? * runs)
    });
    let seconds = cycles.sum::<u64>() as f64 / machine.chip.clock.unwrap();
    let compute = simulate(&module, &machine).time.compute;
    // Instructions without an estimate add a little.
    assert!(seconds > 0.0 && (seconds..1.2 * seconds).contains(&compute), "{compute} {seconds}");
}

/// For softmax over long rows the compiler writes the largest integer.
#[test]
fn instructions_with_unknown_cycles_are_memory_bound() {
    let (module, machine) = (recorded(V4), Machine::parse("v4-8").unwrap());
    let entry = module.entry().instructions().iter();
    let mut estimated = entry.filter(|it| it.opcode == "fusion" && it.estimated_cycles().is_some());
    let mut fusion = estimated.next().unwrap().clone();
    let config = r#"{"window_config": {"estimated_cycles": "9223372036854775807"}}"#;
    fusion.backend_config = config.as_bytes().into();
    let memory = cost::traffic(&module, &fusion) as f64 / machine.chip.bandwidth;
    assert!(memory > 0.0);
    assert_eq!(cost::seconds(&module, &fusion, &machine), memory);
}

/// A copy to host memory takes the link to the host, for all of what it moves.
#[test]
fn copies_to_host_memory_take_its_link() {
    let module = recorded(V4);
    let start = module.instructions().find(|it| it.opcode == "copy-start").unwrap();
    assert_eq!(cost::copied(&module, start).0, Route::Device);
    let mut offload = start.clone();
    let Shape::Tuple(members) = &mut offload.shape else { panic!("{}", start.shape) };
    let Shape::Array(result) = &mut members[0] else { panic!("{}", start.shape) };
    result.layout.as_mut().unwrap().memory_space = 5;
    let bytes = result.padded_byte_size().unwrap();
    assert_eq!(cost::copied(&module, &offload), (Route::ToHost, bytes));
}

/// The compiler of v5e overlaps gathers with compute, that of v4 does not.
#[test]
fn asynchronous_collectives_overlap() {
    let hidden = |bytes, machine| {
        let machine = Machine::parse(machine).unwrap();
        simulate(&recorded(bytes), &machine).time.hidden
    };
    assert_eq!(hidden(V4, "v4-8"), 0.0);
    assert!(hidden(V5E, "v5e-16") > 0.0);
}

const GPT2: &str = r#"{"model_type": "gpt2", "vocab_size": 512, "n_positions": 64, "n_embd": 256,
    "n_layer": 4, "n_head": 4, "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}"#;

fn spec(remat: Remat, devices: usize) -> StepSpec {
    spec_on(&[("fsdp", devices)], remat)
}

fn spec_on(mesh: &[(&str, usize)], remat: Remat) -> StepSpec {
    let model = from_json(GPT2).unwrap();
    let config = FsdpConfig::from_json(r#"{"transformer_layer_cls_to_wrap": "GPT2Block"}"#);
    let config = config.unwrap();
    let options = PlacementOptions {
        config,
        remat: Some(remat),
        scan_layers: true,
        ..PlacementOptions::default()
    };
    let mesh = Mesh::new(mesh).unwrap();
    let placement = Placement::on_mesh(&model.tree(), &mesh, &options).unwrap();
    let batch =
        BatchShape { sequences: 24, tokens: 64, accumulation: 1, sync_each_microbatch: true };
    StepSpec::new(model, placement, Box::new(AdamW::default()), batch, None).unwrap()
}

fn compile(spec: &StepSpec, machine: &Machine) -> CompiledStep {
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
fn liveness_matches_the_compiler() {
    let machine = Machine::parse("cpu:2").unwrap();
    let reports = [Remat::None, Remat::Full].map(|remat| {
        let spec = spec(remat.clone(), 2);
        let step = compile(&spec, &machine);
        let found = liveness::peak(&step.module, &Paths::new(spec.model.as_ref())).bytes as f64;
        let needed = step.memory.temporaries as f64;
        assert!((0.8..1.25).contains(&(found / needed)), "{remat:?}: {found} of {needed}");
        let report = compiled(&spec, &machine, &step, Budget::default()).unwrap();
        assert_eq!(report.memory.total, step.memory.total());
        report
    });
    let [none, full] = reports;
    // Saved activations differ; gradients are at least as large as parameters.
    let [saved, recomputed] = [&none, &full].map(|report| part(report, "activations"));
    assert!(saved > 2.0 * recomputed, "{saved} and {recomputed}");
    assert!(part(&full, "gradients") > 0.9 * part(&full, "parameters"));
    let largest = &none.memory.largest[0];
    assert!(largest.module.starts_with("transformer.h.*"), "{largest:?}");
}

/// Every collective of a step belongs to the module that needs it, in its pass.
#[test]
fn collectives_belong_to_modules() {
    let (machine, spec) = (Machine::parse("cpu:2").unwrap(), spec(Remat::Full, 2));
    let module = compile(&spec, &machine).module;
    let rows = collectives_by_module(&spec, &module);
    let total = |rows: &[ModuleCollectives]| -> (u64, u64) {
        (rows.iter().map(|row| row.count).sum(), rows.iter().map(|row| row.bytes).sum())
    };
    let all = collectives(&module).into_iter().map(|it| (it.count * it.runs.unwrap(), it.bytes));
    let expected = all.fold((0, 0), |(counts, bytes), (count, each)| {
        (counts + count, bytes + count * each.unwrap())
    });
    assert_eq!(total(&rows), expected);
    assert!(rows.is_sorted_by(|a, b| a.bytes >= b.bytes));
    let block = rows.iter().filter(|row| row.module.starts_with("transformer.h.*"));
    let kinds = |backward: bool| -> Vec<&str> {
        block.clone().filter(|row| row.backward == backward).map(|row| &*row.kind).collect()
    };
    assert!(kinds(false).iter().all(|kind| *kind == "all-gather"), "{rows:?}");
    assert!(!kinds(false).is_empty() && kinds(true).contains(&"all-gather"), "{rows:?}");
    let reduced = rows.iter().filter(|row| row.kind == "reduce-scatter");
    assert!(reduced.clone().count() > 0 && reduced.clone().all(|row| row.backward), "{rows:?}");
    assert!(rows.iter().all(|row| row.group == 2 && row.axis == "fsdp"), "{rows:?}");
}

/// All-reduces of activations over the tensor axis are not gradients that should be scattered, and
/// slices are gathered as the formula expects.
#[test]
fn tensor_axes_are_told_apart() {
    let machine = Machine::parse("cpu:4").unwrap();
    let spec = spec_on(&[("fsdp", 2), ("tensor", 2)], Remat::Full);
    let report = compiled(&spec, &machine, &compile(&spec, &machine), Budget::default()).unwrap();
    let over = |axis| -> u64 {
        let rows = report.collectives.iter().filter(move |row| row.axis == axis);
        rows.map(|row| row.bytes * row.count).sum()
    };
    let planned = crate::quick::quick(&spec, &machine).unwrap();
    let expected = planned.collectives.iter().filter(|row| row.axis == "tensor");
    let expected: u64 = expected.map(|row| row.bytes * row.count).sum();
    assert!(over("tensor") >= expected, "{} {expected}", over("tensor"));
    assert!(over("tensor") < 2 * expected && over("fsdp") > 0);
    assert!(part(&report, "activations") > 0.0);
    let what: Vec<&str> = report.warnings.iter().map(|it| it.what.as_str()).collect();
    assert!(!what.iter().any(|what| what.contains("reduce-scatters")), "{what:?}");
}
