//! Search results: memory against speed, with the Pareto frontier.

use super::format::{Escaped, bytes, count, percent, seconds};
use super::table as folding;
use crate::search::{Frontier, Point};
use std::fmt::Write;

const WIDTH: f64 = 944.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 44.0;

/// The most ticks of an axis.
const TICKS: f64 = 5.0;

pub fn section(frontier: &Frontier) -> String {
    let (tried, found) = (frontier.confirmed.len(), frontier.points.len());
    let sentence = match &frontier.best {
        Some(best) => format!(
            "The fastest settings that fit reach {} tokens per second with {} per device.",
            count(best.speed()),
            bytes(best.memory())
        ),
        None => "No settings fit.".to_owned(),
    };
    let how = match tried {
        0 => "estimated by formula".to_owned(),
        tried => format!("{tried} candidates were compiled"),
    };
    let command = frontier.best.as_ref().map_or_else(String::new, |best| {
        format!("<pre><code>{}</code></pre>\n", Escaped(&best.candidate.flags().join(" ")))
    });
    format!(
        "<section id=\"frontier\">\n<h2>Search</h2>\n<p class=\"lead\">{sentence} The Pareto \
         frontier has {found} points: none is both smaller and faster than another ({how}).</p>\n\
         {}{}{command}</section>\n",
        scatter(frontier),
        table(frontier)
    )
}

/// From figures to coordinates.
struct Scales {
    memory: f64,
    speed: f64,
}

impl Scales {
    fn of(frontier: &Frontier) -> Scales {
        let all = || frontier.points.iter().chain(&frontier.confirmed);
        let memory = all().map(|point| point.memory() as f64).fold(frontier.limit as f64, f64::max);
        let speed = all().map(Point::speed).fold(0.0, f64::max);
        Scales { memory: (1.06 * memory).max(1.0), speed: (1.12 * speed).max(1.0) }
    }

    fn x(&self, bytes: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * bytes / self.memory
    }

    fn y(&self, speed: f64) -> f64 {
        HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * speed / self.speed
    }

    fn of_point(&self, point: &Point) -> (f64, f64) {
        (self.x(point.memory() as f64), self.y(point.speed()))
    }
}

/// A round step between ticks, of which at most [`TICKS`] reach a value.
fn round_step(value: f64) -> f64 {
    let least = (value / TICKS).max(f64::MIN_POSITIVE);
    let power = 10_f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= least);
    factor.unwrap_or(10.0) * power
}

fn scatter(frontier: &Frontier) -> String {
    let scales = Scales::of(frontier);
    let mut svg = format!(
        "<div class=\"chart\"><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"memory vs. speed\">\n"
    );
    axes(&mut svg, &scales);
    let limit = scales.x(frontier.limit as f64);
    let _ = writeln!(
        svg,
        "<line class=\"limit\" x1=\"{limit:.1}\" x2=\"{limit:.1}\" y1=\"{TOP}\" y2=\"{:.1}\"/>\
         <text class=\"strong end\" x=\"{:.1}\" y=\"{:.1}\">{} available</text>",
        HEIGHT - BOTTOM,
        limit - 6.0,
        TOP - 10.0,
        bytes(frontier.limit)
    );
    line(&mut svg, frontier, &scales);
    let on_line = |point: &Point| frontier.points.iter().any(|it| it.candidate == point.candidate);
    let others = frontier.confirmed.iter().filter(|point| !on_line(point));
    for point in frontier.points.iter().chain(others) {
        dot(&mut svg, point, &scales);
    }
    if let Some(best) = &frontier.best {
        let (x, y) = scales.of_point(best);
        let label = (x - 14.0).max(LEFT + 130.0);
        let _ = writeln!(
            svg,
            "<circle class=\"chosen\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"10\"/>\
             <text class=\"strong end\" x=\"{label:.1}\" y=\"{:.1}\">{}</text>",
            y - 9.0,
            short(best)
        );
    }
    svg.push_str("</svg></div>\n");
    svg.push_str(
        "<ul class=\"legend\">\n\
         <li><svg style=\"width:12px;display:inline-block;margin-right:6px\" viewBox=\"0 0 12 12\"><circle class=\"point\" cx=\"6\" cy=\"6\" r=\"5\"/></svg>compiled</li>\n\
         <li><svg style=\"width:12px;display:inline-block;margin-right:6px\" viewBox=\"0 0 12 12\"><circle class=\"guess\" cx=\"6\" cy=\"6\" r=\"4.5\"/></svg>estimated</li>\n\
         <li><svg style=\"width:12px;display:inline-block;margin-right:6px\" viewBox=\"0 0 12 12\"><path class=\"lost\" d=\"M2 2l8 8m0-8l-8 8\"/></svg>does not fit</li>\n</ul>\n",
    );
    svg
}

