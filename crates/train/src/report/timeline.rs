//! A plot of what time was spent on, for the terminal and as an SVG file. Time goes from left to
//! right; each column is divided by the shares of what it was spent on.

use super::scale::Scale;
use super::svg::{card, straight, text};
use fullshard_checkpoint::{Result, write_file};
use std::path::Path;

const WIDTH: f64 = 860.0;
/// The edges of the plot area.
const LEFT: f64 = 76.0;
const RIGHT: f64 = 832.0;
const TOP: f64 = 70.0;
const BOTTOM: f64 = 250.0;
/// The legend: its first line, the distance of lines, and entries per line.
const LEGEND: f64 = 326.0;
const LINE: f64 = 24.0;
const ENTRIES: usize = 4;
/// The number of columns, two pixels each.
const COLUMNS: usize = 378;

const STYLE: &str = "\
.mark { stroke: #be185d; stroke-width: 1.6; stroke-dasharray: 4 3; }
.mark-head { fill: #be185d; }
";

/// Units of the time axis, in seconds, with the least time that they are used for.
const UNITS: [(f64, f64, &str); 4] = [
    (2.0 * 86_400.0, 86_400.0, "days"),
    (2.0 * 3600.0, 3600.0, "hours"),
    (180.0, 60.0, "minutes"),
    (0.0, 1.0, "seconds"),
];

/// What the time of a run was spent on.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Timeline {
    /// The title of the plot.
    pub title: String,
    /// What time can be spent on.
    pub kinds: Vec<TimelineKind>,
    /// What it was spent on, in order and without gaps.
    pub spans: Vec<TimelineSpan>,
    /// Moments to mark, in seconds.
    pub marks: Vec<f64>,
    /// What the marks are.
    pub mark_name: String,
}

/// Something that time is spent on.
#[derive(Debug, Clone, PartialEq)]
pub struct TimelineKind {
    /// Its name.
    pub name: String,
    /// What it is drawn with in a terminal.
    pub letter: char,
    /// Its color, in CSS.
    pub color: &'static str,
    /// Its color in a terminal, as an ANSI code.
    pub ansi: u8,
}

/// A stretch of time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimelineSpan {
    /// Its start in seconds.
    pub from: f64,
    /// Its end in seconds.
    pub to: f64,
    /// What it was spent on, as an index of the kinds.
    pub kind: usize,
}

impl Timeline {
    /// The plot as a line of text, with a second one if there are marks.
    pub fn terminal(&self, width: usize, colours: bool) -> String {
        let mut line = String::new();
        for shares in self.columns(width) {
            let largest = shares.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
            let kind =
                largest.filter(|(_, share)| **share > 0.0).map(|(kind, _)| &self.kinds[kind]);
            match kind {
                Some(kind) if colours => {
                    line += &format!("\x1b[{}m{}\x1b[0m", kind.ansi, kind.letter)
                }
                Some(kind) => line.push(kind.letter),
                None => line.push(' '),
            }
        }
        if self.marks.is_empty() {
            return line;
        }
        let mut marks = vec![' '; width];
        for column in self.marks.iter().filter_map(|mark| self.column(*mark, width)) {
            marks[column] = '^';
        }
        let marks: String = marks.into_iter().collect();
        format!("{line}\n{}", marks.trim_end())
    }

