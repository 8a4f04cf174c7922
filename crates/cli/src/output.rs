//! Output shared by several commands.

use fullshard::format;
use fullshard::plan::MemoryEstimate;
use fullshard::{Error, Result};
use fullshard_checkpoint::check_place;
use fullshard_plan::ModuleCollectives;
use signal_hook::consts::SIGPIPE;
use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether this process prints nothing but errors.
static SILENT: AtomicBool = AtomicBool::new(false);

/// From now on this process prints nothing but errors: the first one of its job prints.
pub fn silence() {
    SILENT.store(true, Ordering::Relaxed);
}

/// Whether this process prints nothing but errors.
pub fn is_silent() -> bool {
    SILENT.load(Ordering::Relaxed)
}

/// Like `println!`, but ignores a closed pipe or a full disk, so that a run continues.
macro_rules! say {
    ($($arguments:tt)*) => {{
        use std::io::Write as _;
        if !$crate::output::is_silent() {
            // At once, so that a launcher can mark lines.
            let _ = std::io::stdout().write_all(format!("{}\n", format_args!($($arguments)*)).as_bytes());
        }
    }};
}
pub(crate) use say;

/// Like `eprintln!`, but does not panic if standard error cannot be written.
macro_rules! complain {
    ($($arguments:tt)*) => {{
        use std::io::Write as _;
        // At once, so that a launcher can mark lines.
        let _ = std::io::stderr().write_all(format!("{}\n", format_args!($($arguments)*)).as_bytes());
    }};
}
pub(crate) use complain;

/// Like `println!`, but ends the command with an error if standard output cannot be written.
macro_rules! show {
    () => { $crate::output::write(format_args!("\n")) };
    ($($arguments:tt)*) => {
        $crate::output::write(format_args!("{}\n", format_args!($($arguments)*)))
    };
}
pub(crate) use show;

/// Writes to standard output, or ends the command: with an error, or silently and with the code of
/// SIGPIPE if the reader has gone.
pub fn write(text: fmt::Arguments<'_>) {
    if is_silent() {
        return;
    }
    let mut stdout = io::stdout();
    let Err(error) = stdout.write_fmt(text).and_then(|()| stdout.flush()) else { return };
    fullshard_pjrt::plugins::clean_end();
    if error.kind() == io::ErrorKind::BrokenPipe {
        exit(128 + SIGPIPE);
    }
    complain!("error: cannot write to standard output: {error}");
    exit(1);
}

/// Rejects an output file that cannot be written, before anything is computed for it.
pub fn check_file(flag: &str, path: &Path) -> Result<()> {
    check_place(path)?;
    let folder = check_folder(flag, path)?;
    tempfile::tempfile_in(folder).map_err(|error| Error::file(folder, error))?;
    Ok(())
}

/// The folder of an output file; an error if it does not exist.
pub fn check_folder<'a>(flag: &str, path: &'a Path) -> Result<&'a Path> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    match folder.is_dir() {
        true => Ok(folder),
        false => Err(Error::Usage(format!(
            "--{flag} is {}, but there is no folder {}: create it, or name another file",
            path.display(),
            folder.display()
        ))),
    }
}

/// Prints a value as JSON.
pub fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Error::Usage(format!("cannot write JSON: {error}")))?;
    show!("{text}");
    Ok(())
}

/// A time in seconds since 1970, as local time.
pub fn local_time(seconds: f64) -> String {
    let time = chrono::DateTime::from_timestamp(seconds as i64, 0);
    let local = time.map(|time| time.with_timezone(&chrono::Local));
    local.map_or("unknown".to_owned(), |time| time.format("%Y-%m-%d %H:%M:%S").to_string())
}

/// Prints the estimated memory of a step per device.
pub fn print_estimate(estimate: &MemoryEstimate) {
    say!("{:<20} {} per device", "estimated memory", format::bytes(estimate.total));
    for part in estimate.parts() {
        say!("  {:<18} {}", part.what, format::bytes(part.bytes));
    }
}

/// Maximum number of printed modules that cause collectives.
const MODULES: usize = 12;

/// The modules that cause collectives, most bytes first.
pub fn print_by_module(rows: &[ModuleCollectives]) {
    if rows.is_empty() {
        return;
    }
    show!("\ncollectives by module            axis  group   count bytes/step  module");
    for row in rows.iter().take(MODULES) {
        let (bytes, cause) = (format::bytes(row.bytes), row.cause());
        show!(
            "  {:<20} {:>14} {:>6} {:>7} {bytes:>10}  {cause}",
            row.kind,
            row.axis,
            row.group,
            row.count
        );
    }
    if let Some(rest) = rows.get(MODULES..).filter(|rest| !rest.is_empty()) {
        let count: u64 = rest.iter().map(|row| row.count).sum();
        let bytes = format::bytes(rest.iter().map(|row| row.bytes).sum());
        show!("  {:<20} {:>14} {:>6} {count:>7} {bytes:>10}", "the rest", "", "");
    }
}

/// An argument quoted for the shell.
pub fn quoted(argument: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./,:+".contains(c);
    match !argument.is_empty() && argument.chars().all(plain) {
        true => argument.to_owned(),
        false => format!("'{}'", argument.replace('\'', r"'\''")),
    }
}
