//! Weight-update sharding against a replicated update: step time, optimizer memory and the bytes
//! that the update moves, on 1, 2, 4 and 8 virtual CPU devices in one run.
//!
//!     cargo bench -p fullshard-train --bench weight_update
//!
//! Prints a Markdown table and draws `docs/images/weight_update.svg`. The batch is one short
//! sequence per device, so that the update is a large part of the step.
#![allow(clippy::unwrap_used)]

mod chart;

use fullshard_models::from_json;
use fullshard_optim::{AdamW, Optimizer, Sgd};
use fullshard_parallel::{Placement, PlacementOptions, ShardedParam, Strategy};
use fullshard_pjrt::plugins::{Platform, Store, find_or_install};
use fullshard_pjrt::{Client, ClientOptions, CompileOptions, HostTensor, Plugin};
use fullshard_plan::update_bytes;
use fullshard_step::{BatchShape, StepSpec};
use fullshard_train::{Compiler, Job, Runner};
use std::path::Path;
use std::time::Instant;

const DEVICES: [usize; 4] = [1, 2, 4, 8];
const ROUNDS: usize = 11;
const STEPS: usize = 4;
const TOKENS: usize = 8;
const MODEL: &str = r#"{"model_type": "gpt2", "vocab_size": 4096, "n_positions": 8, "n_embd": 256,
    "n_layer": 4, "n_head": 4, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}"#;

/// What was measured of a strategy, per device.
struct Measured {
    step_ms: f64,
    optimizer_bytes: u64,
    update_bytes: u64,
}

/// Both strategies with an optimizer on a number of devices.
struct Row {
    optimizer: &'static str,
    devices: usize,
    replicated: Measured,
    sharded: Measured,
    /// The step time of the sharded update over that of the replicated one, in each round, sorted.
    ratios: Vec<f64>,
}

fn main() {
    let store = Store::default_location().unwrap();
    let located = find_or_install(Platform::Cpu, None, &store).unwrap();
    let plugin = Plugin::load(&located.path).unwrap();
    let most = DEVICES.into_iter().max().unwrap();
    let client = Client::new(plugin, &ClientOptions::new().cpu_device_count(most)).unwrap();
    println!(
        "| optimizer | devices | replicated ms | sharded ms | ratio | optimizer MiB | update MiB |"
    );
    println!("|---|---|---|---|---|---|---|");
    let mut rows = Vec::new();
    for optimizer in ["SGD", "Adam"] {
        for devices in DEVICES {
            let row = measure(&client, optimizer, devices);
            println!("{}", line(&row));
            rows.push(row);
        }
    }
    let picture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/images/weight_update.svg");
    std::fs::write(&picture, chart::draw(&rows)).unwrap();
}

/// A line of the table, with the lowest and highest ratio of a round. Bytes are those of the
/// replicated and of the sharded update.
fn line(row: &Row) -> String {
    let Row { optimizer, devices, replicated, sharded, ratios } = row;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    format!(
        "| {optimizer} | {devices} | {:.1} | {:.1} | {:.2} ({:.2} to {:.2}) | {:.1} → {:.1} | {:.1} → {:.1} |",
        replicated.step_ms,
        sharded.step_ms,
        median(ratios),
        ratios[0],
        ratios[ratios.len() - 1],
        mib(replicated.optimizer_bytes),
        mib(sharded.optimizer_bytes),
        mib(replicated.update_bytes),
        mib(sharded.update_bytes)
    )
}

/// Runs the two strategies alternately.
fn measure(client: &Client, optimizer: &'static str, devices: usize) -> Row {
    let options = CompileOptions::new(devices);
    let compiler = Compiler { client, cache: None, options, job: Job::alone() };
    let specs = [Strategy::NoShard, Strategy::WeightUpdate].map(|it| spec(it, optimizer, devices));
    let mut runners = specs.each_ref().map(|spec| {
        let parameter = |param: &ShardedParam| Ok(vec![0.01; param.elements()]);
        Runner::with_parameters(&compiler, spec, 42, parameter).unwrap()
    });
    let mut round = || runners.each_mut().map(time_steps);
    // The first round warms up.
    round();
    let times: Vec<[f64; 2]> = (0..ROUNDS).map(|_| round()).collect();
    let [replicated, sharded] = [0, 1].map(|i| Measured {
        step_ms: median(&sorted(times.iter().map(|times| times[i]))),
        optimizer_bytes: specs[i].state_bytes().unwrap().optimizer,
        update_bytes: compiled_update(&runners[i]),
    });
    let ratios = sorted(times.iter().map(|[replicated, sharded]| sharded / replicated));
    Row { optimizer, devices, replicated, sharded, ratios }
}

/// Milliseconds per step over some steps.
fn time_steps(runner: &mut Runner<'_>) -> f64 {
    let BatchShape { sequences, .. } = runner.spec().batch;
    let values: Vec<i32> = (0..(sequences * TOKENS) as i32).collect();
    let tokens = HostTensor::from_values(&[1, sequences, TOKENS], &values).unwrap();
    let start = Instant::now();
    for _ in 0..STEPS {
        runner.step(&[&tokens, &tokens], 1e-4).unwrap().wait().unwrap();
    }
    start.elapsed().as_secs_f64() * 1e3 / STEPS as f64
}

fn compiled_update(runner: &Runner<'_>) -> u64 {
    let program = runner.program().program.executable().optimized_program().unwrap();
    update_bytes(runner.spec().model.as_ref(), &program.module().unwrap())
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The median of sorted values.
fn median(sorted: &[f64]) -> f64 {
    sorted[sorted.len() / 2]
}

fn spec(strategy: Strategy, optimizer: &str, devices: usize) -> StepSpec {
    let model = from_json(MODEL).unwrap();
    let options = PlacementOptions { strategy, scan_layers: true, ..PlacementOptions::default() };
    let placement = Placement::new(&model.tree(), devices, &options).unwrap();
    let optimizer: Box<dyn Optimizer> = match optimizer {
        "SGD" => Box::new(Sgd { momentum: 0.9, ..Sgd::default() }),
        _ => Box::new(AdamW::default()),
    };
    let batch = BatchShape {
        sequences: devices,
        tokens: TOKENS,
        accumulation: 1,
        sync_each_microbatch: true,
    };
    StepSpec::new(model, placement, optimizer, batch, Some(1.0)).unwrap()
}
