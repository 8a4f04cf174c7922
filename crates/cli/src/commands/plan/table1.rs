//! `fullshard plan --table1`: plans the six runs of the PyTorch/XLA FSDP blog post and compares
//! them with the published figures. `examples/table1` documents the shapes.
//!
//! Each is planned twice: the way it was run, with attention by its definition and collectives that
//! nothing overlaps, which is what the published time is compared with; and as we would run it.

use super::{PlanFlags, parse_machine, say};
use crate::output::{print_json, show};
use fullshard::config::{
    AheadChoice, AttentionChoice, CollectiveChoice, ConfigSource, FlagValue, Given, RunConfig,
};
use fullshard::plan::{Basis, Planner, Report};
use fullshard::{Result, format};
use serde::Serialize;
use std::process::ExitCode;

/// A published run: sequences of 1024 tokens, Adafactor, gradient checkpointing.
struct Row {
    name: &'static str,
    config: &'static str,
    slice: &'static str,
    /// Global batch size in sequences.
    batch: usize,
    published: Published,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Published {
    /// Seconds per step.
    step: f64,
    /// FLOPs per step.
    flops: f64,
    /// MFU with `6·N` FLOPs per token.
    mfu: f64,
}

const TOKENS: usize = 1024;
const FSDP: &str = include_str!("../../../../../examples/configs/fsdp_config.json");

macro_rules! row {
    ($name:literal, $file:literal, $slice:literal, $batch:literal, $step:literal, $peta:literal, $mfu:literal) => {
        Row {
            name: $name,
            config: include_str!(concat!("../../../../../examples/table1/", $file)),
            slice: $slice,
            batch: $batch,
            published: Published { step: $step, flops: $peta * 1e15, mfu: $mfu },
        }
    };
}

const ROWS: &[Row] = &[
    row!("2B", "2b.json", "v4-8", 128, 4.191, 1.65, 0.357),
    row!("16B", "16b.json", "v4-64", 512, 14.592, 50.0, 0.388),
    row!("20B", "20b.json", "v4-128", 512, 7.824, 62.0, 0.451),
    row!("32B", "32b.json", "v4-128", 512, 12.970, 101.0, 0.444),
    row!("64B", "64b.json", "v4-256", 1024, 25.653, 404.0, 0.447),
    row!("128B", "128b.json", "v4-512", 1024, 30.460, 809.0, 0.377),
];

/// A row with its prediction.
#[derive(Serialize)]
struct Predicted {
    name: &'static str,
    published: Published,
    /// FLOPs per step of the model used here.
    flops: f64,
    /// Relative error of the predicted step time.
    error: f64,
    /// The published way to run it.
    report: Report,
    /// Ours, with the same batch.
    ours: Report,
}

pub fn run(plan: &PlanFlags, config: &RunConfig) -> Result<ExitCode> {
    let mut rows = Vec::new();
    for row in ROWS {
        say(&format!("{} on {} ...", row.name, row.slice));
        let predicted = predict(row, plan, config)?;
        if !plan.json {
            print(&predicted, rows.is_empty());
        }
        rows.push(predicted);
    }
    match plan.json {
        true => print_json(&rows)?,
        false => print_errors(&rows),
    }
    Ok(ExitCode::SUCCESS)
}

/// The rows that the slowdown factor is fitted on; the others are held out.
const FITTED: [&str; 2] = ["2B", "20B"];

/// Prints the errors of predictions, without fitting and with compute time scaled by a factor that
/// is fitted on two rows. The published runs used another program, and had overheads that no
/// compiler counts.
fn print_errors(rows: &[Predicted]) {
    let summary = |errors: &[f64]| {
        let mean = errors.iter().map(|error| error.abs()).sum::<f64>() / errors.len() as f64;
        let max = errors.iter().fold(0.0_f64, |max, error| max.max(error.abs()));
        format!("{:.1} % mean, {:.1} % max", 100.0 * mean, 100.0 * max)
    };
    let errors: Vec<f64> = rows.iter().map(|row| row.error).collect();
    show!("\nerror: {}, without fitting", summary(&errors));
    let slowdowns = rows.iter().filter(|row| FITTED.contains(&row.name)).map(|row| {
        let time = &row.report.time;
        (row.published.step - time.exposed) / time.compute
    });
    let slowdown = slowdowns.sum::<f64>() / FITTED.len() as f64;
    let slower = |row: &Predicted| {
        let time = &row.report.time;
        (slowdown * time.compute + time.exposed) / row.published.step - 1.0
    };
    let (fitted, held_out): (Vec<&Predicted>, Vec<&Predicted>) =
        rows.iter().partition(|row| FITTED.contains(&row.name));
    let each = |rows: &[&Predicted]| {
        let one = |row: &&Predicted| format!("{} {:+.1} %", row.name, 100.0 * slower(row));
        rows.iter().map(one).collect::<Vec<_>>().join(", ")
    };
    show!("with compute time × {slowdown:.3}, fitted on {}:", FITTED.join(" and "));
    show!("  fitted: {}", each(&fitted));
    show!("  held out: {}", each(&held_out));
    let errors: Vec<f64> = rows.iter().map(slower).collect();
    show!("  error: {}", summary(&errors));
}

fn predict(row: &Row, plan: &PlanFlags, config: &RunConfig) -> Result<Predicted> {
    let machine = parse_machine(row.slice)?;
    let planned = |config: RunConfig| {
        let config = config.for_machine(&machine)?;
        Planner::new(&config, &machine, plan.options()).plan(&config.planned_spec()?)
    };
    let config = row_config(row, config)?;
    let (report, ours) = (planned(as_published(config.clone()))?, planned(config)?);
    let error = report.time.step / row.published.step - 1.0;
    let flops = 6.0 * report.model.parameters as f64 * (row.batch * TOKENS) as f64;
    Ok(Predicted { name: row.name, published: row.published, flops, error, report, ours })
}

/// The way the published runs went: no platform overlaps anything by default, except what flags of
/// ours request.
fn as_published(mut config: RunConfig) -> RunConfig {
    config.model.attention = AttentionChoice::Eager;
    config.fsdp.collective = CollectiveChoice::Flat;
    config.fsdp.gather_ahead = AheadChoice::False;
    config.device.xla_flags.push("xla_enable_async_all_gather=false".to_owned());
    config
}

/// The run config of a row: as published, except for given flags.
fn row_config(row: &Row, config: &RunConfig) -> Result<RunConfig> {
    let mut config = config.clone();
    if config.fsdp == RunConfig::default().fsdp {
        let mut published = Given::default();
        published.add("fsdp_config", vec![FSDP.to_owned()])?;
        let stated = published.resolve(RunConfig::default())?;
        config.fsdp = stated.fsdp;
        config.remat.policy = config.remat.policy.or(stated.remat.policy);
        config.precision.compute = config.precision.compute.or(stated.precision.compute);
    }
    let model = ConfigSource::read(&[row.config.to_owned()]);
    config.model.config = model.ok();
    config.optimizer.name = "adafactor".to_owned();
    config.data.block_size = Some(TOKENS);
    let devices = parse_machine(row.slice)?.devices;
    config.schedule.per_device_batch = row.batch / devices;
    Ok(config)
}

fn print(row: &Predicted, first: bool) {
    if first {
        show!(
            "model  slice    PFLOP (blog)   compiled    memory/chip   compute      comm      step  \
             published   error    MFU (blog)"
        );
    }
    let report = &row.report;
    show!(
        "{:<6} {:<7} {:>6.1} ({:>5}) {:>10} {:>14} {:>7.2} s {:>7.2} s {:>7.2} s {:>8.2} s {:>+6.1} % \
         {:>5.1} % ({:.1})",
        row.name,
        report.machine.name,
        row.flops / 1e15,
        row.published.flops / 1e15,
        compiled(report),
        format::bytes(report.memory.total),
        report.time.compute,
        report.time.exposed,
        report.time.step,
        row.published.step,
        100.0 * row.error,
        100.0 * report.rates.mfu.unwrap_or(f64::NAN),
        100.0 * row.published.mfu,
    );
    let (time, memory) = (&row.ours.time, format::bytes(row.ours.memory.total));
    show!(
        "{:<14} {:>15} {:>10} {memory:>14} {:>7.2} s {:>7.2} s {:>7.2} s {:>18} {:>6.1} %",
        "  overlapped",
        "",
        compiled(&row.ours),
        time.compute,
        time.exposed,
        time.step,
        "",
        100.0 * row.ours.rates.mfu.unwrap_or(f64::NAN),
    );
}

fn compiled(report: &Report) -> String {
    match &report.basis {
        Basis::Compiled { seconds, .. } => format!("{seconds:.0} s"),
        Basis::Quick => "formula".to_owned(),
    }
}
