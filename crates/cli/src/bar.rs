//! Progress bars, shown only on a terminal.

use crate::output::is_silent;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

/// A bar of bytes.
pub fn bytes(what: &str, total: u64) -> ProgressBar {
    let template = "{prefix} {wide_bar} {bytes} of {total_bytes}, {msg}, {eta} left";
    bar(what, total, template, true)
}

/// A bar of steps.
pub fn steps(total: u64, shown: bool) -> ProgressBar {
    let template = "{prefix} {wide_bar} {pos}/{len}, {msg}, {elapsed} elapsed, {eta} left";
    bar("training", total, template, shown)
}

fn bar(what: &str, total: u64, template: &str, shown: bool) -> ProgressBar {
    let target = match shown && !is_silent() && std::io::stderr().is_terminal() {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    let style = ProgressStyle::with_template(template);
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(Some(total), target)
        .with_style(style.progress_chars("█▉▊▋▌▍▎▏ "))
        .with_prefix(what.to_owned())
}
