//! The tokens of a source, grouped into blocks: tokenized once, cached in a file, memory-mapped.
//!
//! One thread reads examples, all cores tokenize them, and the tokens are written in the order of
//! the examples. Only a few megabytes are in flight at any time. The file name is a digest of all
//! inputs, so another text, tokenizer or block size is another file, and processes that prepare
//! the same corpus concurrently do not conflict. A cache that cannot be written costs the next run
//! its time, not this one.

mod file;
mod map;

use crate::grouping::Grouper;
use crate::{Error, Grouping, Result, Source, Tokenizer};
use file::{Tokens, Writer};
use fullshard_core::cache::temporary_file;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io;
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

/// The part of a source's examples to use, in percent, as `datasets` slices a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// All of them.
    All,
    /// The first N percent: validation data if there is no validation file.
    First(u8),
    /// All but the first N percent: the remaining training data.
    Rest(u8),
}

/// Progress of preparation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the source read and tokenized.
    pub done: u64,
    /// Bytes of the source.
    pub total: u64,
    /// Tokens so far.
    pub tokens: u64,
}

/// All inputs that determine a corpus.
#[derive(Clone, Copy)]
pub struct Preparation<'a> {
    /// The text.
    pub source: &'a Source,
    /// The part of it to use.
    pub part: Part,
    /// The tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// Tokens per block.
    pub block_size: usize,
    /// How tokens are grouped into blocks.
    pub grouping: Grouping,
}

/// Blocks of tokens.
#[derive(Debug)]
pub struct Corpus {
    tokens: Tokens,
    block_size: usize,
    blocks: u64,
    origin: Origin,
}

/// Where the tokens of a corpus come from.
#[derive(Debug)]
enum Origin {
    /// They were found in this cache file.
    Cache(PathBuf),
    /// They were written to this cache file.
    Text(PathBuf),
    /// They could not be cached, for this reason, and are in a file without a name.
    Uncached(Error),
}

