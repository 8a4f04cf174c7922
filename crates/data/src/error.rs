//! What can go wrong, each with the thing at fault and the way out.

use std::io;
use std::path::PathBuf;

/// The result of an operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or directory could not be read or written.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// No file was given.
    #[error("no text: give at least one file with --train_file")]
    NoFiles,
    /// The name of a file does not say what is in it.
    #[error("{path}: text files end in {valid}", valid = crate::Kind::EXTENSIONS.join(", "))]
    UnknownExtension {
        /// The file.
        path: PathBuf,
    },
    /// Files of one source must be of one kind.
    #[error("{first} and {second} are of different kinds: give files of one kind at a time")]
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
        /// The line it is in, from 1.
        line: u64,
        /// Where the first wrong byte is, from the start of the file.
        offset: u64,
    },
    /// A file does not have the form its name promises.
    #[error("{path}: {reason}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        reason: String,
    },
    /// A row has no text in the column that is read.
    #[error(
        "{path}, row {row}: column `{column}` {problem}. Every row needs a text there: \
         fill it in or drop the row"
    )]
    NoText {
        /// The file.
        path: PathBuf,
        /// The row, from 1.
        row: u64,
        /// The column that is read.
        column: String,
        /// What is there instead.
        problem: &'static str,
    },
    /// No tokenizer goes by this name here.
    #[error(
        "no tokenizer `{name}`: give `gpt2`, which is built in, a tokenizer.json, or a directory \
         that has one"
    )]
    NoTokenizer {
        /// What was asked for.
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
    /// The hub could not be reached or did not have what was asked for.
    #[error("dataset {name}: {reason}")]
    Hub {
        /// The dataset.
        name: String,
        /// What went wrong, and the way out.
        reason: String,
    },
    /// A number that must be positive, or within bounds, is not.
    #[error("{what} is {given}: {expected}")]
    OutOfRange {
        /// What the number is.
        what: &'static str,
        /// What was given.
        given: u64,
        /// What it has to be.
        expected: &'static str,
    },
    /// The text is too short.
    #[error(
        "{path} gives {tokens} tokens and not one block of {block_size}: give more text or a \
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
    /// Wraps what the system said of a file.
    pub(crate) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}
