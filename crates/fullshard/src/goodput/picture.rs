//! The picture of a run's time.

use super::report::{Goodput, Part};
use crate::format;
use fullshard_train::report::{Timeline, TimelineKind, TimelineSpan};

impl Goodput {
    /// What each moment of the run was spent on, to be drawn in the terminal or as SVG.
    pub fn timeline(&self) -> Timeline {
        let percent = 100.0 * self.share();
        let spans = self.spans.iter().map(|span| {
            let kind = Part::ALL.iter().position(|part| *part == span.part).unwrap_or(0);
            TimelineSpan { from: span.from, to: span.to, kind }
        });
        Timeline {
            title: format!("goodput {percent:.1} % of {}", format::duration(self.wall_s)),
            kinds: Part::ALL.map(Part::kind).to_vec(),
            spans: spans.collect(),
            marks: self.failures.clone(),
            mark_name: "failure".to_owned(),
        }
    }
}

impl Part {
    /// How it is drawn.
    fn kind(self) -> TimelineKind {
        let (letter, color, ansi) = match self {
            Part::Useful => ('█', "#2563eb", 34),
            Part::Redone => ('▒', "#93c5fd", 36),
            Part::Detection => ('d', "#dc2626", 31),
            Part::Down => ('·', "#334155", 90),
            Part::Restart => ('r', "#f59e0b", 33),
            Part::StartUp => ('s', "#fcd34d", 33),
            Part::Load => ('l', "#a855f7", 35),
            Part::Saving => ('w', "#16a34a", 32),
            Part::Evaluation => ('e', "#f472b6", 35),
            Part::Other => ('o', "#cbd5e1", 37),
        };
        TimelineKind { name: self.name().to_owned(), letter, color, ansi }
    }
}