impl Corpus {
    /// Opens the corpus if an intact copy is in the cache; tokenizes the text otherwise.
    pub fn prepare(
        plan: &Preparation,
        cache: &Path,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Self> {
        plan.check()?;
        let path = plan.path(cache)?;
        if let Some(tokens) = File::open(&path).ok().and_then(Tokens::read_from) {
            return Ok(Self::new(tokens, plan, Origin::Cache(path)));
        }
        Self::tokenize(plan, cache, progress)
    }

    /// Tokenizes the text, into a new cache file. If that cannot be written, the tokens go to a file
    /// in the system's temporary folder, which is removed with the corpus.
    pub fn tokenize(
        plan: &Preparation,
        cache: &Path,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Self> {
        plan.check()?;
        let path = plan.path(cache)?;
        match plan.write_cached(&path, progress) {
            Ok(tokens) => Ok(Self::new(tokens, plan, Origin::Text(path))),
            Err(uncached @ Error::Io { action: WRITE, .. }) => {
                let tokens = plan.write_temporary(&uncached, progress)?;
                Ok(Self::new(tokens, plan, Origin::Uncached(uncached)))
            }
            Err(error) => Err(error),
        }
    }

    fn new(tokens: Tokens, plan: &Preparation, origin: Origin) -> Self {
        let block_size = plan.block_size;
        let blocks = tokens.len().div_ceil(block_size as u64);
        Self { tokens, block_size, blocks, origin }
    }

    /// The same corpus, truncated to its first `blocks` blocks.
    pub fn take(self, blocks: u64) -> Self {
        Self { blocks: self.blocks.min(blocks), ..self }
    }

    /// The number of blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Tokens per block; only the last block of a [`Grouping::Packed`] corpus may have fewer.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Total number of tokens in the blocks.
    pub fn tokens(&self) -> u64 {
        self.tokens.len().min(self.blocks * self.block_size as u64)
    }

    /// Number of tokens in the text, including those that grouping dropped.
    pub fn text_tokens(&self) -> u64 {
        self.tokens.seen()
    }

    /// Number of examples in the text.
    pub fn examples(&self) -> u64 {
        self.tokens.examples()
    }

    /// Whether it was found in the cache.
    pub fn reused(&self) -> bool {
        matches!(self.origin, Origin::Cache(_))
    }

    /// The cache file, if it is cached.
    pub fn path(&self) -> Option<&Path> {
        match &self.origin {
            Origin::Cache(path) | Origin::Text(path) => Some(path),
            Origin::Uncached(_) => None,
        }
    }

    /// Why it is not cached, if it is not.
    pub fn uncached(&self) -> Option<&Error> {
        match &self.origin {
            Origin::Uncached(reason) => Some(reason),
            Origin::Cache(_) | Origin::Text(_) => None,
        }
    }

    /// A checksum of all tokens.
    pub fn checksum(&self) -> u64 {
        self.tokens.checksum()
    }

    /// Copies a block into `out` and returns its number of tokens: 0 past the last block.
    pub fn read(&self, block: u64, out: &mut [i32]) -> usize {
        if block >= self.blocks {
            return 0;
        }
        let length = self.block_size.min(out.len());
        self.tokens.read(block * self.block_size as u64, &mut out[..length])
    }
}

/// Approximate size of the chunks of examples passed to the tokenizer, in bytes.
const CHUNK_BYTES: usize = 2 << 20;
/// Maximum number of queued chunks.
const QUEUED_CHUNKS: usize = 2;
/// What fails when tokens cannot be stored. Sources are only read.
const WRITE: &str = "write";

/// Examples that are tokenized together.
#[derive(Default)]
struct Chunk {
    examples: Vec<String>,
    bytes: usize,
    /// Bytes of the source read so far.
    read: u64,
}

impl Preparation<'_> {
    fn check(&self) -> Result<()> {
        if self.block_size == 0 {
            let expected = "a block has at least one token";
            return Err(Error::OutOfRange { what: "--block_size", given: 0, expected });
        }
        match self.part {
            Part::First(percent) | Part::Rest(percent) if !(1..=99).contains(&percent) => {
                Err(Error::OutOfRange {
                    what: "--validation_split_percentage",
                    given: percent.into(),
                    expected: "it must be between 1 and 99",
                })
            }
            _ => Ok(()),
        }
    }

    /// The cache file, whose name is a digest of all inputs. Modification times can be restored after
    /// an edit, times of change cannot.
    fn path(&self, cache: &Path) -> Result<PathBuf> {
        let mut digest = Sha256::new();
        for path in self.source.files() {
            let absolute = path.canonicalize().map_err(Error::io("read", path))?;
            let file = absolute.metadata().map_err(Error::io("read", path))?;
            let modified = file.modified().map_err(Error::io("read", path))?;
            let changed = (file.ctime(), file.ctime_nsec());
            digest.update(format!("{absolute:?} {} {modified:?} ", file.len()));
            digest.update(format!("{changed:?} {} {}\n", file.dev(), file.ino()));
        }
        digest.update(self.tokenizer.digest());
        digest.update(format!(
            "{} {:?} {} {:?} {} {:?}",
            file::VERSION,
            self.source.kind(),
            self.source.keeps_linebreaks(),
            self.part,
            self.block_size,
            self.grouping,
        ));
        let name: String = digest.finalize().iter().take(16).map(|b| format!("{b:02x}")).collect();
        Ok(cache.join(format!("{name}.tokens")))
    }

    /// The range of example indices to use.
    fn range(&self) -> Result<Range<u64>> {
        match self.part {
            Part::All => Ok(0..u64::MAX),
            Part::First(percent) => Ok(0..boundary(percent, self.source.count()?)),
            Part::Rest(percent) => Ok(boundary(percent, self.source.count()?)..u64::MAX),
        }
    }

    /// Writes a cache file, under a temporary name until it is complete.
    fn write_cached(&self, path: &Path, progress: &mut dyn FnMut(Progress)) -> Result<Tokens> {
        let folder = path.parent().unwrap_or(Path::new("."));
        let (file, name) = temporary_file(folder).map_err(Error::io(WRITE, path))?.into_parts();
        let tokens = self.write(file, path, progress)?;
        name.persist(path).map_err(|error| error.error).map_err(Error::io(WRITE, path))?;
        Ok(tokens)
    }

    /// Writes a file without a name, which exists as long as it is open.
    fn write_temporary(
        &self,
        uncached: &Error,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Tokens> {
        let folder = std::env::temp_dir();
        let file = tempfile::tempfile_in(&folder).map_err(Error::io(WRITE, &folder));
        match file.and_then(|file| self.write(file, &folder, progress)) {
            Err(Error::Io { action: WRITE, path, source }) => {
                Err(Error::NoPlaceForTokens { uncached: uncached.to_string(), path, source })
            }
            written => written,
        }
    }

    /// Reads, tokenizes and writes into a file, which errors call `path`.
    fn write(&self, file: File, path: &Path, progress: &mut dyn FnMut(Progress)) -> Result<Tokens> {
        let range = self.range()?;
        let written = |source| Error::Io { action: WRITE, path: path.into(), source };
        let mut writer = Writer::new(file, self.tokenizer.vocabulary()).map_err(written)?;
        let mut grouper = Grouper::new(self.grouping, self.block_size);
        let (mut seen, mut examples) = (0, 0);
        thread::scope(|scope| {
            let (sender, chunks) = sync_channel(QUEUED_CHUNKS);
            let reader = scope.spawn(|| read(self.source, range, sender));
            for chunk in chunks {
                for tokens in self.tokenizer.encode_batch(&chunk.examples)? {
                    examples += 1;
                    seen += tokens.len() as u64;
                    grouper.push(&tokens, &mut |tokens| writer.write(tokens)).map_err(written)?;
                }
                progress(Progress { done: chunk.read, total: self.source.bytes(), tokens: seen });
            }
            reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        grouper.finish(&mut |tokens| writer.write(tokens)).map_err(written)?;
        if writer.tokens() == 0 {
            let path = self.source.files().first().cloned().unwrap_or_default();
            return Err(Error::NoBlocks { path, tokens: seen, block_size: self.block_size });
        }
        let file = writer.finish(seen, examples).map_err(written)?;
        let damaged = || written(io::Error::other("the file just written is damaged"));
        Tokens::read_from(file).ok_or_else(damaged)
    }
}

/// Reads the examples of a range and sends them in chunks.
fn read(source: &Source, range: Range<u64>, sender: SyncSender<Chunk>) -> Result<()> {
    let mut chunk = Chunk::default();
    let mut number = 0;
    source.examples(&mut |text, read| {
        if range.contains(&number) {
            chunk.examples.push(text.into());
            chunk.bytes += text.len() + size_of::<String>();
        }
        chunk.read = read;
        number += 1;
        if chunk.bytes >= CHUNK_BYTES && sender.send(std::mem::take(&mut chunk)).is_err() {
            return ControlFlow::Break(());
        }
        if number < range.end { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    let _ = sender.send(chunk); // without a receiver, tokenizing failed with its own error
    Ok(())
}

/// The example index of a percentage, rounded half to even as in Python.
fn boundary(percent: u8, examples: u64) -> u64 {
    (f64::from(percent) * examples as f64 / 100.0).round_ties_even() as u64
}
