//! The loss as text: a line of Braille dots, eight per character.

use super::smooth::thinned;
use super::{Curve, Floor};
use crate::report::scale::Scale;
use std::fmt::Write as _;

/// The style of a plot in a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalStyle {
    /// Characters per line.
    pub width: usize,
    /// Total number of lines.
    pub height: usize,
    /// Whether to use colors.
    pub colours: bool,
}

impl Default for TerminalStyle {
    fn default() -> TerminalStyle {
        TerminalStyle { width: 72, height: 18, colours: false }
    }
}

/// The content of a character of the plot.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Cell {
    /// Braille dots: those of the line, and those of the floor, shown where there is no line.
    Dots {
        line: u8,
        floor: u8,
    },
    Evaluation,
}

impl Cell {
    const EMPTY: Cell = Cell::Dots { line: 0, floor: 0 };

    fn character(self) -> char {
        match self {
            Cell::EMPTY => ' ',
            Cell::Dots { line: 0, floor: dots } | Cell::Dots { line: dots, .. } => {
                char::from_u32(0x2800 + u32::from(dots)).unwrap_or(' ')
            }
            Cell::Evaluation => '◆',
        }
    }

    /// Its ANSI color code.
    fn color(self) -> Option<u8> {
        match self {
            Cell::EMPTY => None,
            Cell::Dots { line: 0, .. } => Some(33),
            Cell::Dots { .. } => Some(36),
            Cell::Evaluation => Some(35),
        }
    }
}

/// The plot area inside the axes.
struct Plot {
    width: usize,
    cells: Vec<Cell>,
}

impl Plot {
    fn row(&self, row: usize) -> &[Cell] {
        &self.cells[row * self.width..(row + 1) * self.width]
    }

