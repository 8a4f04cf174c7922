//! Goodput: the share of a run's wall time that went into steps which were not lost again.
//!
//! A run may be started many times: each start is a generation, which goes on from a checkpoint
//! of the one before. All of them append to one [`Journal`] in the output folder. [`analyze`]
//! turns its records into a [`Goodput`]: what the time was spent on, how often the run failed, and
//! how often it should save.
//!
//! ```no_run
//! # fn main() -> fullshard::Result<()> {
//! if let Some(goodput) = fullshard::goodput::of("output-folder")? {
//!     println!("{goodput}");
//! }
//! # Ok(()) }
//! ```

mod account;
mod event;
mod journal;
mod picture;
mod report;
#[cfg(test)]
mod tests;

pub use account::analyze;
pub use event::{Ended, Event, Record, Source};
pub use journal::{JOURNAL, Journal, read};
pub use report::{Generation, Goodput, Part, PartTime, SaveInterval, Span};

use crate::error::Result;
use std::path::Path;

/// The goodput of the last run in an output folder; none if its journal has no run.
pub fn of(folder: impl AsRef<Path>) -> Result<Option<Goodput>> {
    Ok(analyze(&read(folder)?))
}
