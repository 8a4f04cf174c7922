//! A plan as an HTML page: one self-contained file with inline SVG and no scripts.

mod collectives;
mod format;
mod frontier;
mod goodput;
mod memory;
mod start_up;
mod table;
mod time;
mod torus;

use crate::report::{Basis, Report};
use crate::search::Frontier;
use format::{Escaped, count, percent, plural, seconds};

const STYLE: &str = include_str!("style.css");

/// The HTML page of a plan, with the search results if there was a search.
pub fn page(report: &Report, frontier: Option<&Frontier>) -> String {
    let title = title(report);
    let parts = [
        verdict(report),
        memory::section(&report.memory),
        time::section(report),
        start_up::section(&report.start_up),
        goodput::section(&report.goodput),
        collectives::section(report),
        frontier.map(frontier::section).unwrap_or_default(),
        warnings(report),
    ];
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{HATCH}<main>\n\
         {head}{parts}{foot}</main>\n</body>\n</html>\n",
        head = head(report, &title),
        parts = parts.concat(),
        foot = foot(report),
    )
}

/// The pattern of exposed communication, distinguishable without color.
const HATCH: &str = "<svg width=\"0\" height=\"0\" style=\"position:absolute\" aria-hidden=\"true\">\
    <defs><pattern id=\"hatch\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" \
    patternTransform=\"rotate(45)\"><rect class=\"hatch-back\" width=\"5\" height=\"5\"/>\
    <line class=\"hatch-line\" x1=\"1.5\" y1=\"0\" x2=\"1.5\" y2=\"5\"/></pattern></defs></svg>\n";

fn title(report: &Report) -> String {
    let model = &report.model;
    format!(
        "{}, {} parameters, on {}",
        Escaped(&model.class),
        count(model.parameters as f64),
        Escaped(&report.machine.name)
    )
}

fn head(report: &Report, title: &str) -> String {
    let (machine, settings) = (&report.machine, &report.settings);
    let accumulation = match settings.gradient_accumulation_steps {
        0 | 1 => String::new(),
        steps => format!(" × {steps} gradient accumulation steps"),
    };
    let launch = match settings.iterations_per_loop {
        0 | 1 => String::new(),
        steps => format!(" · {steps} steps per launch"),
    };
    format!(
        "<header>\n<p class=\"kicker\">Fullshard plan</p>\n<h1>{title}</h1>\n\
         <p>{} ({}) · {} × {} tokens{accumulation}{launch} · {} with gradients in {} · {} · {} · remat {}{}\
         </p>\n</header>\n",
        plural(machine.devices, "device"),
        Escaped(&machine.chip),
        settings.batch,
        settings.sequence,
        Escaped(&settings.compute_name()),
        Escaped(&settings.reduce_dtype),
        Escaped(&settings.fsdp),
        Escaped(&settings.optimizer),
        Escaped(&settings.remat),
        if settings.scan_layers { " · scanned layers" } else { "" },
    )
}

/// The headline figures.
fn verdict(report: &Report) -> String {
    let (memory, rates) = (&report.memory, &report.rates);
    let (used, limit, of) = match memory.host_limit {
        Some(limit) if memory.total <= memory.limit && !memory.fits_host() => {
            (memory.host, limit, "host memory per device")
        }
        _ => (memory.total, memory.limit, "per device"),
    };
    let share = used as f64 / limit.max(1) as f64;
    let (class, word) =
        if memory.fits() { ("fits", "✓ Fits") } else { ("not", "✕ Does not fit") };
    let sizes = format!("{} of {} {of}", format::bytes(used), format::bytes(limit));
    let mut tiles = vec![(seconds(report.time.step), "per step".to_owned())];
    if let Some(mfu) = rates.mfu {
        let others = [("PaLM", rates.mfu_palm), ("HFU", rates.hfu)];
        let others =
            others.map(|(what, rate)| rate.map(|rate| format!("{what} {}", percent(rate))));
        let others: Vec<String> = others.into_iter().flatten().collect();
        let also =
            if others.is_empty() { String::new() } else { format!("; {}", others.join(", ")) };
        tiles.push((percent(mfu), format!("MFU{also}")));
    }
    let budget = [
        rates.days.map(|days| format!("{days:.1} days")),
        report.goodput.days.map(|days| format!("{days:.1} with failures")),
        rates.cost_usd.map(|cost| format!("${}", count(cost))),
    ];
    let budget: Vec<String> = budget.into_iter().flatten().collect();
    let also = if budget.is_empty() { String::new() } else { format!("; {}", budget.join(", ")) };
    tiles.push((count(rates.tokens_per_second), format!("tokens per second{also}")));
    let tiles: String = tiles
        .iter()
        .map(|(big, small)| format!("<div><b>{big}</b><span>{small}</span></div>\n"))
        .collect();
    format!(
        "<section class=\"verdict\" id=\"verdict\">\n<div class=\"{class}\"><b>{word}</b>\
         <span>{sizes}, {}</span></div>\n{tiles}</section>\n",
        percent(share)
    )
}

fn warnings(report: &Report) -> String {
    if report.warnings.is_empty() {
        return String::new();
    }
    let items = report.warnings.iter().map(|warning| {
        let (what, fix) = (Escaped(&warning.what), Escaped(&warning.fix));
        format!("<li><b>{what}</b><span>fix: {fix}</span></li>\n")
    });
    format!(
        "<section id=\"warnings\">\n<h2>Warnings</h2>\n<p class=\"lead\">{}, each with a fix.</p>\n\
         <ul class=\"warnings\">\n{}</ul>\n</section>\n",
        plural(report.warnings.len(), "warning"),
        items.collect::<String>()
    )
}

fn foot(report: &Report) -> String {
    let basis = match &report.basis {
        Basis::Quick => "Estimated by formula, without a compiler.".to_owned(),
        Basis::Compiled { seconds: time, compiler, .. } => {
            format!("From the program compiled by {} in {}.", Escaped(compiler), seconds(*time))
        }
    };
    let program = report.program.as_deref().map_or_else(String::new, |sum| {
        format!("<p>SHA-256 of the step program: <code>{}</code></p>\n", Escaped(sum))
    });
    let notes: String =
        report.notes.iter().map(|note| format!("<li>{}</li>\n", Escaped(note))).collect();
    let notes = if notes.is_empty() { notes } else { format!("<ul>\n{notes}</ul>\n") };
    format!("<footer id=\"notes\">\n<p>{basis}</p>\n{notes}{program}</footer>\n")
}

#[cfg(test)]
mod tests;
