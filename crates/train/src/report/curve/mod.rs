//! A plot of the loss against steps, for the terminal and as an SVG file.

mod smooth;
mod svg;
mod terminal;

pub use terminal::TerminalStyle;

use super::values::Values;
use fullshard_checkpoint::{Result, write_file};
use std::path::Path;

/// The loss curve of a run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Curve {
    /// The title of the plot.
    pub title: String,
    /// Steps and training losses, in order.
    pub losses: Vec<(f64, f64)>,
    /// Steps and evaluation losses, in order.
    pub evaluations: Vec<(f64, f64)>,
    /// A lower bound of the loss, if known.
    pub floor: Option<Floor>,
}

/// A lower bound of the loss.
#[derive(Debug, Clone, PartialEq)]
pub struct Floor {
    /// The loss.
    pub value: f64,
    /// What it is, such as "entropy of the source".
    pub label: String,
}

impl Curve {
    /// The loss curve of a run's logs.
    pub fn of(title: impl Into<String>, log_history: &[Values]) -> Curve {
        let series = |name: &str| {
            let points = log_history.iter().filter_map(|log| {
                let point = (log.get("step")?.as_f64(), log.get(name)?.as_f64());
                Some(point).filter(|(step, loss)| step.is_finite() && loss.is_finite())
            });
            points.collect()
        };
        Curve {
            title: title.into(),
            losses: series("loss"),
            evaluations: series("eval_loss"),
            floor: None,
        }
    }

    /// Adds a lower bound of the loss.
    pub fn with_floor(mut self, value: f64, label: impl Into<String>) -> Curve {
        self.floor = Some(Floor { value, label: label.into() });
        self
    }

    /// The plot as lines of text.
    pub fn terminal(&self, style: &TerminalStyle) -> String {
        terminal::draw(self, style)
    }

    /// The plot as a self-contained SVG file.
    pub fn svg(&self) -> String {
        svg::draw(self)
    }

    /// Writes the plot as an SVG file.
    pub fn save_svg(&self, path: impl AsRef<Path>) -> Result<()> {
        write_file(path, self.svg())
    }
}
