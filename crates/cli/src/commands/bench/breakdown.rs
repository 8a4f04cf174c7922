//! `--breakdown`: where the time of a step goes.

use crate::error::{Error, Result};
use crate::format;
use fullshard_pjrt::plugins::PluginKind;
use fullshard_pjrt::{Client, read_profile};
use fullshard_plan::{Breakdown, KernelTime, Matched, ModuleShare};
use fullshard_train::{Bench, Chip, Runner};

/// Steps to profile.
const STEPS: usize = 3;

/// Kernels to print; JSON has all.
const KERNELS: usize = 30;

/// Whether there will be anything to read, before anything is compiled.
pub fn check(client: &Client, kind: PluginKind) -> Result<()> {
    let reason = match kind {
        _ if !client.plugin().has_profiler() => {
            format!("the plugin of {} has no profiler", client.platform_name())
        }
        PluginKind::Cuda => return Ok(()),
        _ => "profiles are read of NVIDIA's GPUs alone".to_owned(),
    };
    Err(Error::Usage(format!("--breakdown cannot be honoured: {reason}; leave it out")))
}

/// Profiles further steps and reads where their time went.
pub fn take(runner: &mut Runner<'_>, bench: &Bench, chip: Option<&Chip>) -> Result<Breakdown> {
    let recipe = runner.recipe();
    let vocabulary = recipe.model.dimensions().vocabulary;
    let profile = bench.profile(runner, recipe.batch, vocabulary, STEPS)?;
    let program = runner.program().program.executable().optimized_program()?.module()?;
    let devices = read_profile(&profile)?;
    Ok(Breakdown::new(&devices, &program, recipe.model.as_ref(), STEPS, chip)?)
}

/// Prints where the time went, beside the step that was measured without a profile.
pub fn print(breakdown: &Breakdown, measured: f64) {
    let Breakdown { device, steps, span, busy, idle, overlapped, .. } = breakdown;
    println!("\nwhere a step goes, by a profile of {steps} further steps ({device})");
    println!(
        "  {} from the first kernel to the last, {:.1} % of the step measured; busy {}, idle {}",
        format::seconds(*span),
        100.0 * span / measured,
        format::seconds(*busy),
        format::seconds(*idle),
    );
    if *overlapped > 0.001 * busy {
        println!("  kernels for {} ran beside others", format::seconds(*overlapped));
    }
    if breakdown.matched == Matched::Name {
        println!("  steps differ in their kernels, so that those of libraries have no module");
    }
    kinds(breakdown);
    modules(&breakdown.modules, *span);
    kernels(&breakdown.kernels);
}

fn kinds(breakdown: &Breakdown) {
    println!("\n  {:<36} {:>9} {:>8} {:>9}", "kind", "ms", "share", "kernels");
    for row in &breakdown.kinds {
        println!(
            "  {:<36} {:>9.2} {:>7.1}% {:>9.0}",
            row.kind.name(),
            1e3 * row.seconds,
            100.0 * row.share,
            row.launches
        );
    }
}

/// Modules, with the ways there and back in one row.
fn modules(modules: &[ModuleShare], span: f64) {
    println!("\n  {:<36} {:>9} {:>9} {:>7}", "module", "forward", "backward", "share");
    let mut rows: Vec<(&str, f64, f64)> = Vec::new();
    for row in modules {
        let place = rows.iter().position(|known| known.0 == row.module);
        let place = place.unwrap_or_else(|| {
            rows.push((&row.module, 0.0, 0.0));
            rows.len() - 1
        });
        match row.backward {
            true => rows[place].2 += row.seconds,
            false => rows[place].1 += row.seconds,
        }
    }
    rows.sort_by(|a, b| (b.1 + b.2).total_cmp(&(a.1 + a.2)));
    for (module, forward, backward) in rows {
        println!(
            "  {:<36} {:>9.2} {:>9.2} {:>6.1}%",
            if module.is_empty() { "(none)" } else { module },
            1e3 * forward,
            1e3 * backward,
            100.0 * (forward + backward) / span,
        );
    }
}

fn kernels(kernels: &[KernelTime]) {
    println!(
        "\n  {:>8} {:>6} {:>7} {:>7} {:>6} {:>8}  kernel, instruction, module",
        "ms", "share", "kernels", "GB/s", "of all", "TFLOP/s"
    );
    for row in kernels.iter().take(KERNELS) {
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let way = if row.backward { " backward" } else { "" };
        println!(
            "  {:>8.2} {:>5.1}% {:>7.0} {:>7} {:>6} {:>8}  {}, {}, {}{way}",
            1e3 * row.seconds,
            100.0 * row.share,
            row.launches,
            or_none(row.bytes_per_second.map(|rate| format!("{:.0}", rate / 1e9))),
            or_none(row.bandwidth_share.map(|share| format!("{:.0}%", 100.0 * share))),
            or_none(row.flops.map(|rate| format!("{:.0}", rate / 1e12))),
            row.name,
            row.op.as_deref().unwrap_or("-"),
            if row.module.is_empty() { "-" } else { &row.module },
        );
    }
    let left: f64 = kernels.iter().skip(KERNELS).map(|row| row.seconds).sum();
    if left > 0.0 {
        println!("  {:>8.2} in {} others, all in --json", 1e3 * left, kernels.len() - KERNELS);
    }
}
