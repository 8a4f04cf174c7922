//! Plain text, one example per line.
//!
//! Lines end at `\n`, `\r\n` or `\r` and at nothing else: form feeds and Unicode's separators are
//! part of a line. The line end is passed on as `\n`, or dropped. The last line need not have one.

use super::Visit;
use crate::{Error, Result};
use memchr::memchr2;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::path::Path;

const BUFFER: usize = 1 << 20;

pub(super) fn read(
    path: &Path,
    file: File,
    keep_linebreaks: bool,
    visit: &mut Visit,
) -> Result<ControlFlow<()>> {
    let mut reader = BufReader::with_capacity(BUFFER, file);
    let mut line = Line { path, bytes: Vec::new(), start: 0, number: 1 };
    let mut offset = 0;
    let mut after_return = false;
    loop {
        let buffer = reader.fill_buf().map_err(Error::io("read", path))?;
        if buffer.is_empty() {
            break;
        }
        if std::mem::take(&mut after_return) && buffer[0] == b'\n' {
            reader.consume(1);
            offset += 1;
            line.start = offset;
            continue;
        }
        let end = memchr2(b'\n', b'\r', buffer);
        let taken = end.map_or(buffer.len(), |end| end + 1);
        line.bytes.extend_from_slice(&buffer[..end.unwrap_or(buffer.len())]);
        after_return = end.is_some_and(|end| buffer[end] == b'\r');
        reader.consume(taken);
        offset += taken as u64;
        if end.is_some() {
            if keep_linebreaks {
                line.bytes.push(b'\n');
            }
            if visit(line.text()?, offset).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            line.next(offset);
        }
    }
    if line.bytes.is_empty() {
        return Ok(ControlFlow::Continue(()));
    }
    Ok(visit(line.text()?, offset))
}

/// The line being read, and where it is.
struct Line<'a> {
    path: &'a Path,
    bytes: Vec<u8>,
    start: u64,
    number: u64,
}

impl Line<'_> {
    fn text(&self) -> Result<&str> {
        std::str::from_utf8(&self.bytes).map_err(|error| Error::NotUtf8 {
            path: self.path.into(),
            line: self.number,
            offset: self.start + error.valid_up_to() as u64,
        })
    }

    fn next(&mut self, start: u64) {
        self.bytes.clear();
        self.bytes.shrink_to(BUFFER); // frees the memory of a long line
        self.start = start;
        self.number += 1;
    }
}
