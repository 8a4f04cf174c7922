//! Installation progress: one bar on a terminal, plain lines elsewhere, nothing
//! when quiet.

use std::io::{self, Write};

use indicatif::{DecimalBytes, ProgressBar, ProgressStyle};

use super::Wheel;

const TEMPLATE: &str = "{msg} [{bar:30}] {decimal_bytes}/{decimal_total_bytes} {eta}";

pub(super) struct Progress {
    bar: ProgressBar,
    plain: bool,
}

impl Progress {
    pub(super) fn new(quiet: bool) -> Self {
        if quiet {
            return Self { bar: ProgressBar::hidden(), plain: false };
        }
        let style = ProgressStyle::with_template(TEMPLATE)
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("=> ");
        let bar = ProgressBar::new(0).with_style(style);
        let plain = bar.is_hidden();
        Self { bar, plain }
    }

    /// Starts a wheel: the only line shown without a terminal.
    pub(super) fn announce(&self, verb: &str, wheel: &Wheel) {
        if self.plain {
            let size = DecimalBytes(wheel.bytes);
            let _ = writeln!(io::stderr(), "{verb} {} {} ({size}) …", wheel.name, wheel.version);
        }
        self.phase(verb, wheel, wheel.bytes);
    }

    /// Resets the bar for one phase of a wheel.
    pub(super) fn phase(&self, verb: &str, wheel: &Wheel, length: u64) {
        let message = format!("{verb} {} {}", wheel.name, wheel.version);
        self.bar.set_message(message);
        self.bar.set_length(length);
        self.bar.reset();
    }

    pub(super) fn advance(&self, bytes: usize) {
        self.bar.inc(bytes as u64);
    }

    /// Moves the bar to a byte count, capped at its length.
    pub(super) fn reach(&self, bytes: u64) {
        let length = self.bar.length().unwrap_or(bytes);
        self.bar.set_position(bytes.min(length));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
