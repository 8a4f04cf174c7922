//! Prints a benchmark.

use super::breakdown;
use crate::output::{print_by_module, print_estimate, show};
use fullshard::bench::{
    CheckpointReport, CollectiveReport, PlanReport, PlannedCollective, StepReport,
};
use fullshard::format;

/// Prints the plan: model, units and estimated memory.
pub fn plan(plan: &PlanReport) {
    let (model, settings) = (&plan.model, &plan.settings.step);
    show!(
        "{} of {} parameters on {} ({}), {}",
        model.class,
        format::grouped(model.parameters as usize),
        format::count(settings.devices, "device"),
        plan.settings.device,
        settings.fsdp,
    );
    let accumulated = match settings.gradient_accumulation_steps {
        1 => String::new(),
        steps if settings.no_sync => format!(" × {steps} (reduced once)"),
        steps => format!(" × {steps}"),
    };
    let ahead = settings.gather_ahead.description();
    show!(
        "{} × {} tokens{accumulated} per step, {} with gradients in {}, {}, remat {}, {} layers{}{}",
        settings.batch,
        settings.sequence,
        settings.compute_dtype,
        settings.reduce_dtype,
        settings.optimizer,
        settings.remat,
        if settings.scan_layers { "scanned" } else { "unrolled" },
        if ahead.is_some() { ", " } else { "" },
        ahead.unwrap_or_default(),
    );
    if settings.iterations_per_loop > 1 {
        show!("{} steps per launch", settings.iterations_per_loop);
    }
    show!("{}", plan.attention);
    show!("\n{}\n", plan.table);
    print_estimate(&plan.estimate);
    show!();
    planned_collectives(plan.planned_collectives.as_deref());
}

/// The collectives of a pass, by unit.
fn planned_collectives(collectives: Option<&[PlannedCollective]>) {
    let collectives = match collectives {
        None => return row("planned collectives", "all-gathered once and reduced once per step"),
        Some([]) => return row("planned collectives", "none"),
        Some(collectives) => collectives,
    };
    show!("planned collectives   dtype per pass     bytes/pass  each");
    let mut above = None;
    for collective in collectives {
        if above.replace(&collective.unit) != Some(&collective.unit) {
            let root = collective.unit.is_empty();
            show!("  {}", if root { "(root)" } else { &collective.unit });
        }
        show!(
            "    {:<16} {:>6} {:>8} {:>14}  {}",
            collective.kind,
            collective.dtype,
            collective.count,
            format::bytes(collective.bytes_per_pass as u64),
            range(Some(collective.least_bytes as u64), Some(collective.most_bytes as u64)),
        );
    }
}

/// Prints the measurements.
pub fn measured(report: &StepReport) {
    show!();
    let cached = if report.compile.cached { " (from the cache)" } else { "" };
    row(
        "compiled in",
        &format!(
            "{}{cached}, ready after {}",
            format::seconds(report.compile.seconds),
            format::seconds(report.compile.setup_seconds)
        ),
    );
    if let Some(calls) = report.plan.attention.calls {
        row("attention", &format!("{calls} cuDNN kernel calls per step"));
    }
    memory(report);
    collectives(&report.collectives);
    print_by_module(&report.collectives_by_module);
    show!();
    speed(report);
    for (what, values) in [("loss", &report.loss), ("gradient norm", &report.gradient_norm)] {
        row(what, &format!("{:.4} → {:.4}", values.first, values.last));
    }
    if let Some(breakdown) = &report.breakdown {
        show!("\n{}", breakdown::text(breakdown, report.time.step));
    }
}

fn speed(report: &StepReport) {
    let (time, spread) = (&report.time, &report.time.spread);
    let settings = &report.plan.settings;
    let at_a_time = match settings.step.iterations_per_loop {
        1 => "one at a time".to_owned(),
        steps => format!("{steps} at a time"),
    };
    row(
        "step",
        &format!(
            "{} over {}, {}",
            format::seconds(time.step),
            format::count(settings.steps, "step"),
            if time.ahead { "launched asynchronously" } else { &at_a_time }
        ),
    );
    row(
        &format!("  {at_a_time}"),
        &format!(
            "{} median, {} to {} (quartiles {} to {})",
            format::seconds(spread.median),
            format::seconds(spread.min),
            format::seconds(spread.max),
            format::seconds(spread.lower_quartile),
            format::seconds(spread.upper_quartile)
        ),
    );
    if let Some(single) = time.single {
        let ratio = single / time.step;
        let text = format!("{} per step, {ratio:.2} times as long", format::seconds(single));
        row("  single launches", &text);
    }
    row(
        "tokens/s",
        &format!(
            "{:.0}, {:.0} per device",
            report.tokens_per_second, report.tokens_per_second_per_device
        ),
    );
    let mfu = &report.mfu;
    let text = match (mfu.peak, mfu.mfu_6n, mfu.mfu_palm) {
        (Some(peak), Some(six_n), Some(palm)) => format!(
            "{:.1} % (6·N), {:.1} % (PaLM, with attention) of {} ({}, {})",
            100.0 * six_n,
            100.0 * palm,
            format::flops_rate(peak),
            report.chip.map_or("?", |chip| chip.name),
            report.plan.settings.step.compute_dtype,
        ),
        _ => format!(
            "unknown: no known peak FLOP/s of `{}` in {}",
            report.device_kind, report.plan.settings.step.compute_dtype
        ),
    };
    row("MFU", &text);
    if let Some((six_n, palm)) = mfu.hfu_6n.zip(mfu.hfu_palm) {
        let shares = format!("{:.1} % (6·N), {:.1} % (PaLM)", 100.0 * six_n, 100.0 * palm);
        row("HFU", &shares);
    }
    if let Some(matmuls) = report.plan.settings.step.fp8_matmuls {
        let peak = report.chip.and_then(|chip| chip.fp8).map(format::flops_rate);
        let peak = peak.map_or_else(String::new, |peak| format!(", peak {peak}"));
        row("  FP8", &format!("{}{peak}", format::count(matmuls, "layer matmul")));
    }
    let rate = report.flops.flops_6n / report.time.step / report.plan.settings.step.devices as f64;
    row("throughput", &format!("{} per device (6·N)", format::flops_rate(rate)));
}

