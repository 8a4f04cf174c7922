//! Communication: the network with its traffic, and every kind of collective.

use super::format::{Escaped, bytes, plural, seconds};
use super::table as folding;
use super::torus;
use crate::report::{CollectiveTime, MachineSummary, ModuleCollectives, Report};
use std::fmt::Write;

pub fn section(report: &Report) -> String {
    let (machine, collective_times) = (&report.machine, &report.collectives);
    if machine.devices < 2 {
        return String::new();
    }
    let sentence = match collective_times.is_empty() {
        true => "No collectives.".to_owned(),
        false => {
            let total = collective_times.iter().map(|it| it.bytes.saturating_mul(it.count)).sum();
            let count: u64 = collective_times.iter().map(|it| it.count).sum();
            format!("{count} collectives per step, {} in total.", bytes(total))
        }
    };
    let drawing = match machine.torus.is_empty() {
        true => switch(machine.devices / machine.islands.max(1)),
        false => torus::drawing(machine, &carried(machine, collective_times)),
    };
    format!(
        "<section id=\"communication\">\n<h2>Communication</h2>\n<p class=\"lead\">{sentence}</p>\n\
         <div class=\"two\">\n<div>{drawing}</div>\n<div>{}</div>\n</div>\n{}{}</section>\n",
        links(machine, collective_times),
        table(machine, collective_times),
        by_module(&report.collectives_by_module)
    )
}

/// The letter of a dimension.
pub fn letter(dim: usize) -> char {
    ['x', 'y', 'z'].get(dim).copied().unwrap_or('w')
}

/// The islands of a machine: `slice`s of a torus or `node`s of a switch.
fn islands(machine: &MachineSummary, count: usize) -> String {
    plural(count, if machine.torus.is_empty() { "node" } else { "slice" })
}

/// The bytes of the collectives along each dimension.
fn carried(machine: &MachineSummary, collective_times: &[CollectiveTime]) -> Vec<u64> {
    let mut carried = vec![0_u64; machine.torus.len()];
    for it in collective_times {
        for &dim in &it.dims {
            if let Some(carried) = carried.get_mut(dim) {
                *carried = carried.saturating_add(it.bytes.saturating_mul(it.count));
            }
        }
    }
    carried
}

/// The bytes of the collectives that span several islands.
fn between_islands(collective_times: &[CollectiveTime]) -> u64 {
    let between = collective_times.iter().filter(|it| it.islands > 1);
    between.fold(0, |sum, it| sum.saturating_add(it.bytes.saturating_mul(it.count)))
}

/// The table of dimensions with their traffic.
fn links(machine: &MachineSummary, collective_times: &[CollectiveTime]) -> String {
    let each = plural(machine.devices / machine.islands.max(1), "device");
    let several = match machine.islands {
        0 | 1 => String::new(),
        count => format!(
            "<p class=\"dim\">{} of {each}. Collectives between them: {} per step.</p>",
            islands(machine, count),
            bytes(between_islands(collective_times))
        ),
    };
    if machine.torus.is_empty() {
        return format!("{several}<p class=\"dim\">{each}, all connected through a switch.</p>");
    }
    let carried = carried(machine, collective_times);
    let mut rows = String::new();
    for (dim, &length) in machine.torus.iter().enumerate().filter(|(_, length)| **length > 1) {
        let ring = machine.wrap.get(dim).copied().unwrap_or(false);
        let form = match (length, ring) {
            (2, true) => "pair".to_owned(),
            (length, true) => format!("ring of {length}"),
            (length, false) => format!("line of {length}"),
        };
        let kinds: Vec<String> = collective_times
            .iter()
            .filter(|it| it.dims.contains(&dim))
            .map(|it| it.kind.clone())
            .collect();
        let mut names: Vec<&str> = kinds.iter().map(String::as_str).collect();
        names.sort_unstable();
        names.dedup();
        let _ = writeln!(
            rows,
            "<tr><td><svg style=\"width:34px\" viewBox=\"0 0 34 8\"><line class=\"l{}\" stroke-width=\"3\" \
             x1=\"2\" x2=\"32\" y1=\"4\" y2=\"4\"/></svg></td><td>{}: {form}</td><td class=\"number\">{}</td>\
             <td class=\"dim\">{}</td></tr>",
            dim.min(2),
            letter(dim),
            bytes(carried[dim]),
            Escaped(&names.join(", "))
        );
    }
    format!(
        "{several}<table>\n<tr><th></th><th>dimension</th><th class=\"number\">bytes per step</th>\
         <th>collectives</th></tr>\n{rows}</table>"
    )
}