    /// The plot as a self-contained SVG file.
    pub fn svg(&self) -> String {
        let (times, used) = (self.times(), self.used());
        let lines = (used.len() + usize::from(!self.marks.is_empty())).div_ceil(ENTRIES);
        let height = LEGEND + LINE * lines.max(1) as f64;
        let mut parts = card(WIDTH, height, STYLE, &self.title);
        parts.push(text("title", LEFT, 36.0, "start", &self.title));
        let total = self.total();
        if total > 0.0 {
            self.draw_columns(&mut parts);
            axes(total, &mut parts);
            for mark in &self.marks {
                let x = LEFT + mark / total * (RIGHT - LEFT);
                parts.push(straight("mark", x, TOP, x, BOTTOM));
                parts.push(head(x, TOP));
            }
            let named = used.iter().map(|&kind| {
                let TimelineKind { name, color, .. } = &self.kinds[kind];
                (Some(*color), format!("{name} {:.1} %", 100.0 * times[kind] / total))
            });
            let marks = Some((None, self.mark_name.clone())).filter(|_| !self.marks.is_empty());
            for (index, (color, name)) in named.chain(marks).enumerate() {
                let x = LEFT + (index % ENTRIES) as f64 * (RIGHT - LEFT) / ENTRIES as f64;
                let y = LEGEND + (index / ENTRIES) as f64 * LINE;
                parts.push(match color {
                    Some(color) => rectangle(x, y - 10.0, 12.0, 12.0, color),
                    None => head(x + 6.0, y + 1.0),
                });
                parts.push(text("text", x + 20.0, y, "start", &name));
            }
        } else {
            let middle = (TOP + BOTTOM) / 2.0;
            parts.push(text("text", WIDTH / 2.0, middle, "middle", "no time was recorded"));
        }
        parts.push("</svg>\n".to_owned());
        parts.join("\n")
    }

    /// Writes the plot as an SVG file.
    pub fn save_svg(&self, path: impl AsRef<Path>) -> Result<()> {
        write_file(path, self.svg())
    }

    fn total(&self) -> f64 {
        self.spans.last().map_or(0.0, |span| span.to)
    }

    /// The time of each kind.
    fn times(&self) -> Vec<f64> {
        let mut times = vec![0.0; self.kinds.len()];
        for span in &self.spans {
            times[span.kind] += span.to - span.from;
        }
        times
    }

    /// The kinds that time was spent on.
    fn used(&self) -> Vec<usize> {
        let times = self.times().into_iter().enumerate();
        times.filter(|(_, time)| *time > 0.0).map(|(kind, _)| kind).collect()
    }

    /// The column of a moment.
    fn column(&self, time: f64, count: usize) -> Option<usize> {
        let column = (time / self.total() * count as f64) as usize;
        count.checked_sub(1).map(|last| column.min(last))
    }

    /// The shares of the kinds in each of a number of columns.
    fn columns(&self, count: usize) -> Vec<Vec<f64>> {
        let mut columns = vec![vec![0.0; self.kinds.len()]; count];
        let each = self.total() / count.max(1) as f64;
        for span in &self.spans {
            let ends = [span.from, span.to].map(|time| self.column(time, count));
            let [Some(first), Some(last)] = ends else { continue };
            for (column, shares) in columns.iter_mut().enumerate().take(last + 1).skip(first) {
                let (from, to) = (column as f64 * each, (column + 1) as f64 * each);
                let time = span.to.min(to) - span.from.max(from);
                shares[span.kind] += (time / each).max(0.0);
            }
        }
        columns
    }

    /// Draws the columns; neighbors that look the same as one.
    fn draw_columns(&self, parts: &mut Vec<String>) {
        let columns = self.columns(COLUMNS);
        let width = (RIGHT - LEFT) / COLUMNS as f64;
        let mut next = 0;
        for same in columns.chunk_by(|a, b| look(a) == look(b)) {
            let (x, mut bottom) = (LEFT + next as f64 * width, BOTTOM);
            next += same.len();
            for (kind, share) in look(&same[0]).into_iter().enumerate() {
                let height = f64::from(share) / 1000.0 * (BOTTOM - TOP);
                bottom -= height;
                if share > 0 {
                    // They overlap a little, so that no line is seen between them.
                    let width = (same.len() as f64 * width + 0.3).min(RIGHT - x);
                    parts.push(rectangle(x, bottom, width, height, self.kinds[kind].color));
                }
            }
        }
    }
}

