//! Errors, each with its cause and a fix.

use std::io;
use std::path::PathBuf;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error type of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or directory could not be read or written.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system error.
        source: io::Error,
    },
    /// No file was given.
    #[error("no text: pass at least one file with --train_file")]
    NoFiles,
    /// A file has an unsupported extension.
    #[error("{path}: text files end in {valid}", valid = crate::Kind::EXTENSIONS.join(", "))]
    UnknownExtension {
        /// The file.
        path: PathBuf,
    },
    /// Files of one source must be of one kind.
    #[error("{first} and {second} are of different kinds: pass files of one kind")]
    MixedKinds {
        /// A file.
        first: PathBuf,
        /// A file of another kind.
        second: PathBuf,
    },
    /// Text that is not UTF-8.
    #[error(
        "{path}, line {line}: the byte at offset {offset} is not UTF-8. Convert the file, for \
         example with `iconv -f LATIN1 -t UTF-8`"
    )]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// The offset of the first invalid byte in the file.
        offset: u64,
    },
    /// The content of a file does not match its extension.
    #[error("{path}: {reason}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        reason: String,
    },
    /// A row has no text in the column that is read.
    #[error(
        "{path}, row {row}: column `{column}` {problem}. Every row needs text there: \
         fill it in or drop the row"
    )]
    NoText {
        /// The file.
        path: PathBuf,
        /// The row, counted from 1.
        row: u64,
        /// The column that is read.
        column: String,
        /// What is there instead.
        problem: &'static str,
    },
    /// There is no tokenizer of this name.
    #[error(
        "no tokenizer `{name}`: pass `gpt2`, which is built in, a tokenizer.json, a directory that \
         has one, or a name on the hub"
    )]
    NoTokenizer {
        /// The requested name.
        name: String,
    },
    /// A tokenizer's files cannot be used.
    #[error("tokenizer {name}: {reason}")]
    BadTokenizer {
        /// The tokenizer.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The hub could not be reached or does not have a model or dataset.
    #[error("{kind} {name}: {reason}")]
    Hub {
        /// `model` or `dataset`.
        kind: &'static str,
        /// Its name.
        name: String,
        /// What went wrong, and a fix.
        reason: String,
    },
    /// A number is out of range.
    #[error("{what} is {given}: {expected}")]
    OutOfRange {
        /// What the number is.
        what: &'static str,
        /// What was given.
        given: u64,
        /// The allowed values.
        expected: &'static str,
    },
    /// Tokens can be written neither to the cache nor to a temporary file.
    #[error(
        "{uncached}; the tokens cannot be written to {path} either: {source}. Name a folder with \
         space by --cache_dir or FULLSHARD_CACHE, or by TMPDIR"
    )]
    NoPlaceForTokens {
        /// Why they are not in the cache.
        uncached: String,
        /// The folder of temporary files.
        path: PathBuf,
        /// The system error.
        source: io::Error,
    },
    /// The text is too short.
    #[error(
        "{path} has {tokens} tokens, which do not fill a block of {block_size}: use more text or a \
         smaller --block_size"
    )]
    NoBlocks {
        /// The first file.
        path: PathBuf,
        /// The tokens of the text.
        tokens: u64,
        /// The length of a block.
        block_size: usize,
    },
}

impl Error {
    /// Wraps a system error about a file.
    pub(crate) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}
