//! The tokens of a source, grouped into blocks: made once, kept in a file, mapped into memory.
//!
//! A thread reads examples, all cores turn them into tokens, and the tokens go to the file in the
//! order of the examples. Only a few megabytes are under way at any time. The file is named by a
//! digest of everything that decides what is in it, so another text, tokenizer or block size is
//! another file, and two processes that make the same one do not disturb each other.

mod file;
mod map;

use crate::grouping::Grouper;
use crate::{Error, Grouping, Result, Source, Tokenizer};
use file::{Tokens, Writer};
use sha2::{Digest, Sha256};
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

/// The part of a source's examples that is used, in percent as `datasets` slices a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// All of them.
    All,
    /// The first so many percent: validation data where there is no file of its own.
    First(u8),
    /// All but the first so many percent: what is left to train on.
    Rest(u8),
}

/// How far preparation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the source read and tokenised.
    pub done: u64,
    /// Bytes of the source.
    pub total: u64,
    /// Tokens so far.
    pub tokens: u64,
}

/// Everything that decides what is in a corpus.
#[derive(Clone, Copy)]
pub struct Preparation<'a> {
    /// The text.
    pub source: &'a Source,
    /// How much of it.
    pub part: Part,
    /// What turns it into tokens.
    pub tokenizer: &'a Tokenizer,
    /// Tokens in a block.
    pub block_size: usize,
    /// How tokens become blocks.
    pub grouping: Grouping,
}

/// Blocks of tokens.
#[derive(Debug)]
pub struct Corpus {
    tokens: Tokens,
    path: PathBuf,
    block_size: usize,
    blocks: u64,
    reused: bool,
}

impl Corpus {
    /// Opens the corpus if it is in the cache and whole; makes it otherwise.
    pub fn prepare(
        plan: &Preparation,
        cache: &Path,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Self> {
        plan.check()?;
        std::fs::create_dir_all(cache).map_err(Error::io("create", cache))?;
        let path = cache.join(format!("{}.tokens", plan.key()?));
        if let Some(tokens) = Tokens::open(&path) {
            return Ok(Self::new(tokens, path, plan.block_size, true));
        }
        plan.write(&path, progress)?;
        let lost = || std::io::Error::other("the file just written there is not whole");
        let tokens = Tokens::open(&path).ok_or_else(lost).map_err(Error::io("read", &path))?;
        Ok(Self::new(tokens, path, plan.block_size, false))
    }

    fn new(tokens: Tokens, path: PathBuf, block_size: usize, reused: bool) -> Self {
        let blocks = tokens.len().div_ceil(block_size as u64);
        Self { tokens, path, block_size, blocks, reused }
    }

    /// The same corpus with at most so many blocks, from the first.
    pub fn take(self, blocks: u64) -> Self {
        Self { blocks: self.blocks.min(blocks), ..self }
    }

    /// The number of blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Tokens in a block; only the last of a [`Grouping::Packed`] corpus may have fewer.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Tokens in all blocks together.
    pub fn tokens(&self) -> u64 {
        self.tokens.len().min(self.blocks * self.block_size as u64)
    }

    /// Tokens of the text, those that grouping dropped included.
    pub fn text_tokens(&self) -> u64 {
        self.tokens.seen()
    }

    /// Examples of the text.
    pub fn examples(&self) -> u64 {
        self.tokens.examples()
    }

    /// Whether it was found in the cache.
    pub fn reused(&self) -> bool {
        self.reused
    }

    /// The file it is kept in.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Copies a block and says how many tokens it has: none past the last.
    pub fn read(&self, block: u64, out: &mut [i32]) -> usize {
        if block >= self.blocks {
            return 0;
        }
        let length = self.block_size.min(out.len());
        self.tokens.read(block * self.block_size as u64, &mut out[..length])
    }
}

/// Examples go to the tokenizer in chunks of about so many bytes ...
const CHUNK_BYTES: usize = 2 << 20;
/// ... of which so many may wait.
const CHUNKS_AHEAD: usize = 2;

/// Examples that are tokenised together.
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
                    expected: "it is between 1 and 99",
                })
            }
            _ => Ok(()),
        }
    }

    /// The name of the file: a digest of all that decides its content.
    fn key(&self) -> Result<String> {
        let mut digest = Sha256::new();
        for path in self.source.files() {
            let whole = path.canonicalize().map_err(Error::io("read", path))?;
            let about = whole.metadata().map_err(Error::io("read", path))?;
            let modified = about.modified().map_err(Error::io("read", path))?;
            digest.update(format!("{whole:?} {} {modified:?}\n", about.len()));
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
        Ok(digest.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect())
    }

    /// The examples that are used, by number.
    fn range(&self) -> Result<Range<u64>> {
        match self.part {
            Part::All => Ok(0..u64::MAX),
            Part::First(percent) => Ok(0..boundary(percent, self.source.count()?)),
            Part::Rest(percent) => Ok(boundary(percent, self.source.count()?)..u64::MAX),
        }
    }

    /// Reads, tokenises and writes.
    fn write(&self, path: &Path, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        let range = self.range()?;
        let directory = path.parent().unwrap_or(Path::new("."));
        let written = |source| Error::Io { action: "write", path: path.into(), source };
        let mut writer = Writer::new(directory, self.tokenizer.vocabulary()).map_err(written)?;
        let mut grouper = Grouper::new(self.grouping, self.block_size);
        let (mut seen, mut examples) = (0, 0);
        thread::scope(|scope| {
            let (sender, chunks) = sync_channel(CHUNKS_AHEAD);
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
        writer.finish(path, seen, examples).map_err(written)
    }
}

/// Reads the examples of a range and sends them on in chunks.
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
    let _ = sender.send(chunk); // whoever tokenises has its own error if it no longer listens
    Ok(())
}

/// Where a percentage falls among examples: the nearest, and of two the even one, as Python rounds.
fn boundary(percent: u8, examples: u64) -> u64 {
    (f64::from(percent) * examples as f64 / 100.0).round_ties_even() as u64
}
