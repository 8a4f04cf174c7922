//! Logs to standard error as `warning: ...`, without times and targets.

use crate::output::is_silent;
use std::fmt;
use std::io::IsTerminal;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, layer};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, registry};

/// Starts logging. The variable FULLSHARD_LOG, such as `debug` or `fullshard_pjrt=trace`, overrides the
/// level.
pub fn start(verbose: u8) {
    let levels = [LevelFilter::WARN, LevelFilter::INFO, LevelFilter::DEBUG, LevelFilter::TRACE];
    let level = Targets::new().with_default(levels[usize::from(verbose).min(3)]);
    let given = std::env::var("FULLSHARD_LOG").ok().filter(|text| !text.is_empty());
    let targets = given.as_ref().map(|text| text.parse::<Targets>());
    let lines = layer()
        .event_format(Line)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        // Their report would panic where the log itself cannot be written.
        .log_internal_errors(false);
    let invalid = matches!(targets, Some(Err(_)));
    registry().with(lines.with_filter(targets.and_then(Result::ok).unwrap_or(level))).init();
    if invalid {
        let text = given.unwrap_or_default();
        tracing::warn!("FULLSHARD_LOG has no effect: `{text}` is not a filter such as `debug`");
    }
}

/// A line of the log.
struct Line;

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if is_silent() && *event.metadata().level() > Level::ERROR {
            return Ok(());
        }
        let (word, color) = match *event.metadata().level() {
            Level::ERROR => ("error: ", "\x1b[1;31m"),
            Level::WARN => ("warning: ", "\x1b[1;33m"),
            Level::INFO => ("", ""),
            Level::DEBUG => ("debug: ", "\x1b[2m"),
            Level::TRACE => ("trace: ", "\x1b[2m"),
        };
        match writer.has_ansi_escapes() && !color.is_empty() {
            true => write!(writer, "{color}{word}\x1b[0m")?,
            false => writer.write_str(word)?,
        }
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}
