//! What several commands print.

use fullshard::format;
use fullshard::plan::MemoryEstimate;
use fullshard::{Error, Result};

/// Prints a line as `println!` does, but goes on if nobody reads any more: a run is worth more than
/// what it says.
macro_rules! say {
    ($($arguments:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stdout(), $($arguments)*);
    }};
}
pub(crate) use say;

/// Prints a value as JSON for machines.
pub fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Error::Usage(format!("cannot write JSON: {error}")))?;
    println!("{text}");
    Ok(())
}

/// Prints what a step should need on each device.
pub fn print_estimate(estimate: &MemoryEstimate) {
    say!("{:<20} {} a device", "estimated memory", format::bytes(estimate.total));
    for part in estimate.parts() {
        say!("  {:<18} {}", part.what, format::bytes(part.bytes));
    }
}

/// An argument as a shell takes it.
pub fn quoted(argument: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./,:+".contains(c);
    match !argument.is_empty() && argument.chars().all(plain) {
        true => argument.to_owned(),
        false => format!("'{}'", argument.replace('\'', r"'\''")),
    }
}
