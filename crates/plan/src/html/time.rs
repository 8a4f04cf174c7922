//! Time: compute and communication of a step, and a timeline by module.

use super::format::{Escaped, percent, plural, seconds};
use crate::report::{ModuleTime, Report, Time};
use std::fmt::Write;

const WIDTH: f64 = 944.0;
const NAMES: f64 = 250.0;
const FIGURES: f64 = 84.0;
const ROW: f64 = 23.0;

/// Modules that take a smaller share of the step than this are merged.
const MIN_SHARE: f64 = 0.004;

pub fn section(report: &Report) -> String {
    let time = &report.time;
    let sentence = match (time.exposed > 0.0, time.hidden > 0.0) {
        (false, false) => "No communication: the whole step is compute.".to_owned(),
        (false, true) => "All communication is overlapped with compute.".to_owned(),
        (true, hidden) => format!(
            "Exposed communication takes {} of the step{}.",
            percent(time.exposed / time.step),
            if hidden {
                format!("; {} more are overlapped with compute", seconds(time.hidden))
            } else {
                String::new()
            }
        ),
    };
    let waits = match time.contention > 0.0 {
        true => format!(
            " For {} of it collectives wait for links that others use.",
            seconds(time.contention)
        ),
        false => String::new(),
    };
    format!(
        "<section id=\"time\">\n<h2>Time</h2>\n<p class=\"lead\">{sentence}{waits}</p>\n\
         {}{}{}</section>\n",
        bar(time),
        legend(time),
        timeline(report)
    )
}

/// Compute, then exposed communication; below it overlapped communication.
fn bar(time: &Time) -> String {
    let scale = WIDTH / time.step.max(time.compute + time.exposed).max(f64::MIN_POSITIVE);
    let (compute, exposed, hidden) =
        (time.compute * scale, time.exposed * scale, time.hidden * scale);
    let mut svg = format!(
        "<div class=\"chart\"><svg viewBox=\"0 0 {WIDTH} 42\" role=\"img\" aria-label=\"compute {}, exposed {}, hidden {}\">\n\
         <rect class=\"f-blue\" x=\"0\" y=\"0\" width=\"{compute:.2}\" height=\"26\" rx=\"3\">\
         <title>compute: {0}</title></rect>\n",
        seconds(time.compute),
        seconds(time.exposed),
        seconds(time.hidden)
    );
    if exposed > 0.0 {
        let _ = writeln!(
            svg,
            "<rect class=\"hatch\" x=\"{compute:.2}\" y=\"0.5\" width=\"{exposed:.2}\" height=\"25\">\
             <title>exposed communication: {}</title></rect>",
            seconds(time.exposed)
        );
    }
    if hidden > 0.0 {
        let from = (compute - hidden).max(0.0);
        let _ = writeln!(
            svg,
            "<rect class=\"hidden\" x=\"{from:.2}\" y=\"31\" width=\"{:.2}\" height=\"9\" rx=\"2\">\
             <title>overlapped communication: {}</title></rect>",
            hidden.min(WIDTH - from),
            seconds(time.hidden)
        );
    }
    svg.push_str("</svg></div>\n");
    svg
}

fn legend(time: &Time) -> String {
    let mut items =
        format!("<li><i class=\"b-blue\"></i>compute<b>{}</b></li>\n", seconds(time.compute));
    for (class, what, value) in [
        ("b-hatch", "exposed communication", time.exposed),
        ("b-hidden", "overlapped communication", time.hidden),
    ] {
        if value > 0.0 {
            let _ = writeln!(
                items,
                "<li><i class=\"{class}\"></i>{what}<b>{}</b></li>",
                seconds(value)
            );
        }
    }
    format!("<ul class=\"legend\">\n{items}</ul>\n")
}

/// A row of the timeline.
struct Row {
    name: String,
    layers: bool,
    compute: f64,
    exposed: f64,
}

impl Row {
    fn all(&self) -> f64 {
        self.compute + self.exposed
    }
}

