//! Prints a plan.

use crate::output::{print_by_module, show};
use fullshard::format;
use fullshard_plan::{Basis, Goodput, Report, StartUp};

/// Maximum number of printed modules and collectives.
const ROWS: usize = 12;

/// Prints a plan.
pub fn report(report: &Report) {
    head(report);
    memory(report);
    time(report);
    rates(report);
    start_up(&report.start_up);
    goodput(&report.goodput);
    collectives(report);
    print_by_module(&report.collectives_by_module);
    for warning in &report.warnings {
        show!("\nwarning: {}\n  fix: {}", warning.what, warning.fix);
    }
    show!();
    for note in &report.notes {
        show!("note: {note}");
    }
}

fn head(report: &Report) {
    let (model, machine, settings) = (&report.model, &report.machine, &report.settings);
    show!(
        "{} of {} parameters on {} ({} of {})",
        model.class,
        format::grouped(model.parameters as usize),
        machine.name,
        format::count(machine.devices, "device"),
        machine.chip,
    );
    let accumulated = match settings.gradient_accumulation_steps {
        1 => String::new(),
        steps => format!(" × {steps}"),
    };
    show!(
        "{} × {} tokens{accumulated} per step, {} with gradients in {}, {}, {}, remat {}, {} \
         layers",
        settings.batch,
        settings.sequence,
        settings.compute_name(),
        settings.reduce_dtype,
        settings.fsdp,
        settings.optimizer,
        settings.remat,
        if settings.scan_layers { "scanned" } else { "unrolled" },
    );
    if settings.iterations_per_loop > 1 {
        show!("{} steps per launch", settings.iterations_per_loop);
    }
    match &report.basis {
        Basis::Quick => row("estimated", "by formula, not compiled"),
        Basis::Compiled { seconds, cached, compiler } => {
            let cached = if *cached { " (cached)" } else { "" };
            row("compiled in", &format!("{} by {compiler}{cached}", format::seconds(*seconds)));
        }
    }
    if let Some(program) = &report.program {
        row("step program", program);
    }
}

fn memory(report: &Report) {
    let memory = &report.memory;
    let verdict = match memory.total.checked_sub(memory.limit) {
        None | Some(0) => "fits".to_owned(),
        Some(excess) => format!("does NOT fit, {} over", format::bytes(excess)),
    };
    show!();
    row(
        "memory per device",
        &format!("{} of {}: {verdict}", format::bytes(memory.total), format::bytes(memory.limit)),
    );
    for part in &memory.parts {
        row(&format!("  {}", part.what), &format::bytes(part.bytes));
    }
    if memory.host > 0 {
        let limit = memory.host_limit.map(format::bytes);
        let of = limit.map_or(String::new(), |limit| format!(" of {limit}"));
        let verdict = if memory.fits_host() { "" } else { ": does NOT fit" };
        let used = format::bytes(memory.host);
        row("host memory per device", &format!("{used}{of}{verdict}"));
    }
    if !memory.largest.is_empty() {
        show!("  largest buffers at peak");
    }
    for buffer in &memory.largest {
        let module = if buffer.module.is_empty() { "(no module)" } else { &buffer.module };
        show!("    {:>10}  {:<28} {module}", format::bytes(buffer.bytes), buffer.shape);
    }
}

fn time(report: &Report) {
    let time = &report.time;
    show!();
    row("step", &format::seconds(time.step));
    for (what, seconds) in [
        ("  compute", time.compute),
        ("  communication", time.exposed),
        ("  overlapped", time.hidden),
    ] {
        row(what, &format::seconds(seconds));
    }
    if time.contention > 0.0 {
        let waited = format::seconds(time.contention);
        row("  contention", &format!("{waited} of the communication waits for links in use"));
    }
    let mut modules: Vec<_> = time.modules.iter().collect();
    let all = |module: &fullshard_plan::ModuleTime| module.compute + module.exposed;
    modules.sort_by(|a, b| all(b).total_cmp(&all(a)));
    if !modules.is_empty() {
        show!("  by module                                compute  communication");
    }
    for module in modules.into_iter().take(ROWS) {
        let name = if module.module.is_empty() { "(root)" } else { &module.module };
        let pass = if module.backward { " (backward)" } else { "" };
        show!(
            "    {:<36} {:>9} {:>14}",
            format!("{name}{pass}"),
            format::seconds(module.compute),
            format::seconds(module.exposed)
        );
    }
}

