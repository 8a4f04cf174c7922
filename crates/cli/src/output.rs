//! Output shared by several commands.

use fullshard::format;
use fullshard::plan::MemoryEstimate;
use fullshard::{Error, Result};

/// Like `println!`, but ignores a closed pipe, so that a run continues.
macro_rules! say {
    ($($arguments:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stdout(), $($arguments)*);
    }};
}
pub(crate) use say;

/// Like `println!`, but ends the command with an error if standard output cannot be written.
macro_rules! show {
    () => { $crate::output::write_line(format_args!("")) };
    ($($arguments:tt)*) => { $crate::output::write_line(format_args!($($arguments)*)) };
}
pub(crate) use show;

/// Writes a line for [`show!`].
pub fn write_line(line: std::fmt::Arguments<'_>) {
    use std::io::Write;
    if let Err(error) = writeln!(std::io::stdout(), "{line}") {
        eprintln!("error: cannot write to standard output: {error}");
        std::process::exit(1);
    }
}

/// Prints a value as JSON.
pub fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Error::Usage(format!("cannot write JSON: {error}")))?;
    show!("{text}");
    Ok(())
}

/// Prints the estimated memory of a step per device.
pub fn print_estimate(estimate: &MemoryEstimate) {
    say!("{:<20} {} per device", "estimated memory", format::bytes(estimate.total));
    for part in estimate.parts() {
        say!("  {:<18} {}", part.what, format::bytes(part.bytes));
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
