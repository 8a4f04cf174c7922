//! Tokenizers: GPT-2's, which is built in, or any `tokenizer.json`.

mod files;
mod gpt2;
mod pieces;
mod words;

use crate::{Error, Result};
pub(crate) use files::Files;
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use std::path::Path;
use words::Words;

/// Pieces of text per task.
const TASK_PIECES: usize = 32;

/// A tokenizer and its files.
pub struct Tokenizer {
    name: String,
    inner: tokenizers::Tokenizer,
    files: Files,
    vocabulary: usize,
    /// The fast path, for tokenizers that support it.
    words: Option<Words>,
    digest: [u8; 32],
}

impl Tokenizer {
    /// GPT-2's tokenizer. It is built in: nothing is read or downloaded.
    pub fn gpt2() -> Result<Self> {
        Self::new("gpt2".into(), gpt2::build()?, Files::gpt2())
    }

    /// `gpt2`, a `tokenizer.json`, or a directory that has one.
    pub fn open(name_or_path: &str) -> Result<Self> {
        let path = Path::new(name_or_path);
        let file = if path.is_dir() { path.join("tokenizer.json") } else { path.into() };
        if !file.is_file() {
            return match name_or_path {
                "gpt2" => Self::gpt2(),
                _ => Err(Error::NoTokenizer { name: name_or_path.into() }),
            };
        }
        let text = std::fs::read_to_string(&file).map_err(Error::io("read", &file))?;
        let bad = |error: tokenizers::Error| Error::BadTokenizer {
            name: file.display().to_string(),
            reason: format!("not a tokenizer.json: {error}"),
        };
        let inner = text.parse().map_err(bad)?;
        let files = Files::read(file.parent().unwrap_or(Path::new(".")))?;
        Self::new(name_or_path.into(), inner, files)
    }

    pub(crate) fn new(name: String, inner: tokenizers::Tokenizer, files: Files) -> Result<Self> {
        let mut inner = inner;
        // `run_clm` neither truncates nor pads examples, whatever the file specifies.
        inner.with_padding(None);
        let bad = |error: tokenizers::Error| Error::BadTokenizer {
            name: name.clone(),
            reason: error.to_string(),
        };
        inner.with_truncation(None).map_err(bad)?;
        let text = inner.to_string(false).map_err(bad)?;
        let vocabulary = inner.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1);
        let words = Words::of(&inner);
        let digest = Sha256::digest(text.as_bytes()).into();
        Ok(Self { name, inner, files, vocabulary, words, digest })
    }

    /// The name or path it was opened with.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// One more than the largest token ID.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// The maximum sequence length of its model, if known.
    pub fn max_length(&self) -> Option<usize> {
        self.files.max_length()
    }

    /// The ID of a token.
    pub fn token(&self, text: &str) -> Option<u32> {
        self.inner.token_to_id(text)
    }

    /// The tokens of each text, computed on all cores.
    ///
    /// Special tokens are added if the tokenizer does so by default, as when Hugging Face's is
    /// called.
    pub fn encode_batch<T: AsRef<str>>(&self, texts: &[T]) -> Result<Vec<Vec<u32>>> {
        let failed = |error: tokenizers::Error| Error::BadTokenizer {
            name: self.name.clone(),
            reason: error.to_string(),
        };
        let texts = texts.iter().map(AsRef::as_ref);
        let Some(words) = &self.words else {
            let encodings = self.inner.encode_batch_fast(texts.collect(), true).map_err(failed)?;
            return Ok(encodings.iter().map(|encoding| encoding.get_ids().to_vec()).collect());
        };
        let mut tokens = vec![Vec::new(); texts.len()];
        let (owners, pieces): (Vec<usize>, Vec<&str>) = texts
            .enumerate()
            .flat_map(|(owner, text)| pieces::split(text).map(move |piece| (owner, piece)))
            .unzip();
        let encoded: Vec<Vec<Vec<u32>>> = pieces
            .par_chunks(TASK_PIECES)
            .map(|pieces| words.encode(pieces))
            .collect::<Result<_, _>>()
            .map_err(failed)?;
        for (owner, piece) in owners.into_iter().zip(encoded.into_iter().flatten()) {
            match tokens[owner].is_empty() {
                true => tokens[owner] = piece,
                false => tokens[owner].extend_from_slice(&piece),
            }
        }
        Ok(tokens)
    }

    /// Decodes tokens, including special ones.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        self.inner.decode(tokens, false).map_err(|error| Error::BadTokenizer {
            name: self.name.clone(),
            reason: error.to_string(),
        })
    }

    /// Writes the files that `transformers` loads it from into an existing directory.
    pub fn save(&self, directory: &Path) -> Result<()> {
        self.files.write(directory, &self.inner, &self.name)
    }

    /// Differs between tokenizers that may return different tokens.
    pub(crate) fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
}