fn rates(report: &Report) {
    let rates = &report.rates;
    show!();
    row("tokens/s", &format!("{:.0}", rates.tokens_per_second));
    let percent =
        |share: Option<f64>| share.map_or("?".into(), |share| format!("{:.1} %", 100.0 * share));
    let pair =
        |six_n, palm| format!("{} (6·N), {} (PaLM, with attention)", percent(six_n), percent(palm));
    match report.machine.peak {
        Some(peak) => {
            let of = format!("of {}", format::flops_rate(peak));
            row("MFU", &format!("{} {of}", pair(rates.mfu, rates.mfu_palm)));
            row("HFU", &pair(rates.hfu, rates.hfu_palm));
        }
        None => row("MFU", "unknown: no known peak FLOP/s"),
    }
    if let Some(days) = rates.days {
        row("days", &format!("{days:.2}"));
    }
    if let Some(cost) = rates.cost_usd {
        row("cost", &format!("${}", format::grouped(cost.round() as usize)));
    }
}

fn start_up(start_up: &StartUp) {
    let total = format::seconds(start_up.total());
    let compiling = if start_up.compile.is_some() { "" } else { " and compiling" };
    let hosts = format::count(start_up.hosts, "host");
    let further = format::seconds(start_up.per_host);
    show!();
    row("start-up", &format!("{total}{compiling} on {hosts}; a further host adds {further}"));
    for part in start_up.parts() {
        let seconds = part.seconds.map_or_else(|| "unknown".to_owned(), format::seconds);
        row(&format!("  {}", part.what), &format!("{seconds:<10} {}", part.growth));
    }
}

fn goodput(goodput: &Goodput) {
    let published = if goodput.given_mtbf { "" } else { ", a published rate" };
    show!();
    row(
        "goodput",
        &format!(
            "{:.1} % with a failure every {} on {} ({:.0} days each{published})",
            100.0 * goodput.goodput,
            goodput.failure_every(),
            format::count(goodput.hosts, "host"),
            goodput.host_mtbf_days
        ),
    );
    for part in goodput.parts() {
        row(
            &format!("  {}", part.what),
            &format!("{:<10} {}", format::seconds(part.seconds), part.when),
        );
    }
    if let Some(days) = goodput.days {
        row("days with failures", &format!("{days:.2}"));
    }
    if let Some(cost) = goodput.cost_usd {
        row("cost with failures", &format!("${}", format::grouped(cost.round() as usize)));
    }
}

fn collectives(report: &Report) {
    show!();
    if report.collectives.is_empty() {
        return row("collectives", "none");
    }
    let islands = if report.machine.torus.is_empty() { "nodes" } else { "slices" };
    show!(
        "collectives                  axis  group {islands:>6}   count       each       time \
         overlapped"
    );
    for row in report.collectives.iter().take(ROWS) {
        show!(
            "  {:<18} {:>12} {:>6} {:>6} {:>7} {:>10} {:>10} {:>10}",
            row.kind,
            row.axis,
            row.group,
            row.islands,
            row.count,
            format::bytes(row.bytes),
            format::seconds(row.seconds),
            format::seconds(row.hidden),
        );
    }
    if report.collectives.len() > ROWS {
        let rest = &report.collectives[ROWS..];
        let seconds = rest.iter().map(|row| row.seconds).sum();
        show!("  and {} more rows, {}", rest.len(), format::seconds(seconds));
    }
}

fn row(what: &str, text: &str) {
    show!("{what:<20} {text}");
}
