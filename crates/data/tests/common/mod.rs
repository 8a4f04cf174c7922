//! Shared test helpers.
#![allow(dead_code, reason = "each test uses some of it")]

use fullshard_data::{Corpus, Error, Grouping, Part, Preparation, Source, Tokenizer};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// GPT-2's tokenizer, built once.
pub static GPT2: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::gpt2().unwrap());

/// A recorded sample.
pub fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// Writes a file into a directory.
pub fn file(directory: &Path, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, content).unwrap();
    path
}

/// All examples of the files.
pub fn examples(files: &[PathBuf], keep_linebreaks: bool) -> Result<Vec<String>, Error> {
    let mut examples = Vec::new();
    Source::open(files, keep_linebreaks)?.examples(&mut |text, _| {
        examples.push(text.to_owned());
        ControlFlow::Continue(())
    })?;
    Ok(examples)
}

/// A corpus of a source, with GPT-2's tokens.
pub fn corpus(
    source: &Source,
    part: Part,
    block_size: usize,
    grouping: Grouping,
    cache: &Path,
) -> Result<Corpus, Error> {
    let plan = Preparation { source, part, tokenizer: &GPT2, block_size, grouping };
    Corpus::prepare(&plan, cache, &mut |_| {})
}

/// All blocks of a corpus, each truncated to its length.
pub fn blocks(corpus: &Corpus) -> Vec<Vec<i32>> {
    let block = |number| {
        let mut tokens = vec![-1; corpus.block_size()];
        let length = corpus.read(number, &mut tokens);
        tokens.truncate(length);
        tokens
    };
    (0..corpus.blocks()).map(block).collect()
}
