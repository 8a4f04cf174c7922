//! The report for people.

use super::breakdown;
use crate::output::print_estimate;
use fullshard::bench::{CollectiveReport, PlanReport, PlannedCollective, StepReport};
use fullshard::format;

/// The plan: model, units and what they should need.
pub fn plan(plan: &PlanReport) {
    let (model, settings) = (&plan.model, &plan.settings.step);
    println!(
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
    println!(
        "{} × {} tokens{accumulated} a step, {} with gradients in {}, {}, remat {}, layers {}{}",
        settings.batch,
        settings.sequence,
        settings.compute_dtype,
        settings.reduce_dtype,
        settings.optimizer,
        settings.remat,
        if settings.scan_layers { "in a loop" } else { "written out" },
        if settings.gather_ahead { ", gathered ahead" } else { "" },
    );
    println!("{}", plan.attention);
    println!("\n{}\n", plan.table);
    print_estimate(&plan.estimate);
    println!();
    exchanges(plan.exchanges.as_deref());
}

/// What a pass exchanges, unit by unit.
fn exchanges(exchanges: Option<&[PlannedCollective]>) {
    let exchanges = match exchanges {
        None => return row("exchanges", "all gathered once and all reduced once a step"),
        Some([]) => return row("exchanges", "none"),
        Some(exchanges) => exchanges,
    };
    println!("exchanges             dtype   a pass   bytes a pass  each");
    let mut above = None;
    for exchange in exchanges {
        if above.replace(&exchange.unit) != Some(&exchange.unit) {
            let root = exchange.unit.is_empty();
            println!("  {}", if root { "(root)" } else { &exchange.unit });
        }
        println!(
            "    {:<16} {:>6} {:>8} {:>14}  {}",
            exchange.kind,
            exchange.dtype,
            exchange.count,
            format::bytes(exchange.bytes_per_pass as u64),
            range(Some(exchange.least_bytes as u64), Some(exchange.most_bytes as u64)),
        );
    }
}

/// What was measured.
pub fn measured(report: &StepReport) {
    println!();
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
        row("attention", &format!("{calls} calls of cuDNN's kernels a step"));
    }
    memory(report);
    collectives(&report.collectives);
    println!();
    speed(report);
    for (what, values) in [("loss", &report.loss), ("gradient norm", &report.gradient_norm)] {
        row(what, &format!("{:.4} → {:.4}", values.first, values.last));
    }
    if let Some(taken) = &report.breakdown {
        println!("\n{}", breakdown::text(taken, report.time.step));
    }
}

fn speed(report: &StepReport) {
    let (time, spread) = (&report.time, &report.time.spread);
    let steps = time.waited.len();
    row(
        "step",
        &format!(
            "{} over {}, {}",
            format::seconds(time.step),
            format::count(steps, "step"),
            if time.ahead { "launched ahead" } else { "one after another" }
        ),
    );
    row(
        "  one by one",
        &format!(
            "{} median, {} to {} (half of them {} to {})",
            format::seconds(spread.median),
            format::seconds(spread.min),
            format::seconds(spread.max),
            format::seconds(spread.lower_quartile),
            format::seconds(spread.upper_quartile)
        ),
    );
    row(
        "tokens",
        &format!(
            "{:.0}/s, {:.0}/s a device",
            report.tokens_per_second, report.tokens_per_second_per_device
        ),
    );
    let mfu = &report.mfu;
    let text = match (mfu.peak, mfu.post, mfu.palm) {
        (Some(peak), Some(post), Some(palm)) => format!(
            "{:.1} % (6·N), {:.1} % (with attention, as PaLM counts) of {} ({}, {})",
            100.0 * post,
            100.0 * palm,
            format::flops_rate(peak),
            report.chip.map_or("?", |chip| chip.name),
            report.plan.settings.step.compute_dtype,
        ),
        _ => format!(
            "unknown: no peak is known of `{}` in {}",
            report.device_kind, report.plan.settings.step.compute_dtype
        ),
    };
    row("MFU", &text);
    if let Some(products) = report.plan.settings.step.eight_bit_products {
        let peak = report.chip.and_then(|chip| chip.fp8).map(format::flops_rate);
        let peak = peak.map_or_else(String::new, |peak| format!(", for which the peak is {peak}"));
        let products = format::count(products, "product");
        row("  in 8 bits", &format!("{products} of layers{peak}"));
    }
    let rate = report.flops.post / report.time.step / report.plan.settings.step.devices as f64;
    row("arithmetic", &format!("{} a device (6·N)", format::flops_rate(rate)));
}

fn memory(report: &StepReport) {
    let memory = &report.memory.compiled;
    row("compiled memory", &format!("{} a device", format::bytes(report.memory.total)));
    for (what, bytes) in [
        ("arguments", Some(memory.arguments)),
        ("results", Some(memory.outputs)),
        ("of those donated", Some(memory.aliased)),
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
                "{} in use, {} at most, of {}",
                format::bytes(device.in_use),
                shown(device.peak),
                shown(device.limit)
            ),
        );
    }
}

/// The collectives, those of a kind and type in one row.
fn collectives(collectives: &[CollectiveReport]) {
    if collectives.is_empty() {
        row("collectives", "none");
        return;
    }
    println!("collectives           dtype   a step   bytes a step  each");
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
        println!(
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
    println!("{what:<20} {text}");
}
