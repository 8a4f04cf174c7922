//! Text as a sequence of examples, exactly those of Hugging Face's `datasets` in `run_clm`.
//!
//! Files are streamed: memory holds one example and a buffer, whatever the file size.

mod json;
mod parquet;
mod table;
mod text;

use crate::{Error, Result};
use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The format of a file, by its extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Plain text, one example per line.
    Text,
    /// JSON objects, one per line, or an array of them.
    Json,
    /// Comma-separated values with a header.
    Csv,
    /// Parquet.
    Parquet,
}

impl Kind {
    /// The supported extensions.
    pub const EXTENSIONS: [&str; 5] = [".txt", ".json", ".jsonl", ".csv", ".parquet"];

    /// The kind of a file, by its extension.
    pub fn of(path: &Path) -> Result<Self> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("txt") => Ok(Self::Text),
            Some("json" | "jsonl") => Ok(Self::Json),
            Some("csv") => Ok(Self::Csv),
            Some("parquet") => Ok(Self::Parquet),
            _ => Err(Error::UnknownExtension { path: path.into() }),
        }
    }
}

/// One or more files of one kind, read in sequence.
#[derive(Clone, Debug)]
pub struct Source {
    files: Vec<PathBuf>,
    kind: Kind,
    keep_linebreaks: bool,
    bytes: u64,
}

/// Called with each example and the bytes read so far; returns whether to continue.
pub(crate) type Visit<'a> = dyn FnMut(&str, u64) -> ControlFlow<()> + 'a;

impl Source {
    /// A source of these files, which must exist and be of one [`Kind`].
    ///
    /// `keep_linebreaks` keeps the `\n` at the end of lines of plain text; other kinds ignore it.
    pub fn open(files: &[PathBuf], keep_linebreaks: bool) -> Result<Self> {
        let first = files.first().ok_or(Error::NoFiles)?;
        let kind = Kind::of(first)?;
        let mut bytes = 0;
        for file in files {
            if Kind::of(file)? != kind {
                return Err(Error::MixedKinds { first: first.clone(), second: file.clone() });
            }
            let opened = File::open(file).map_err(Error::io("read", file))?;
            let metadata = opened.metadata().map_err(Error::io("read", file))?;
            if metadata.is_dir() {
                let reason = "is a directory, not a file".into();
                return Err(Error::Malformed { path: file.clone(), reason });
            }
            bytes += metadata.len();
        }
        Ok(Self { files: files.to_vec(), kind, keep_linebreaks, bytes })
    }

    /// The files, in reading order.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// The format of the files.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether lines of plain text keep their `\n`.
    pub fn keeps_linebreaks(&self) -> bool {
        self.keep_linebreaks
    }

    /// The total size of the files.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Calls `visit` with every example and the bytes read so far, until it breaks.
    pub fn examples(&self, visit: &mut dyn FnMut(&str, u64) -> ControlFlow<()>) -> Result<()> {
        self.read(visit).map(|_| ())
    }

    /// The column that the text is read from; `None` for plain text.
    pub fn column(&self) -> Result<Option<String>> {
        self.read(&mut |_, _| ControlFlow::Break(()))
    }

    /// As [`Source::examples`]; returns the column of the text.
    fn read(&self, visit: &mut dyn FnMut(&str, u64) -> ControlFlow<()>) -> Result<Option<String>> {
        let mut before = 0;
        let mut column = None;
        for path in &self.files {
            let file = File::open(path).map_err(Error::io("read", path))?;
            let size = file.metadata().map_err(Error::io("read", path))?.len();
            let each = &mut |text: &str, read: u64| visit(text, before + read.min(size));
            let flow = match self.kind {
                Kind::Text => text::read(path, file, self.keep_linebreaks, each)?,
                Kind::Json => json::read(path, file, &mut column, each)?,
                Kind::Csv => table::read(path, file, &mut column, each)?,
                Kind::Parquet => parquet::read(path, file, &mut column, each)?,
            };
            if flow.is_break() {
                break;
            }
            before += size;
        }
        Ok(column)
    }

    /// The number of examples. Reads the files, except for Parquet, which stores it.
    pub fn count(&self) -> Result<u64> {
        if self.kind == Kind::Parquet {
            return self.files.iter().map(|path| parquet::rows(path)).sum();
        }
        let mut count = 0;
        self.examples(&mut |_, _| {
            count += 1;
            ControlFlow::Continue(())
        })?;
        Ok(count)
    }
}

/// The column that holds the text: `text` if there is one, else the first, as in `run_clm`.
fn text_column<'a>(names: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut first = None;
    for name in names {
        if name == "text" {
            return Some(name.into());
        }
        first.get_or_insert(name);
    }
    first.map(Into::into)
}

/// Counts the bytes read, for parsers that do not report their position.
struct Counted<R> {
    inner: R,
    read: Arc<AtomicU64>,
}

impl<R: Read> Counted<R> {
    fn new(inner: R) -> (Self, Arc<AtomicU64>) {
        let read = Arc::new(AtomicU64::new(0));
        (Self { inner, read: Arc::clone(&read) }, read)
    }
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}