fn timeline(report: &Report) -> String {
    let time = &report.time;
    let passes = [("Forward", false), ("Backward", true)].map(|(name, backward)| {
        let modules = time.modules.iter().filter(|module| module.backward == backward);
        (name, rows(modules, time.step))
    });
    let lines: usize =
        passes.iter().map(|(_, rows)| if rows.is_empty() { 0 } else { rows.len() + 1 }).sum();
    if lines == 0 {
        return String::new();
    }
    let layers = report.model.layers;
    let axis = lines as f64 * ROW + 8.0;
    let width = WIDTH - NAMES - FIGURES;
    let scale = width / time.step.max(f64::MIN_POSITIVE);
    let mut svg = format!(
        "<h3>Time by module</h3>\n<div class=\"chart\"><svg viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" \
         aria-label=\"timeline of the step by module\">\n",
        axis + 24.0
    );
    for tick in 0..=4 {
        let x = NAMES + width * f64::from(tick) / 4.0;
        let _ = writeln!(
            svg,
            "<line class=\"rule\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"0\" y2=\"{axis:.1}\"/>\
             <text class=\"middle\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
            axis + 17.0,
            if tick == 0 { "0".to_owned() } else { seconds(time.step * f64::from(tick) / 4.0) }
        );
    }
    let (mut y, mut from) = (0.0, 0.0);
    for (name, rows) in passes.iter().filter(|(_, rows)| !rows.is_empty()) {
        let all: f64 = rows.iter().map(Row::all).sum();
        let _ = writeln!(
            svg,
            "<text class=\"strong\" x=\"0\" y=\"{:.1}\">{name}</text>\
             <text class=\"strong end\" x=\"{WIDTH}\" y=\"{0:.1}\">{}</text>",
            y + 16.0,
            seconds(all)
        );
        y += ROW;
        for row in rows {
            draw(&mut svg, row, layers, y, NAMES + from * scale, scale);
            from += row.all();
            y += ROW;
        }
    }
    svg.push_str("</svg></div>\n");
    svg
}

fn draw(svg: &mut String, row: &Row, layers: usize, y: f64, x: f64, scale: f64) {
    let width = (row.compute * scale).max(1.0);
    let count = if row.layers { format!(" ×{layers}") } else { String::new() };
    let name = shortened(&row.name);
    let mut title = format!("{}{count}: compute {}", Escaped(&row.name), seconds(row.compute));
    if row.exposed > 0.0 {
        let _ = write!(title, ", exposed communication {}", seconds(row.exposed));
    }
    let count = if count.is_empty() {
        count
    } else {
        format!("<tspan font-weight=\"600\">{count}</tspan>")
    };
    let _ = write!(
        svg,
        "<g class=\"module\"><title>{title}</title><text x=\"12\" y=\"{text:.1}\">{}{count}</text>\
         <rect class=\"f-blue\" x=\"{x:.2}\" y=\"{bar:.1}\" width=\"{width:.2}\" height=\"14\" rx=\"1.5\"/>",
        Escaped(&name),
        text = y + 15.0,
        bar = y + 4.0
    );
    if row.exposed > 0.0 {
        let _ = write!(
            svg,
            "<rect class=\"hatch\" x=\"{:.2}\" y=\"{:.1}\" width=\"{:.2}\" height=\"13\"/>",
            x + width,
            y + 4.5,
            (row.exposed * scale).max(1.0)
        );
    }
    let _ = writeln!(
        svg,
        "<text class=\"end\" x=\"{WIDTH}\" y=\"{:.1}\">{}</text></g>",
        y + 15.0,
        seconds(row.all())
    );
}

/// A name truncated at the start, since the end distinguishes modules.
fn shortened(name: &str) -> String {
    const MAX: usize = 30;
    let length = name.chars().count();
    match length > MAX {
        true => format!("…{}", name.chars().skip(length - MAX + 1).collect::<String>()),
        false => name.to_owned(),
    }
}

/// The rows of a pass: all layers merged, and small modules merged.
fn rows<'a>(modules: impl Iterator<Item = &'a ModuleTime>, step: f64) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for module in modules {
        let (name, layers) = of_any_layer(&module.module);
        let row = Row { name, layers, compute: module.compute, exposed: module.exposed };
        match rows.iter_mut().find(|known| known.name == row.name) {
            Some(known) => {
                known.compute += row.compute;
                known.exposed += row.exposed;
            }
            None => rows.push(row),
        }
    }
    let (mut shown, small): (Vec<Row>, Vec<Row>) =
        rows.into_iter().partition(|row| row.all() >= MIN_SHARE * step);
    let compute: f64 = small.iter().map(|row| row.compute).sum();
    let exposed: f64 = small.iter().map(|row| row.exposed).sum();
    if compute + exposed > 0.0 {
        let name = plural(small.len(), "smaller module");
        shown.push(Row { name, layers: false, compute, exposed });
    }
    shown
}

/// The path of a module with a `*` for the layer number, and whether it has one.
fn of_any_layer(path: &str) -> (String, bool) {
    if path.is_empty() {
        return ("(no module)".to_owned(), false);
    }
    let is_layer = |part: &str| part == "*" || part.bytes().all(|byte| byte.is_ascii_digit());
    let layers = path.split('.').any(is_layer);
    let parts: Vec<&str> =
        path.split('.').map(|part| if is_layer(part) { "*" } else { part }).collect();
    (parts.join("."), layers)
}
