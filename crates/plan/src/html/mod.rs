//! A plan as a page: one file that needs nothing else, with drawings instead of scripts.

mod exchange;
mod frontier;
mod memory;
mod table;
mod time;
mod torus;
mod words;

use crate::report::{Basis, Report};
use crate::search::Frontier;
use words::{Escaped, count, percent, seconds, several};

const STYLE: &str = include_str!("style.css");

/// A whole page of HTML for a plan, with what a search found if there was one.
pub fn page(report: &Report, frontier: Option<&Frontier>) -> String {
    let title = title(report);
    let parts = [
        verdict(report),
        memory::section(&report.memory),
        time::section(report),
        exchange::section(report),
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

/// The pattern of what is waited for, so that it is told apart without colour too.
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
        steps => format!(", {steps} times a step"),
    };
    format!(
        "<header>\n<p class=\"kicker\">Fullshard plan</p>\n<h1>{title}</h1>\n\
         <p>{} ({}) · {} × {} tokens{accumulation} · {} with gradients in {} · {} · {} · remat {}{}\
         </p>\n</header>\n",
        several(machine.devices, "device"),
        Escaped(&machine.chip),
        settings.batch,
        settings.sequence,
        Escaped(&settings.compute_name()),
        Escaped(&settings.reduce_dtype),
        Escaped(&settings.fsdp),
        Escaped(&settings.optimizer),
        Escaped(&settings.remat),
        if settings.scan_layers { " · layers in a loop" } else { "" },
    )
}

/// What matters most, at a glance.
fn verdict(report: &Report) -> String {
    let (memory, rates) = (&report.memory, &report.rates);
    let share = memory.total as f64 / memory.limit.max(1) as f64;
    let (class, word) =
        if memory.fits() { ("fits", "✓ Fits") } else { ("not", "✕ Does not fit") };
    let sizes = format!("{} of {}", words::bytes(memory.total), words::bytes(memory.limit));
    let mut tiles = vec![(seconds(report.time.step), "a step".to_owned())];
    if let Some(mfu) = rates.mfu {
        let others = [("PaLM's", rates.mfu_palm), ("HFU", rates.hfu)];
        let others =
            others.map(|(what, rate)| rate.map(|rate| format!("{what} {}", percent(rate))));
        let others: Vec<String> = others.into_iter().flatten().collect();
        let also =
            if others.is_empty() { String::new() } else { format!("; {}", others.join(", ")) };
        tiles.push((percent(mfu), format!("MFU{also}")));
    }
    let budget = [
        rates.days.map(|days| format!("{days:.1} days")),
        rates.cost.map(|cost| format!("costs {}", count(cost))),
    ];
    let budget: Vec<String> = budget.into_iter().flatten().collect();
    let also = if budget.is_empty() { String::new() } else { format!("; {}", budget.join(", ")) };
    tiles.push((count(rates.tokens_per_second), format!("tokens a second{also}")));
    let tiles: String = tiles
        .iter()
        .map(|(big, small)| format!("<div><b>{big}</b><span>{small}</span></div>\n"))
        .collect();
    format!(
        "<section class=\"verdict\" id=\"verdict\">\n<div class=\"{class}\"><b>{word}</b>\
         <span>{sizes} a device, {}</span></div>\n{tiles}</section>\n",
        percent(share)
    )
}

fn warnings(report: &Report) -> String {
    if report.warnings.is_empty() {
        return String::new();
    }
    let items = report.warnings.iter().map(|warning| {
        let (what, remedy) = (Escaped(&warning.what), Escaped(&warning.remedy));
        format!("<li><b>{what}</b><span>{remedy}</span></li>\n")
    });
    format!(
        "<section id=\"warnings\">\n<h2>In the way</h2>\n<p class=\"lead\">{} to look at, each with \
         what would help.</p>\n<ul class=\"warnings\">\n{}</ul>\n</section>\n",
        several(report.warnings.len(), "thing"),
        items.collect::<String>()
    )
}

fn foot(report: &Report) -> String {
    let basis = match &report.basis {
        Basis::Quick => "Estimated by formula, without a compiler.".to_owned(),
        Basis::Compiled { seconds: taken, compiler, .. } => {
            format!(
                "Read from the program of {}, compiled in {}.",
                Escaped(compiler),
                seconds(*taken)
            )
        }
    };
    let program = report.program.as_deref().map_or_else(String::new, |sum| {
        format!("<p>SHA-256 of the step: <code>{}</code></p>\n", Escaped(sum))
    });
    let notes: String =
        report.notes.iter().map(|note| format!("<li>{}</li>\n", Escaped(note))).collect();
    let notes = if notes.is_empty() { notes } else { format!("<ul>\n{notes}</ul>\n") };
    format!("<footer id=\"notes\">\n<p>{basis}</p>\n{notes}{program}</footer>\n")
}

#[cfg(test)]
mod tests;