fn table(machine: &MachineSummary, collective_times: &[CollectiveTime]) -> String {
    if collective_times.is_empty() {
        return String::new();
    }
    let row = |it: &CollectiveTime| {
        let dims = it.dims.iter().map(|&dim| letter(dim).to_string());
        let between = (it.islands > 1).then(|| islands(machine, it.islands));
        let over: String =
            dims.chain(between).map(|over| format!("<span class=\"tag\">{over}</span>")).collect();
        let axis = match it.axis.as_str() {
            "" => "<span class=\"dim\">none</span>".to_owned(),
            axis => Escaped(axis).to_string(),
        };
        let hidden = if it.seconds > 0.0 { 100.0 * it.hidden / it.seconds } else { 0.0 };
        format!(
            "<tr class=\"collective\"><td><code>{}</code></td><td>{axis} {over}</td>\
             <td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td>\
             <td class=\"number\">{}</td><td class=\"number\">{hidden:.0} %</td></tr>\n",
            Escaped(&it.kind),
            it.group,
            it.count,
            bytes(it.bytes),
            seconds(it.seconds)
        )
    };
    let mut longest: Vec<&CollectiveTime> = collective_times.iter().collect();
    longest.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let rows: Vec<String> = longest.into_iter().map(row).collect();
    let headings = "<th>kind</th><th>axis</th><th class=\"number\">devices</th>\
                    <th class=\"number\">per step</th><th class=\"number\">size</th>\
                    <th class=\"number\">total time</th><th class=\"number\">hidden</th>";
    format!("<h3>Collectives</h3>\n{}", folding::table(headings, &rows))
}

/// The modules that cause collectives.
fn by_module(rows: &[ModuleCollectives]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let row = |it: &ModuleCollectives| {
        format!(
            "<tr class=\"cause\"><td><code>{}</code></td><td><code>{}</code></td><td>{}</td>\
             <td class=\"number\">{}</td><td class=\"number\">{}</td>\
             <td class=\"number\">{}</td></tr>\n",
            Escaped(&it.cause()),
            Escaped(&it.kind),
            Escaped(&it.axis),
            it.group,
            it.count,
            bytes(it.bytes)
        )
    };
    let rows: Vec<String> = rows.iter().map(row).collect();
    let headings = "<th>module</th><th>kind</th><th>axis</th><th class=\"number\">devices</th>\
                    <th class=\"number\">per step</th><th class=\"number\">bytes per step</th>";
    format!("<h3>Collectives by module</h3>\n{}", folding::table(headings, &rows))
}

/// Devices around a switch.
fn switch(devices: usize) -> String {
    const MIDDLE: f64 = 120.0;
    const RADIUS: f64 = 92.0;
    let mut svg = format!(
        "<svg style=\"max-width:240px;margin:0 auto\" viewBox=\"0 0 240 240\" role=\"img\" \
         aria-label=\"{} around a switch\">\n",
        plural(devices, "device")
    );
    let places = (0..devices).map(|device| {
        let angle =
            std::f64::consts::TAU * device as f64 / devices as f64 - std::f64::consts::FRAC_PI_2;
        (MIDDLE + RADIUS * angle.cos(), MIDDLE + RADIUS * angle.sin())
    });
    let places: Vec<(f64, f64)> = places.collect();
    for (x, y) in &places {
        let _ = writeln!(
            svg,
            "<line class=\"l0\" stroke-width=\"2.5\" x1=\"{MIDDLE}\" y1=\"{MIDDLE}\" x2=\"{x:.1}\" y2=\"{y:.1}\"/>"
        );
    }
    for (device, (x, y)) in places.iter().enumerate() {
        let _ = writeln!(
            svg,
            "<circle class=\"chip\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"15\"/>\
             <text class=\"middle\" x=\"{x:.1}\" y=\"{:.1}\">{device}</text>",
            y + 4.0
        );
    }
    svg.push_str(
        "<rect class=\"chip\" x=\"90\" y=\"106\" width=\"60\" height=\"28\" rx=\"6\"/>\
         <text class=\"middle strong\" x=\"120\" y=\"124.5\">switch</text>\n</svg>\n",
    );
    svg
}