fn memory(report: &StepReport) {
    let memory = &report.memory.compiled;
    row("compiled memory", &format!("{} per device", format::bytes(report.memory.total)));
    for (what, bytes) in [
        ("arguments", Some(memory.arguments)),
        ("results", Some(memory.outputs)),
        ("donated", Some(memory.aliased)),
        ("temporaries", Some(memory.temporaries)),
        ("code", Some(memory.code)),
        ("peak", memory.peak),
    ] {
        if let Some(bytes) = bytes {
            row(&format!("  {what}"), &format::bytes(bytes));
        }
    }
    if let Some(device) = &report.memory.device {
        let shown = |bytes: Option<u64>| bytes.map_or("?".into(), format::bytes);
        row(
            "device memory",
            &format!(
                "{} in use, {} peak, of {}",
                format::bytes(device.in_use),
                shown(device.peak),
                shown(device.limit)
            ),
        );
    }
}

/// The collectives, grouped by kind and dtype.
fn collectives(collectives: &[CollectiveReport]) {
    if collectives.is_empty() {
        row("collectives", "none");
        return;
    }
    show!("collectives           dtype per step     bytes/step  each");
    let mut left: Vec<&CollectiveReport> = collectives.iter().collect();
    while let Some(&first) = left.first() {
        let (alike, others) = left.into_iter().partition(|other| first.is_like(other));
        left = others;
        let alike: Vec<&CollectiveReport> = alike;
        let sum = |value: fn(&CollectiveReport) -> Option<u64>| {
            alike.iter().map(|collective| value(collective)).sum::<Option<u64>>()
        };
        let count = sum(|collective| collective.count);
        let total = sum(|collective| collective.bytes_per_step);
        let sizes = || alike.iter().filter_map(|collective| collective.bytes);
        let notes = [(first.in_loop, ", in a loop"), (first.asynchronous, ", asynchronous")];
        let notes: String = notes.iter().filter(|note| note.0).map(|note| note.1).collect();
        show!(
            "  {:<18} {:>6} {:>8} {:>14}  {}{notes}",
            first.kind,
            first.dtype.as_deref().unwrap_or("mixed"),
            count.map_or("?".into(), |count| count.to_string()),
            total.map_or("?".into(), format::bytes),
            range(sizes().min(), sizes().max()),
        );
    }
}

/// "2.0 KiB", or "2.0 KiB to 1.5 MiB".
fn range(least: Option<u64>, most: Option<u64>) -> String {
    match (least, most) {
        (Some(least), Some(most)) if least == most => format::bytes(least),
        (Some(least), Some(most)) => format!("{} to {}", format::bytes(least), format::bytes(most)),
        _ => "?".into(),
    }
}

fn row(what: &str, text: &str) {
    show!("{what:<20} {text}");
}

/// Prints the times of a checkpoint.
pub fn checkpoint(report: &CheckpointReport) {
    let rate = |bytes: u64, seconds: f64| {
        let rate = format::bytes((bytes as f64 / seconds.max(1e-9)) as u64);
        format!("{} at {rate}/s", format::seconds(seconds))
    };
    let (bytes, model) = (report.bytes, report.export_bytes);
    show!("{:<20} {}", "checkpoint", format::bytes(bytes));
    show!("{:<20} {}", "plain write", rate(bytes, report.plain_write_s));
    show!("{:<20} {}", "save", rate(bytes, report.write_s));
    show!("{:<20} {:.1} % of the rate of a plain write", "", 100.0 * report.write_share);
    let share = 100.0 * report.pause_s / report.write_s;
    show!("{:<20} {}, {share:.1} % of the save", "pause", format::seconds(report.pause_s));
    show!("{:<20} {}", "copies", format::bytes(report.copied_bytes));
    show!("{:<20} {}", "load", rate(bytes, report.load_s));
    show!("{:<20} {}", "export", rate(model, report.export_s));
    show!("{:<20} {}", "import", rate(model, report.import_s));
    show!("{:<20} {}", "peak memory", format::bytes(report.peak_memory));
}