/// Shares in thousandths, which is what can be seen.
fn look(shares: &[f64]) -> Vec<u32> {
    shares.iter().map(|share| (share * 1000.0).round() as u32).collect()
}

fn axes(total: f64, parts: &mut Vec<String>) {
    for percent in [0.0, 25.0, 50.0, 75.0, 100.0] {
        let y = BOTTOM - percent / 100.0 * (BOTTOM - TOP);
        parts.push(text("number", LEFT - 10.0, y + 4.0, "end", &format!("{percent} %")));
    }
    let (unit, name) = UNITS
        .iter()
        .find(|(least, ..)| total >= *least)
        .map_or((1.0, "seconds"), |it| (it.1, it.2));
    let scale = Scale::over(0.0, total / unit, 8);
    parts.push(straight("axis", LEFT, BOTTOM, RIGHT, BOTTOM));
    for &tick in &scale.ticks {
        let x = LEFT + scale.position(tick) * (RIGHT - LEFT);
        parts.push(straight("axis", x, BOTTOM, x, BOTTOM + 5.0));
        parts.push(text("number", x, BOTTOM + 20.0, "middle", &scale.label(tick)));
    }
    parts.push(text("text", (LEFT + RIGHT) / 2.0, BOTTOM + 44.0, "middle", name));
}

fn rectangle(x: f64, y: f64, width: f64, height: f64, color: &str) -> String {
    format!(
        r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{color}"/>"#
    )
}

/// The head of a mark, which points down to a place.
fn head(x: f64, y: f64) -> String {
    let (left, right, top) = (x - 5.0, x + 5.0, y - 9.0);
    format!(
        r#"<polygon class="mark-head" points="{left:.1},{top:.1} {right:.1},{top:.1} {x:.1},{y:.1}"/>"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(name: &str, letter: char, color: &'static str) -> TimelineKind {
        TimelineKind { name: name.to_owned(), letter, color, ansi: 34 }
    }

    fn timeline() -> Timeline {
        let spans = [(0.0, 25.0, 0), (25.0, 75.0, 1), (75.0, 76.0, 0), (76.0, 100.0, 1)];
        Timeline {
            title: "a < b".to_owned(),
            kinds: vec![kind("lost", 'x', "#ff0000"), kind("used", '#', "#0000ff")],
            spans: spans.map(|(from, to, kind)| TimelineSpan { from, to, kind }).to_vec(),
            marks: vec![25.0],
            mark_name: "failure".to_owned(),
        }
    }

    #[test]
    fn a_terminal_shows_the_largest_share() {
        assert_eq!(timeline().terminal(8, false), "xx######\n  ^");
        let unmarked = Timeline { marks: Vec::new(), ..timeline() };
        assert_eq!(unmarked.terminal(4, false), "x###");
        assert_eq!(Timeline::default().terminal(4, false), "    ");
        assert!(unmarked.terminal(4, true).starts_with("\x1b[34mx\x1b[0m"));
    }

    #[test]
    fn columns_have_all_of_the_time() {
        for count in [1, 3, 8, COLUMNS] {
            let columns = timeline().columns(count);
            assert!(columns.iter().all(|shares| (shares.iter().sum::<f64>() - 1.0).abs() < 1e-9));
            let lost: f64 = columns.iter().map(|shares| shares[0] / count as f64).sum();
            assert!((lost - 0.26).abs() < 1e-9, "{count}: {lost}");
        }
    }

    #[test]
    fn a_picture_names_its_parts() {
        let svg = timeline().svg();
        for part in ["a &lt; b", "lost 26.0 %", "used 74.0 %", ">failure<", "seconds", "#0000ff"] {
            assert!(svg.contains(part), "{part} in {svg}");
        }
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
        // Neighbors that look the same are one rectangle.
        assert!(svg.matches("<rect").count() < 16, "{svg}");
        assert!(Timeline::default().svg().contains("no time was recorded"));
    }
}
