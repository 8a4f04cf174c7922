//! Synthetic readable text of known entropy, which is a lower bound of the loss.
//!
//! Words follow a second-order Markov chain with a simple grammar. In the long run no model can do
//! better than [`Demo::entropy`] nats per token.

mod chain;
mod grammar;

use crate::tokenizer::{Files, Tokenizer};
use crate::{Error, Result};
use chain::Chain;
use fullshard_core::cache::temporary_file;
use fullshard_core::random::Random;
use grammar::Words;
use sha2::{Digest, Sha256};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::pre_tokenizers::whitespace::Whitespace;

/// The token for words outside the vocabulary.
const UNKNOWN: &str = "<unk>";

/// Number of tokens in the digest: enough for every word to occur.
const DIGEST_LEN: u64 = 10_000;

/// The token that ends every sentence, also used as the end-of-sequence token.
const STOP: &str = ".";

/// A source of sentences, determined by its seed.
pub struct Demo {
    words: Words,
    chain: Chain,
    seed: u64,
}

/// The files of a demo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DemoFiles {
    /// Training text.
    pub train: PathBuf,
    /// Validation text, a tenth as long.
    pub validation: PathBuf,
    /// The tokenizer.
    pub tokenizer: PathBuf,
}

impl Demo {
    /// The source for a seed.
    pub fn new(seed: u64) -> Self {
        let words = Words::new();
        let chain = Chain::new(&words, seed);
        Self { words, chain, seed }
    }

    /// Nats per token given all previous tokens: no model can do better. Exact.
    pub fn entropy(&self) -> f64 {
        self.chain.entropy()
    }

    /// Nats per token given only the previous token: what a model without attention reaches.
    pub fn bigram_entropy(&self) -> f64 {
        self.chain.bigram_entropy()
    }

    /// Nats per token given only token frequencies.
    pub fn unigram_entropy(&self) -> f64 {
        self.chain.unigram_entropy()
    }

    /// The lowest loss on blocks of this length: the first prediction of a block sees one token.
    pub fn floor(&self, block_size: usize) -> f64 {
        let predictions = block_size.saturating_sub(1).max(1) as f64;
        (self.bigram_entropy() + (predictions - 1.0) * self.entropy()) / predictions
    }

    /// The tokenizer: one token per word, and one for unknown words.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        let broken = |error: tokenizers::Error| Error::BadTokenizer {
            name: "demo".into(),
            reason: error.to_string(),
        };
        let vocabulary = self.words.iter().chain([UNKNOWN]).map(String::from).zip(0..).collect();
        let model = WordLevel::builder()
            .vocab(vocabulary)
            .unk_token(UNKNOWN.into())
            .build()
            .map_err(broken)?;
        let mut tokenizer = tokenizers::Tokenizer::new(model);
        tokenizer.with_pre_tokenizer(Some(Whitespace));
        Tokenizer::new("demo".into(), tokenizer, Files::word_level(STOP, UNKNOWN))
    }

    /// Writes at least `tokens` tokens, one sentence per line. Each `part` is a different text.
    pub fn write_text(&self, out: &mut impl Write, tokens: u64, part: u64) -> std::io::Result<()> {
        let mut random = Random::new(self.seed, 2 + part);
        let mut words = (Words::STOP, Words::STOP);
        let mut written = 0;
        while written < tokens || words.1 != Words::STOP {
            let word = self.chain.draw(words.0, words.1, &mut random);
            let space = if word == Words::STOP || words.1 == Words::STOP { "" } else { " " };
            write!(out, "{space}{}", self.words.text(word))?;
            if word == Words::STOP {
                writeln!(out)?;
            }
            words = (words.1, word);
            written += 1;
        }
        Ok(())
    }

    /// A short name of the source: a digest of the start of its first text. It differs for other
    /// seeds, and for the same seed once the generator changes.
    pub fn digest(&self) -> Result<String> {
        let mut text = Vec::new();
        self.write_text(&mut text, DIGEST_LEN, 0).map_err(Error::io("write", Path::new("demo")))?;
        let digest = Sha256::digest(&text);
        Ok(digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect())
    }

    /// Writes `train.txt` with `tokens` tokens, `validation.txt` with a tenth, and the tokenizer's
    /// files.
    pub fn write(directory: &Path, tokens: u64, seed: u64) -> Result<DemoFiles> {
        let demo = Self::new(seed);
        std::fs::create_dir_all(directory).map_err(Error::io("create", directory))?;
        let text = |name: &str, tokens: u64, part: u64| {
            let path = directory.join(name);
            demo.write_file(&path, tokens, part).map_err(Error::io("write", &path))?;
            Ok(path)
        };
        let train = text("train.txt", tokens, 0)?;
        let validation = text("validation.txt", tokens.div_ceil(10), 1)?;
        demo.tokenizer()?.save(directory)?;
        Ok(DemoFiles { train, validation, tokenizer: directory.join("tokenizer.json") })
    }

    fn write_file(&self, path: &Path, tokens: u64, part: u64) -> std::io::Result<()> {
        let directory = path.parent().unwrap_or(Path::new("."));
        let mut file = BufWriter::new(temporary_file(directory)?);
        self.write_text(&mut file, tokens, part)?;
        let file = file.into_inner().map_err(std::io::IntoInnerError::into_error)?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    }
}
