//! A torus as it hangs together: chips, links of each dimension, and the links that close rings.

use super::exchange::letter;
use crate::report::MachineSummary;
use std::fmt::Write;

/// More chips in a dimension than this are not drawn one by one.
const MOST: usize = 4;
const STEP: f64 = 46.0;

/// Where the chips of a dimension are drawn: all of them, or the first and the last.
struct Side {
    length: usize,
    ring: bool,
}

impl Side {
    /// The chips that are drawn.
    fn drawn(&self) -> usize {
        self.length.min(MOST)
    }

    /// Whether chips are left out after this one.
    fn gap_after(&self, place: usize) -> bool {
        self.length > MOST && place + 2 == MOST
    }
}

/// A point of the drawing.
type Point = (f64, f64);

/// Draws the torus of a machine. Links are as wide as what their dimension carries.
pub fn drawing(machine: &MachineSummary, carried: &[u64]) -> String {
    let sides: Vec<Side> = (0..3)
        .map(|dim| Side {
            length: machine.torus.get(dim).copied().unwrap_or(1),
            ring: machine.wrap.get(dim).copied().unwrap_or(false),
        })
        .collect();
    let drawn: Vec<usize> = sides.iter().map(Side::drawn).collect();
    let most = carried.iter().copied().max().unwrap_or(0).max(1) as f64;
    let wide = |dim: usize| {
        let share = carried.get(dim).map_or(0.0, |&bytes| bytes as f64 / most);
        1.5 + 2.5 * share
    };
    let (mut links, mut chips) = (String::new(), String::new());
    // From the back to the front, so that what is in front lies above.
    for z in (0..drawn[2]).rev() {
        for y in (0..drawn[1]).rev() {
            for x in 0..drawn[0] {
                let here = [x, y, z];
                for dim in 0..3 {
                    link(&mut links, &sides[dim], &drawn, here, dim, wide(dim));
                }
                let (px, py) = place(here, &drawn);
                let _ = writeln!(
                    chips,
                    "<circle class=\"chip\" cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"5\"/>"
                );
            }
        }
    }
    let (width, height) = size(&drawn);
    format!(
        "<svg style=\"max-width:{width:.0}px;margin:0 auto\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" \
         aria-label=\"{}\">\n{links}{chips}{}</svg>\n",
        words(machine),
        names(&sides, &drawn)
    )
}

/// The margin around chips, in which rings close.
const MARGIN: f64 = 34.0;

/// How far a step into the depth goes to the right and up.
const DEEPER: Point = (0.52 * STEP, 0.40 * STEP);

fn size(drawn: &[usize]) -> Point {
    let deep = (drawn[2] - 1) as f64;
    let width = (drawn[0] - 1) as f64 * STEP * spread(drawn) + deep * DEEPER.0 * spread(drawn);
    let height = (drawn[1] - 1) as f64 * STEP * spread(drawn) + deep * DEEPER.1 * spread(drawn);
    (width + 2.0 * MARGIN, height + 2.0 * MARGIN)
}

/// Small ones are drawn larger.
fn spread(drawn: &[usize]) -> f64 {
    if drawn.iter().all(|&side| side <= 2) { 2.0 } else { 1.35 }
}

fn place([x, y, z]: [usize; 3], drawn: &[usize]) -> Point {
    let spread = spread(drawn);
    let (_, height) = size(drawn);
    let right = MARGIN + spread * (x as f64 * STEP + z as f64 * DEEPER.0);
    let up = MARGIN + spread * (y as f64 * STEP + z as f64 * DEEPER.1);
    (right, height - up)
}

/// The link from a chip to the next of a dimension, and at the end of a ring back to the first.
fn link(svg: &mut String, side: &Side, drawn: &[usize], here: [usize; 3], dim: usize, width: f64) {
    let at = here[dim];
    let from = place(here, drawn);
    if at + 1 < drawn[dim] {
        let mut next = here;
        next[dim] += 1;
        let to = place(next, drawn);
        // What is left out is a paler link.
        let pale = if side.gap_after(at) { " opacity=\"0.35\"" } else { "" };
        let _ = writeln!(
            svg,
            "<line class=\"l{dim}\"{pale} stroke-width=\"{width:.1}\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
            from.0, from.1, to.0, to.1
        );
    } else if side.ring && side.length > 2 {
        let mut first = here;
        first[dim] = 0;
        let to = place(first, drawn);
        let [a, b] = bow(dim);
        let _ = writeln!(
            svg,
            "<path class=\"l{dim} ring\" opacity=\"0.6\" stroke-width=\"{width:.1}\" d=\"M{:.1} {:.1}c{} {} {:.1} {:.1} {:.1} {:.1}\"/>",
            from.0,
            from.1,
            a.0,
            a.1,
            to.0 - from.0 + b.0,
            to.1 - from.1 + b.1,
            to.0 - from.0,
            to.1 - from.1
        );
    }
}

/// How a ring of a dimension bends out at its end and at its beginning.
fn bow(dim: usize) -> [Point; 2] {
    match dim {
        0 => [(26.0, -16.0), (-26.0, -16.0)],
        1 => [(-16.0, -26.0), (-16.0, 26.0)],
        _ => [(24.0, 0.0), (2.0, 26.0)],
    }
}

fn names(sides: &[Side], drawn: &[usize]) -> String {
    let mut text = String::new();
    let (width, height) = size(drawn);
    for (dim, side) in sides.iter().enumerate().filter(|(_, side)| side.length > 1) {
        let mut last = [0; 3];
        last[dim] = drawn[dim] - 1;
        let (end_x, end_y) = place(last, drawn);
        let (x, y) = match dim {
            0 => ((MARGIN + end_x) / 2.0, height - 8.0),
            1 => (10.0, (end_y + height - MARGIN) / 2.0 + 4.0),
            _ => ((end_x + 22.0).min(width - 8.0), end_y + 16.0),
        };
        let gap = if side.length > MOST { " …" } else { "" };
        let _ = writeln!(
            text,
            "<text class=\"middle strong\" x=\"{x:.1}\" y=\"{y:.1}\">{} {}{gap}</text>",
            letter(dim),
            side.length
        );
    }
    text
}

/// The torus in words.
fn words(machine: &MachineSummary) -> String {
    let sides = machine.torus.iter().enumerate().map(|(dim, length)| {
        let form = if machine.wrap.get(dim).copied().unwrap_or(false) { "ring" } else { "line" };
        format!("{} is a {form} of {length}", letter(dim))
    });
    sides.collect::<Vec<_>>().join(", ")
}
