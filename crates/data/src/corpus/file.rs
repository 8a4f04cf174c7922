//! The cache file of a corpus: a header, then the tokens as 16 or 32 bits each.
//!
//! Numbers are in native byte order; in another the magic does not match. The header is written
//! last, so an unfinished file has none.

use super::map;
use memmap2::Mmap;
use std::fs::File;
use std::hash::Hasher;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use twox_hash::XxHash3_64;

const MAGIC: u64 = u64::from_be_bytes(*b"fstokens");
/// Incremented when the format changes; part of every cache key.
pub(super) const VERSION: u64 = 1;
const HEADER: usize = 64;

/// The header: eight numbers of 64 bits, the last a checksum of those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    /// Bytes per token.
    width: u64,
    /// Tokens in the file.
    tokens: u64,
    /// Tokens of the text, including those in no block.
    seen: u64,
    /// Examples of the text.
    examples: u64,
    /// Checksum of the tokens.
    checksum: u64,
}

impl Header {
    fn to_words(self) -> [u64; 8] {
        let Self { width, tokens, seen, examples, checksum } = self;
        let mut words = [MAGIC, VERSION, width, tokens, seen, examples, checksum, 0];
        words[7] = XxHash3_64::oneshot(bytemuck::cast_slice(&words[..7]));
        words
    }

    fn from_words(words: [u64; 8]) -> Option<Self> {
        let [_, _, width, tokens, seen, examples, checksum, _] = words;
        let header = Self { width, tokens, seen, examples, checksum };
        (header.to_words() == words).then_some(header)
    }
}

/// The memory-mapped tokens of a corpus.
#[derive(Debug)]
pub(super) struct Tokens {
    map: Mmap,
    header: Header,
}

impl Tokens {
    /// Maps a file and verifies all of it; `None` if it is damaged.
    pub(super) fn read_from(mut file: File) -> Option<Self> {
        file.rewind().ok()?;
        let mut words = [0; 8];
        file.read_exact(bytemuck::cast_slice_mut(&mut words)).ok()?;
        let header = Header::from_words(words)?;
        // Read, not mapped: a mapping would count every page of the file as this process's memory.
        let (length, checksum) = sum(&mut file).ok()?;
        let intact = matches!(header.width, 2 | 4)
            && header.tokens.checked_mul(header.width) == Some(length)
            && header.checksum == checksum;
        if !intact {
            return None;
        }
        let map = map::map(&file).ok()?;
        Some(Self { map, header })
    }

    pub(super) fn len(&self) -> u64 {
        self.header.tokens
    }

    pub(super) fn seen(&self) -> u64 {
        self.header.seen
    }

    pub(super) fn checksum(&self) -> u64 {
        self.header.checksum
    }

    pub(super) fn examples(&self) -> u64 {
        self.header.examples
    }

    /// Copies the tokens from `start` on, as many as exist and fit.
    pub(super) fn read(&self, start: u64, out: &mut [i32]) -> usize {
        let length = self.len().saturating_sub(start).min(out.len() as u64) as usize;
        let start = start as usize;
        let body = &self.map[HEADER..];
        if self.header.width == 2 {
            let tokens = &bytemuck::cast_slice::<u8, u16>(body)[start..start + length];
            out.iter_mut().zip(tokens).for_each(|(out, &token)| *out = token.into());
        } else {
            let tokens = &bytemuck::cast_slice::<u8, u32>(body)[start..start + length];
            out.iter_mut().zip(tokens).for_each(|(out, &token)| *out = token as i32);
        }
        length
    }
}

/// The length and the checksum of the rest of a reader.
fn sum(mut rest: impl Read) -> io::Result<(u64, u64)> {
    let mut checksum = XxHash3_64::with_seed(0);
    let mut buffer = vec![0; 1 << 20];
    let mut length = 0;
    loop {
        let read = rest.read(&mut buffer)?;
        if read == 0 {
            return Ok((length, checksum.finish()));
        }
        checksum.write(&buffer[..read]);
        length += read as u64;
    }
}

/// Writes tokens into a new file.
pub(super) struct Writer {
    file: BufWriter<File>,
    checksum: XxHash3_64,
    width: u64,
    tokens: u64,
}

impl Writer {
    pub(super) fn new(file: File, vocabulary: usize) -> io::Result<Self> {
        let mut file = BufWriter::with_capacity(1 << 20, file);
        file.write_all(&[0; HEADER])?;
        let width = if vocabulary <= 1 << 16 { 2 } else { 4 };
        Ok(Self { file, checksum: XxHash3_64::with_seed(0), width, tokens: 0 })
    }

    pub(super) fn write(&mut self, tokens: &[u32]) -> io::Result<()> {
        let short: Vec<u16>;
        let bytes: &[u8] = if self.width == 2 {
            short = tokens.iter().map(|&token| token as u16).collect();
            bytemuck::cast_slice(&short)
        } else {
            bytemuck::cast_slice(tokens)
        };
        self.checksum.write(bytes);
        self.tokens += tokens.len() as u64;
        self.file.write_all(bytes)
    }

    pub(super) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Writes the header and returns the file, which is now complete.
    pub(super) fn finish(self, seen: u64, examples: u64) -> io::Result<File> {
        let checksum = self.checksum.finish();
        let header =
            Header { width: self.width, tokens: self.tokens, seen, examples, checksum }.to_words();
        let mut file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(bytemuck::cast_slice(&header))?;
        file.sync_all()?;
        Ok(file)
    }
}