    /// The line and floor dots of the cell with a dot, and the bit of the dot; a cell is two dots
    /// wide and four high.
    fn dot(&mut self, x: usize, y: usize) -> Option<(&mut u8, &mut u8, u8)> {
        const DOTS: [[u8; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];
        match &mut self.cells[y / 4 * self.width + x / 2] {
            Cell::Dots { line, floor } => Some((line, floor, DOTS[y % 4][x % 2])),
            Cell::Evaluation => None,
        }
    }

    fn line_dot(&mut self, x: usize, y: usize) {
        if let Some((line, _, dot)) = self.dot(x, y) {
            *line |= dot;
        }
    }

    fn floor_dot(&mut self, x: usize, y: usize) {
        if let Some((_, floor, dot)) = self.dot(x, y) {
            *floor |= dot;
        }
    }
}

pub(super) fn draw(curve: &Curve, style: &TerminalStyle) -> String {
    let height = style.height.saturating_sub(4).max(3);
    let losses = Scale::of_losses(curve, (height / 2).max(2));
    let Some(losses) = losses else {
        return format!("{}: no loss was logged\n", curve.title);
    };
    let labels: Vec<String> = losses.ticks.iter().map(|&tick| losses.label(tick)).collect();
    let margin = labels.iter().map(String::len).max().unwrap_or(0);
    let width = style.width.saturating_sub(margin + 2).max(8);
    let Some(steps) = Scale::of_steps(curve, (width / 12).max(2)) else {
        return String::new();
    };
    let plot = plotted(curve, &steps, &losses, width, height);

    let mut text = String::new();
    let _ = writeln!(text, "{:margin$}  {}", "", curve.title);
    for row in 0..height {
        let tick = losses.ticks.iter().position(|&tick| row_of(&losses, tick, height) == row);
        let label = tick.map_or("", |tick| labels[tick].as_str());
        let edge = if tick.is_some() { '┤' } else { '│' };
        let _ = write!(text, "{label:>margin$} {edge}");
        let line = plot.row(row).iter().map(|&cell| (cell.character(), cell.color()));
        text.push_str(colored(line, style.colours).trim_end());
        text.push('\n');
    }
    text.push_str(&step_axis(&steps, width, margin));
    let _ = writeln!(text, "{:margin$}  {}", "", legend(curve, style.colours));
    text
}

fn plotted(curve: &Curve, steps: &Scale, losses: &Scale, width: usize, height: usize) -> Plot {
    let mut plot = Plot { width, cells: vec![Cell::EMPTY; width * height] };
    let (dots_across, dots_down) = (2 * width, 4 * height);
    if let Some(floor) = curve.floor.as_ref().filter(|floor| floor.value.is_finite()) {
        let y = at(1.0 - losses.position(floor.value), dots_down);
        // Every other character, so that it is dashed.
        (0..dots_across).filter(|x| x % 4 < 2).for_each(|x| plot.floor_dot(x, y));
    }
    let line: Vec<(usize, usize)> = thinned(&curve.losses, width)
        .into_iter()
        .map(|(step, loss)| {
            (at(steps.position(step), dots_across), at(1.0 - losses.position(loss), dots_down))
        })
        .collect();
    for pair in line.windows(2) {
        connect(&mut plot, pair[0], pair[1]);
    }
    if let [(x, y)] = line[..] {
        plot.line_dot(x, y);
    }
    for &(step, loss) in curve.evaluations.iter().filter(|(s, l)| s.is_finite() && l.is_finite()) {
        let (row, column) = (row_of(losses, loss, height), at(steps.position(step), width));
        plot.cells[row * width + column] = Cell::Evaluation;
    }
    plot
}

/// Sets the dots from one point to another.
fn connect(plot: &mut Plot, from: (usize, usize), to: (usize, usize)) {
    let between =
        |a: usize, b: usize, t: f64| (a as f64 + (b as f64 - a as f64) * t).round() as usize;
    let count = from.0.abs_diff(to.0).max(from.1.abs_diff(to.1)).max(1);
    for i in 0..=count {
        let t = i as f64 / count as f64;
        plot.line_dot(between(from.0, to.0, t), between(from.1, to.1, t));
    }
}

/// The index of a fraction among `count` places.
fn at(fraction: f64, count: usize) -> usize {
    ((fraction * (count - 1) as f64).round().max(0.0) as usize).min(count - 1)
}

/// The row of a loss.
fn row_of(losses: &Scale, loss: f64, height: usize) -> usize {
    at(1.0 - losses.position(loss), 4 * height) / 4
}

/// The step axis below the plot and its labels.
fn step_axis(steps: &Scale, width: usize, margin: usize) -> String {
    let mut line = vec!['─'; width];
    let mut below = vec![' '; width];
    for &tick in &steps.ticks {
        let column = at(steps.position(tick), width);
        let label = steps.label(tick);
        let start = column.saturating_sub(label.len() / 2).min(width.saturating_sub(label.len()));
        line[column] = '┬';
        for (place, character) in below[start..].iter_mut().zip(label.chars()) {
            *place = character;
        }
    }
    let line: String = line.into_iter().collect();
    let below: String = below.into_iter().collect();
    format!("{:margin$} └{line}\n{:margin$}  {}\n", "", "", below.trim_end())
}

fn legend(curve: &Curve, colours: bool) -> String {
    const DASH: u8 = 0b0001_0010;
    let (line, floor) = (Cell::Dots { line: DASH, floor: 0 }, Cell::Dots { line: 0, floor: DASH });
    let part = |mark: &[Cell], text: &str| {
        let mark = mark.iter().map(|cell| (cell.character(), cell.color()));
        format!("{} {text}", colored(mark, colours))
    };
    let mut parts = Vec::new();
    if !curve.losses.is_empty() {
        parts.push(part(&[line, line], "training"));
    }
    if !curve.evaluations.is_empty() {
        parts.push(part(&[Cell::Evaluation], "evaluation"));
    }
    if let Some(Floor { value, label }) = &curve.floor {
        parts.push(part(&[floor, Cell::EMPTY, floor], &format!("{label} {value:.3}")));
    }
    parts.join("   ")
}

/// Characters with ANSI colors, one escape code per run of a color.
fn colored(characters: impl Iterator<Item = (char, Option<u8>)>, colours: bool) -> String {
    let mut text = String::new();
    let mut current = None;
    for (character, color) in characters {
        if colours && color != current {
            let _ = write!(text, "\x1b[{}m", color.unwrap_or(0));
            current = color;
        }
        text.push(character);
    }
    if current.is_some() {
        text.push_str("\x1b[0m");
    }
    text
}
