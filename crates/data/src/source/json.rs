//! JSON: concatenated objects, usually one per line, or an array of objects or strings.
//!
//! The first row determines the column. Numbers, nested values and other columns are
//! skipped without being stored.

use super::{Counted, Visit};
use crate::{Error, Result};
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

pub(super) fn read(
    path: &Path,
    file: File,
    column: &mut Option<String>,
    visit: &mut Visit,
) -> Result<ControlFlow<()>> {
    let (counted, read) = Counted::new(file);
    let mut reader = BufReader::with_capacity(1 << 20, counted);
    let start = reader.fill_buf().map_err(Error::io("read", path))?;
    let mark = if start.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
    let array = start[mark..].trim_ascii_start().starts_with(b"[");
    reader.consume(mark);

    let mut json = serde_json::Deserializer::from_reader(reader);
    let mut rows = Rows { column, visit, read, row: 0, problem: None, stopped: false };
    let mut outcome = Ok(());
    if array {
        outcome = json.deserialize_seq(&mut rows).and_then(|()| json.end());
    } else {
        while outcome.is_ok() && !rows.stopped && json.end().is_err() {
            outcome =
                Row { column: rows.column }.deserialize(&mut json).map(|cell| rows.take(cell));
        }
    }
    if let Some(problem) = rows.problem {
        let column = rows.column.clone().unwrap_or_default();
        return Err(Error::NoText { path: path.into(), row: rows.row, column, problem });
    }
    if rows.stopped {
        return Ok(ControlFlow::Break(()));
    }
    outcome.map(ControlFlow::Continue).map_err(|error| {
        let mut reason = format!("not JSON, one object per line: {error}");
        if reason.contains("hex escape") {
            reason.push_str(". Half of a surrogate pair, such as \\ud800, is not a character");
        }
        Error::Malformed { path: path.into(), reason }
    })
}

/// The consumer of rows, and its progress.
struct Rows<'a, 'v> {
    column: &'a mut Option<String>,
    visit: &'a mut Visit<'v>,
    read: Arc<AtomicU64>,
    row: u64,
    problem: Option<&'static str>,
    stopped: bool,
}

impl Rows<'_, '_> {
    fn take(&mut self, cell: Cell) {
        self.row += 1;
        match cell {
            Cell::Text(text) => {
                self.stopped = (self.visit)(&text, self.read.load(Ordering::Relaxed)).is_break();
            }
            Cell::Null => self.stop_at("is null or missing"),
            Cell::Other => self.stop_at("is not a string"),
        }
    }

    fn stop_at(&mut self, problem: &'static str) {
        self.problem = Some(problem);
        self.stopped = true;
    }
}

impl<'de> Visitor<'de> for &mut Rows<'_, '_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("an array of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut rows: A) -> Result<(), A::Error> {
        while let Some(cell) = rows.next_element_seed(Row { column: self.column })? {
            self.take(cell);
            if self.stopped {
                break; // the rest of the array stays unread; the error about it is ignored
            }
        }
        Ok(())
    }
}

/// The value of a row in the column.
enum Cell {
    Text(String),
    Null,
    Other,
}

/// Reads one row: an object, or a bare string.
struct Row<'a> {
    column: &'a mut Option<String>,
}

impl<'de> DeserializeSeed<'de> for Row<'_> {
    type Value = Cell;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Cell, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Row<'_> {
    type Value = Cell;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("an object with a string in it")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Cell, E> {
        Ok(Cell::Text(text.into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Cell, A::Error> {
        let known = self.column.is_some();
        let mut found = Cell::Null;
        while let Some(name) = fields.next_key::<String>()? {
            let selected = match self.column {
                Some(column) => *column == name || (!known && name == "text"),
                None => true,
            };
            if !selected {
                fields.next_value::<IgnoredAny>()?;
                continue;
            }
            found = fields.next_value_seed(CellSeed)?;
            *self.column = Some(name);
        }
        Ok(found)
    }
}

/// Reads one value, keeping it only if it is a string.
struct CellSeed;

impl<'de> DeserializeSeed<'de> for CellSeed {
    type Value = Cell;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Cell, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for CellSeed {
    type Value = Cell;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("a string")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Cell, E> {
        Ok(Cell::Text(text.into()))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Cell, E> {
        Ok(Cell::Null)
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<Cell, E> {
        Ok(Cell::Other)
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<Cell, E> {
        Ok(Cell::Other)
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<Cell, E> {
        Ok(Cell::Other)
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Cell, E> {
        Ok(Cell::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Cell, A::Error> {
        while values.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Cell::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Cell, A::Error> {
        while fields.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Cell::Other)
    }
}
