//! The loss as an SVG file: logged values as a faint line, a smoothed line, evaluations as dots,
//! and the floor dashed.

use super::smooth::{smoothed, thinned};
use super::{Curve, Floor};
use crate::report::scale::Scale;
use crate::report::svg::{card, straight, text};
use std::fmt::Write as _;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 460.0;
/// The edges of the plot area.
const LEFT: f64 = 76.0;
const RIGHT: f64 = 832.0;
const TOP: f64 = 84.0;
const BOTTOM: f64 = 400.0;
/// Maximum number of points on a line; more cannot be distinguished.
const POINTS: usize = 600;

const STYLE: &str = "\
.line { fill: none; stroke: #2563eb; stroke-linejoin: round; stroke-linecap: round; }
.raw { stroke-width: 1; stroke-opacity: 0.28; }
.smooth { stroke-width: 2.4; }
.floor { stroke: #d97706; stroke-width: 1.6; stroke-dasharray: 7 5; }
.floor-label { font-size: 12.5px; fill: #b45309; }
.last { font-size: 12.5px; font-weight: 600; fill: #be185d; }
.evaluation { fill: #db2777; stroke: #ffffff; stroke-width: 1.6; }
";

/// Maps the points of a curve to coordinates.
struct Frame {
    steps: Scale,
    losses: Scale,
}

impl Frame {
    fn x(&self, step: f64) -> f64 {
        LEFT + self.steps.position(step) * (RIGHT - LEFT)
    }

    fn y(&self, loss: f64) -> f64 {
        BOTTOM - self.losses.position(loss) * (BOTTOM - TOP)
    }
}

pub(super) fn draw(curve: &Curve) -> String {
    let mut parts = card(WIDTH, HEIGHT, STYLE, &curve.title);
    parts.push(text("title", LEFT, 36.0, "start", &curve.title));
    match (Scale::of_steps(curve, 8), Scale::of_losses(curve, 7)) {
        (Some(steps), Some(losses)) => plot(curve, &Frame { steps, losses }, &mut parts),
        _ => parts.push(text("text", WIDTH / 2.0, HEIGHT / 2.0, "middle", "no loss was logged")),
    }
    parts.push("</svg>\n".to_owned());
    parts.join("\n")
}

fn plot(curve: &Curve, frame: &Frame, parts: &mut Vec<String>) {
    legend(curve, parts);
    axes(frame, parts);
    if let Some(floor) = curve.floor.as_ref().filter(|floor| floor.value.is_finite()) {
        floor_line(floor, frame, parts);
    }
    let points = thinned(&curve.losses, POINTS);
    if let [(step, loss)] = points[..] {
        parts.push(dot("line", frame.x(step), frame.y(loss)));
    } else if !points.is_empty() {
        parts.push(line("raw", &points, frame));
        parts.push(line("smooth", &smoothed(&points), frame));
    }
    evaluations(curve, frame, parts);
}

fn axes(frame: &Frame, parts: &mut Vec<String>) {
    for &tick in &frame.losses.ticks {
        let y = frame.y(tick);
        parts.push(straight("grid", LEFT, y, RIGHT, y));
        parts.push(text("number", LEFT - 10.0, y + 4.0, "end", &frame.losses.label(tick)));
    }
    parts.push(straight("axis", LEFT, BOTTOM, RIGHT, BOTTOM));
    for &tick in &frame.steps.ticks {
        let x = frame.x(tick);
        parts.push(straight("axis", x, BOTTOM, x, BOTTOM + 5.0));
        parts.push(text("number", x, BOTTOM + 20.0, "middle", &frame.steps.label(tick)));
    }
    let (across, down) = ((LEFT + RIGHT) / 2.0, (TOP + BOTTOM) / 2.0);
    parts.push(text("text", across, BOTTOM + 44.0, "middle", "step"));
    parts.push(format!(
        r#"<text class="text" transform="translate(24 {down}) rotate(-90)" text-anchor="middle">loss</text>"#
    ));
}

/// The legend, below the title.
fn legend(curve: &Curve, parts: &mut Vec<String>) {
    const Y: f64 = 59.0;
    let mut x = LEFT;
    if !curve.losses.is_empty() {
        parts.push(straight("line smooth", x, Y, x + 20.0, Y));
        parts.push(text("text", x + 28.0, Y + 4.0, "start", "training loss"));
        x += 132.0;
    }
    if !curve.evaluations.is_empty() {
        parts.push(dot("evaluation", x + 5.0, Y));
        parts.push(text("text", x + 18.0, Y + 4.0, "start", "evaluation loss"));
    }
}

/// The floor with its label below it, where no loss should be.
fn floor_line(floor: &Floor, frame: &Frame, parts: &mut Vec<String>) {
    let y = frame.y(floor.value);
    let label = format!("{} {:.3}", floor.label, floor.value);
    parts.push(straight("floor", LEFT, y, RIGHT, y));
    parts.push(text("floor-label", LEFT + 10.0, y + 17.0, "start", &label));
}

/// Evaluations as dots, the last with its value.
fn evaluations(curve: &Curve, frame: &Frame, parts: &mut Vec<String>) {
    let finite = curve.evaluations.iter().filter(|(s, l)| s.is_finite() && l.is_finite());
    let points: Vec<(f64, f64)> = finite.copied().collect();
    parts.extend(points.iter().map(|&(s, l)| dot("evaluation", frame.x(s), frame.y(l))));
    if let Some(&(step, loss)) = points.last() {
        let (x, y) = (frame.x(step), frame.y(loss));
        parts.push(text("last", x + 4.0, y - 13.0, "end", &format!("{loss:.3}")));
    }
}

fn line(class: &str, points: &[(f64, f64)], frame: &Frame) -> String {
    let points = points.iter().fold(String::new(), |mut text, &(step, loss)| {
        let _ = write!(text, " {:.1},{:.1}", frame.x(step), frame.y(loss));
        text
    });
    format!(r#"<polyline class="line {class}" points="{}"/>"#, points.trim_start())
}

fn dot(class: &str, x: f64, y: f64) -> String {
    format!(r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="5"/>"#)
}
