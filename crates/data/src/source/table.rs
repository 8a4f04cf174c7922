//! Comma-separated values with a header.
//!
//! A row with fewer fields than the header has an empty text; one with more is an error,
//! since a comma in the text was probably not quoted. Blank lines are skipped.

use super::{Counted, Visit, text_column};
use crate::{Error, Result};
use csv::{ByteRecord, ReaderBuilder};
use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::Ordering;

pub(super) fn read(
    path: &Path,
    file: File,
    column: &mut Option<String>,
    visit: &mut Visit,
) -> Result<ControlFlow<()>> {
    let malformed = |error: csv::Error| Error::Malformed {
        path: path.into(),
        reason: format!("not CSV: {error}"),
    };
    let (counted, read) = Counted::new(file);
    let mut reader =
        ReaderBuilder::new().flexible(true).buffer_capacity(1 << 20).from_reader(counted);
    let headers = reader.headers().map_err(malformed)?.clone();
    if headers.is_empty() {
        return Ok(ControlFlow::Continue(()));
    }
    let column = match column {
        Some(column) => column,
        None => column.insert(text_column(headers.iter()).unwrap_or_default()),
    };
    let Some(index) = headers.iter().position(|name| name == column) else {
        let reason = format!("has no column `{column}`, unlike the previous files");
        return Err(Error::Malformed { path: path.into(), reason });
    };
    let mut record = ByteRecord::new();
    while reader.read_byte_record(&mut record).map_err(malformed)? {
        let line = record.position().map_or(0, csv::Position::line);
        if record.len() > headers.len() {
            let reason = format!(
                "line {line} has {} fields but the header has {}: quote text with commas",
                record.len(),
                headers.len()
            );
            return Err(Error::Malformed { path: path.into(), reason });
        }
        let text = record.get(index).unwrap_or_default();
        let text = std::str::from_utf8(text).map_err(|_| Error::Malformed {
            path: path.into(),
            reason: format!("column `{column}` of the row at line {line} is not UTF-8"),
        })?;
        if visit(text, read.load(Ordering::Relaxed)).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}
