//! A drawing of a torus from outside: chips, links of each dimension, and the wraparound links of
//! rings. One ring per dimension is drawn closed; all of them would hide the rest.

use super::collectives::letter;
use crate::report::MachineSummary;
use std::fmt::Write;

/// The most chips drawn per dimension.
const MAX_DRAWN: usize = 4;
const STEP: f64 = 46.0;

/// A dimension of the torus.
struct Side {
    length: usize,
    ring: bool,
}

impl Side {
    /// Number of chips drawn.
    fn drawn(&self) -> usize {
        self.length.min(MAX_DRAWN)
    }

    /// Whether chips are left out after this one.
    fn gap_after(&self, index: usize) -> bool {
        self.length > MAX_DRAWN && index + 2 == MAX_DRAWN
    }
}

/// A point of the drawing.
type Point = (f64, f64);

/// Draws the torus of a machine. The width of links shows the traffic of their dimension.
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
    // From back to front, so that the front is drawn on top.
    for z in (0..drawn[2]).rev() {
        for y in (0..drawn[1]).rev() {
            for x in 0..drawn[0] {
                let here = [x, y, z];
                if !is_outside(here, &drawn) {
                    continue;
                }
                for (dim, side) in sides.iter().enumerate() {
                    link(&mut links, side, &drawn, here, dim, wide(dim));
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
        label(machine),
        names(&sides, &drawn)
    )
}

/// The margin around chips, for wraparound links.
const MARGIN: f64 = 52.0;

/// The offset of one step in depth, to the right and up.
const DEEPER: Point = (0.52 * STEP, 0.40 * STEP);

fn size(drawn: &[usize]) -> Point {
    let deep = (drawn[2] - 1) as f64;
    let width = (drawn[0] - 1) as f64 * STEP * spread(drawn) + deep * DEEPER.0 * spread(drawn);
    let height = (drawn[1] - 1) as f64 * STEP * spread(drawn) + deep * DEEPER.1 * spread(drawn);
    (width + 2.0 * MARGIN, height + 2.0 * MARGIN)
}

/// Small tori are drawn larger.
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

/// Whether a chip is on the front, on top or on the right.
fn is_outside([x, y, z]: [usize; 3], drawn: &[usize]) -> bool {
    z == 0 || y + 1 == drawn[1] || x + 1 == drawn[0]
}

/// The link from a chip to the next along a dimension; on outer edges the last chip of a ring
/// links to the first.
fn link(svg: &mut String, side: &Side, drawn: &[usize], here: [usize; 3], dim: usize, width: f64) {
    let (from, mut other) = (place(here, drawn), here);
    if here[dim] + 1 < drawn[dim] {
        other[dim] += 1;
        let to = place(other, drawn);
        if is_outside(other, drawn) {
            // Links across omitted chips are paler.
            let pale = if side.gap_after(here[dim]) { " opacity=\"0.35\"" } else { "" };
            let _ = writeln!(
                svg,
                "<line class=\"l{dim}\"{pale} stroke-width=\"{width:.1}\" x1=\"{:.1}\" \
                 y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
                from.0, from.1, to.0, to.1
            );
        }
    } else if side.ring && side.length > 2 && is_outer_edge(here, drawn, dim) {
        other[dim] = 0;
        let to = place(other, drawn);
        let (right, down) = bow(dim);
        let _ = writeln!(
            svg,
            "<path class=\"l{dim} ring\" stroke-width=\"{width:.1}\" \
             d=\"M{:.1} {:.1}C{:.1} {:.1} {:.1} {:.1} {:.1} {:.1}\"/>",
            from.0,
            from.1,
            from.0 + right,
            from.1 + down,
            to.0 + right,
            to.1 + down,
            to.0,
            to.1
        );
    }
}

/// Whether a chip is on the edge along which the ring of a dimension is drawn: lower front, left
/// front or lower right.
fn is_outer_edge([x, y, z]: [usize; 3], drawn: &[usize], dim: usize) -> bool {
    match dim {
        0 => y == 0 && z == 0,
        1 => x == 0 && z == 0,
        _ => x + 1 == drawn[0] && y == 0,
    }
}

/// How far a ring of a dimension bends to the right and down.
fn bow(dim: usize) -> Point {
    match dim {
        0 => (0.0, 26.0),
        1 => (-26.0, 0.0),
        _ => (20.0, 24.0),
    }
}

fn names(sides: &[Side], drawn: &[usize]) -> String {
    let mut text = String::new();
    for (dim, side) in sides.iter().enumerate().filter(|(_, side)| side.length > 1) {
        let mut first = [0; 3];
        if dim == 2 {
            first[0] = drawn[0] - 1;
        }
        let mut last = first;
        last[dim] = drawn[dim] - 1;
        let (start, end) = (place(first, drawn), place(last, drawn));
        let (x, y) = ((start.0 + end.0) / 2.0, (start.1 + end.1) / 2.0);
        let (x, y) = match dim {
            0 => (x, y + 36.0),
            1 => (x - 36.0, y + 4.0),
            _ => (x + 34.0, y + 30.0),
        };
        let gap = if side.length > MAX_DRAWN { " …" } else { "" };
        let _ = writeln!(
            text,
            "<text class=\"middle strong\" x=\"{x:.1}\" y=\"{y:.1}\">{} {}{gap}</text>",
            letter(dim),
            side.length
        );
    }
    text
}

/// The accessibility label of the torus.
fn label(machine: &MachineSummary) -> String {
    let sides = machine.torus.iter().enumerate().map(|(dim, length)| {
        let form = if machine.wrap.get(dim).copied().unwrap_or(false) { "ring" } else { "line" };
        format!("{} is a {form} of {length}", letter(dim))
    });
    sides.collect::<Vec<_>>().join(", ")
}