fn axes(svg: &mut String, scales: &Scales) {
    const GIB: f64 = (1_u64 << 30) as f64;
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    let step = round_step(scales.speed);
    let mut speed = 0.0;
    while speed <= scales.speed {
        let y = scales.y(speed);
        let _ = writeln!(
            svg,
            "<line class=\"rule\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text class=\"end\" x=\"{}\" y=\"{:.1}\">{}</text>",
            LEFT - 8.0,
            y + 4.0,
            count(speed).replace(".0 ", " ")
        );
        speed += step;
    }
    let step = round_step(scales.memory / GIB) * GIB;
    let mut memory = 0.0;
    while memory <= scales.memory {
        let x = scales.x(memory);
        let gib = memory / GIB;
        let _ = writeln!(
            svg,
            "<text class=\"middle\" x=\"{x:.1}\" y=\"{}\">{gib}</text>",
            bottom + 18.0
        );
        memory += step;
    }
    let _ = writeln!(
        svg,
        "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{bottom}\" y2=\"{bottom}\"/>\
         <text x=\"0\" y=\"{}\">tokens per second</text>\
         <text class=\"end\" x=\"{right}\" y=\"{}\">GiB per device</text>",
        TOP - 10.0,
        bottom + 36.0
    );
}

/// The Pareto frontier as a step function, since memory between two points gains nothing.
fn line(svg: &mut String, frontier: &Frontier, scales: &Scales) {
    let mut path = String::new();
    for point in &frontier.points {
        let (x, y) = scales.of_point(point);
        let step =
            if path.is_empty() { format!("M{x:.1} {y:.1}") } else { format!("H{x:.1}V{y:.1}") };
        path.push_str(&step);
    }
    if !path.is_empty() {
        let _ = writeln!(
            svg,
            "<path class=\"pareto\" d=\"{path}H{:.1}\"/>",
            scales.x(frontier.limit as f64)
        );
    }
}

fn dot(svg: &mut String, point: &Point, scales: &Scales) {
    let (x, y) = scales.of_point(point);
    let rates = &point.report.rates;
    let mfu = rates.mfu.map_or_else(String::new, |mfu| format!(", MFU {}", percent(mfu)));
    let title = format!(
        "{}: {} tokens per second, {}, {} per step{mfu}",
        Escaped(&point.candidate.flags().join(" ")),
        count(point.speed()),
        bytes(point.memory()),
        seconds(point.report.time.step)
    );
    let shape = match (point.fits(), point.confirmed) {
        (false, _) => {
            format!("<path class=\"lost\" d=\"M{:.1} {:.1}l8 8m0-8l-8 8\"/>", x - 4.0, y - 4.0)
        }
        (true, true) => format!("<circle class=\"point\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5.5\"/>"),
        (true, false) => format!("<circle class=\"guess\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\"/>"),
    };
    let _ = writeln!(svg, "<g class=\"found\"><title>{title}</title>{shape}</g>");
}

/// A short label of a point.
fn short(point: &Point) -> String {
    let settings = &point.report.settings;
    let scan = if point.candidate.scan_layers { ", scan" } else { "" };
    format!("batch {}, remat {}{scan}", point.candidate.batch, Escaped(&settings.remat))
}

fn table(frontier: &Frontier) -> String {
    if frontier.points.is_empty() {
        return String::new();
    }
    let best = frontier.best.as_ref().map(|best| &best.candidate);
    let row = |point: &Point| {
        let settings = &point.report.settings;
        let class = if best == Some(&point.candidate) { " class=\"best\"" } else { "" };
        let mfu = point.report.rates.mfu.map_or_else(String::new, percent);
        let mut tags = vec![settings.fsdp.as_str()];
        tags.extend(point.candidate.scan_layers.then_some("scan"));
        tags.extend(point.candidate.gather_ahead.description());
        let chunk = point.candidate.logits_chunk_mib.map(|mib| format!("logits by {mib} MiB"));
        tags.extend(chunk.as_deref());
        tags.push(if point.confirmed { "compiled" } else { "estimated" });
        let tags: String =
            tags.iter().map(|tag| format!("<span class=\"tag\">{}</span>", Escaped(tag))).collect();
        format!(
            "<tr{class}><td>{}</td><td>{}</td><td>{tags}</td><td class=\"number\">{}</td>\
             <td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{mfu}</td></tr>\n",
            point.candidate.batch,
            Escaped(&settings.remat),
            bytes(point.memory()),
            seconds(point.report.time.step),
            count(point.speed())
        )
    };
    let rows: Vec<String> = frontier.points.iter().rev().map(row).collect();
    let headings = "<th>batch per device</th><th>remat</th><th></th>\
                    <th class=\"number\">memory</th><th class=\"number\">step</th>\
                    <th class=\"number\">tokens/s</th><th class=\"number\">MFU</th>";
    format!("<h3>Pareto frontier, fastest first</h3>\n{}", folding::table(headings, &rows))
}
