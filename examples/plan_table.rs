//! Plans a model for several machines by formula, and prints a table.
//!
//! `cargo run --release --example plan_table`; with `--compile` each step is compiled by the
//! compiler of its machine instead, which takes minutes.

use fullshard::prelude::*;

const MACHINES: [&str; 6] = ["v4-8", "v4-32", "v5p-16", "v6e-8", "h100:8", "h200:8"];

fn main() -> fullshard::Result<()> {
    let quick = !std::env::args().any(|argument| argument == "--compile");
    let mut config = RunConfig::default();
    config.model.model_type = Some("llama".to_owned());
    config.model.overrides = Some("hidden_size=2048,num_hidden_layers=16".to_owned());
    config.precision.compute = Some(Compute::Bfloat16);
    config.remat.policy = Some(Remat::Full);
    config.data.block_size = Some(2048);

    println!(
        "{:<8} {:>8} {:>14} {:>12} {:>14} {:>6}",
        "machine", "devices", "GiB/device", "ms/step", "tokens/s", "MFU"
    );
    for machine in MACHINES {
        let report = plan(&config, machine, PlanOptions { quick, ..Default::default() })?;
        let gib = |bytes: u64| bytes as f64 / (1_u64 << 30) as f64;
        println!(
            "{machine:<8} {:>8} {:>6.1} of {:>4.0} {:>12.1} {:>14.0} {:>5.1}%",
            report.machine.devices,
            gib(report.memory.total),
            gib(report.memory.limit),
            1e3 * report.time.step,
            report.rates.tokens_per_second,
            100.0 * report.rates.mfu.unwrap_or(f64::NAN),
        );
    }
    Ok(())
}
