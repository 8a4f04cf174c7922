//! Memory: a bar of its kinds against the limit, and the largest buffers.

use super::format::{Escaped, bytes, percent};
use crate::report::{LargeBuffer, Memory};
use std::fmt::Write;

/// The width of drawings, in SVG units.
const WIDTH: f64 = 944.0;
const BAR: f64 = 44.0;
const TOP: f64 = 24.0;

const COLORS: [&str; 6] = ["blue", "cyan", "green", "yellow", "grey", "purple"];

pub fn section(memory: &Memory) -> String {
    let sentence = match memory.limit.checked_sub(memory.total) {
        Some(free) => format!("{} free per device.", bytes(free)),
        None => {
            let excess = bytes(memory.total - memory.limit);
            format!("{excess} per device over the limit, shown striped.")
        }
    };
    let host =
        memory.host_limit.filter(|_| !memory.fits_host()).map_or_else(String::new, |limit| {
            format!(" {} per device over the limit of host memory.", bytes(memory.host - limit))
        });
    format!(
        "<section id=\"memory\">\n<h2>Memory</h2>\n<p class=\"lead\">{sentence}{host}</p>\n\
         {}{}{}</section>\n",
        bar(memory),
        legend(memory),
        largest(memory)
    )
}

/// The color of a kind, by its index.
fn color(index: usize) -> &'static str {
    COLORS[index % COLORS.len()]
}

fn bar(memory: &Memory) -> String {
    let scale = WIDTH / memory.limit.max(memory.total).max(1) as f64;
    let (total, limit) = (memory.total as f64 * scale, memory.limit as f64 * scale);
    let height = TOP + BAR + 26.0;
    let mut svg = format!(
        "<div class=\"chart\"><svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{} of {} used\">\n\
         <rect class=\"track\" x=\"0\" y=\"{TOP}\" width=\"{limit:.2}\" height=\"{BAR}\" rx=\"4\"/>\n",
        bytes(memory.total),
        bytes(memory.limit)
    );
    let mut from = 0.0;
    for (index, part) in memory.parts.iter().enumerate().filter(|(_, part)| part.bytes > 0) {
        let width = part.bytes as f64 * scale;
        let share = percent(part.bytes as f64 / memory.total.max(1) as f64);
        // Writing to a string does not fail.
        let _ = writeln!(
            svg,
            "<rect class=\"part f-{}\" x=\"{from:.2}\" y=\"{TOP}\" width=\"{width:.2}\" height=\"{BAR}\" \
             data-bytes=\"{}\"><title>{}: {} ({share})</title></rect>",
            color(index),
            part.bytes,
            part.what,
            bytes(part.bytes)
        );
        from += width;
    }
    if total > limit {
        let _ = writeln!(
            svg,
            "<rect class=\"hatch\" x=\"{limit:.2}\" y=\"{TOP}\" width=\"{:.2}\" height=\"{BAR}\"/>",
            total - limit
        );
    }
    let (x, end) = if limit > WIDTH - 150.0 { (limit - 7.0, " end") } else { (limit + 7.0, "") };
    let below = TOP + BAR + 18.0;
    let _ = write!(
        svg,
        "<line class=\"limit\" x1=\"{limit:.2}\" x2=\"{limit:.2}\" y1=\"6\" y2=\"{}\"/>\n\
         <text class=\"strong{end}\" x=\"{x:.2}\" y=\"16\">{} available</text>\n\
         <text x=\"0\" y=\"{below}\">0</text>\n\
         <text class=\"middle\" x=\"{:.2}\" y=\"{below}\">{} needed</text>\n</svg></div>\n",
        TOP + BAR + 6.0,
        bytes(memory.limit),
        total.clamp(60.0, WIDTH - 60.0),
        bytes(memory.total)
    );
    svg
}

fn legend(memory: &Memory) -> String {
    let items = memory.parts.iter().enumerate().map(|(index, part)| {
        let (color, what) = (color(index), part.what);
        format!("<li><i class=\"b-{color}\"></i>{what}<b>{}</b></li>\n", bytes(part.bytes))
    });
    format!("<ul class=\"legend\">\n{}</ul>\n", items.collect::<String>())
}

fn largest(memory: &Memory) -> String {
    let Some(most) = memory.largest.first() else { return String::new() };
    let row = |buffer: &LargeBuffer| {
        let share = 100.0 * buffer.bytes as f64 / most.bytes.max(1) as f64;
        let module = match buffer.module.as_str() {
            "" => "<span class=\"dim\">none</span>".to_owned(),
            module => Escaped(module).to_string(),
        };
        format!(
            "<tr><td class=\"number\">{}</td><td class=\"meter\"><div style=\"width:{share:.1}%\"></div></td>\
             <td><code>{}</code></td><td>{module}</td><td class=\"dim\"><code>{}</code></td></tr>\n",
            bytes(buffer.bytes),
            Escaped(&buffer.shape),
            Escaped(&buffer.instruction)
        )
    };
    format!(
        "<h3>Largest buffers at the memory peak</h3>\n<div class=\"scroll\"><table>\n\
         <tr><th class=\"number\">size</th><th></th><th>shape</th><th>module</th><th>instruction</th>\
         </tr>\n{}</table></div>\n",
        memory.largest.iter().take(10).map(row).collect::<String>()
    )
}
