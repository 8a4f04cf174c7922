//! The fast path for tokenizers like GPT-2's.
//!
//! The `tokenizers` crate tracks the offset of every character, which takes most of the time and
//! tens of bytes of memory per byte of text, and is not needed here. For plain byte-level BPE it is
//! enough to split text into words and cache their tokens; those of a new word come from the
//! crate's model. A test compares the two paths.

use super::gpt2::bytes_to_unicode;
use ahash::AHashMap;
use regex::Regex;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use tokenizers::models::bpe::BPE;
use tokenizers::{Model, ModelWrapper, PostProcessorWrapper, PreTokenizerWrapper, Tokenizer};

/// GPT-2's word pattern. There the last of several spaces also belongs to the word that follows;
/// `Words::next` handles that, since `regex` has no lookahead.
const WORDS: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";

/// Words cached per thread, and their maximum length in bytes.
const CACHED_WORDS: usize = 100_000;
const MAX_CACHED_BYTES: usize = 64;

/// The tokens of cached words.
type Cache = AHashMap<Box<str>, Box<[u32]>>;

/// Splits text into words and encodes them.
pub(super) struct Words {
    model: BPE,
    pattern: Regex,
    /// Matches added tokens in the text.
    added: Option<Regex>,
    added_ids: AHashMap<String, u32>,
    unicode: Vec<char>,
    /// One for each idle thread.
    caches: Mutex<Vec<Cache>>,
}

impl Words {
    /// The fast path, if the tokenizer supports it: byte-level BPE of GPT-2's words, without
    /// normalization and post-processing.
    pub(super) fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let ModelWrapper::BPE(model) = tokenizer.get_model() else { return None };
        let plain_model = model.dropout.is_none()
            && model.continuing_subword_prefix.is_none()
            && model.end_of_word_suffix.is_none();
        let plain_words = match tokenizer.get_pre_tokenizer() {
            Some(PreTokenizerWrapper::ByteLevel(words)) => {
                words.use_regex && !words.add_prefix_space
            }
            _ => false,
        };
        let plain_end = match tokenizer.get_post_processor() {
            None | Some(PostProcessorWrapper::ByteLevel(_)) => true,
            Some(_) => false,
        };
        let added = tokenizer.get_added_tokens_decoder();
        let plain_added = added.values().all(|token| {
            !token.lstrip && !token.rstrip && !token.single_word && !token.content.contains(' ')
        });
        let plain = plain_model && plain_words && plain_end && plain_added;
        if !plain || tokenizer.get_normalizer().is_some() {
            return None;
        }
        let added_ids: AHashMap<String, u32> =
            added.into_iter().map(|(id, token)| (token.content, id)).collect();
        Some(Self {
            model: model.clone(),
            pattern: Regex::new(WORDS).ok()?,
            added: any_of(added_ids.keys())?,
            added_ids,
            unicode: bytes_to_unicode(),
            caches: Mutex::default(),
        })
    }

    /// The tokens of each text.
    pub(super) fn encode(&self, texts: &[&str]) -> tokenizers::Result<Vec<Vec<u32>>> {
        let mut cache = self.caches().pop().unwrap_or_default();
        let tokens = texts.iter().map(|text| self.encode_one(text, &mut cache)).collect();
        self.caches().push(cache);
        tokens
    }

    fn caches(&self) -> std::sync::MutexGuard<'_, Vec<Cache>> {
        self.caches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn encode_one(&self, text: &str, cache: &mut Cache) -> tokenizers::Result<Vec<u32>> {
        let mut tokens = Vec::with_capacity(text.len() / 3);
        let mut start = 0;
        for found in self.added.iter().flat_map(|added| added.find_iter(text)) {
            self.encode_words(&text[start..found.start()], cache, &mut tokens)?;
            tokens.extend(self.added_ids.get(found.as_str()));
            start = found.end();
        }
        self.encode_words(&text[start..], cache, &mut tokens)?;
        Ok(tokens)
    }

    fn encode_words(
        &self,
        text: &str,
        cache: &mut Cache,
        tokens: &mut Vec<u32>,
    ) -> tokenizers::Result<()> {
        let mut start = 0;
        while let Some(found) = self.next(text, start) {
            start = found.end;
            let word = &text[found];
            if let Some(known) = cache.get(word) {
                tokens.extend_from_slice(known);
                continue;
            }
            let spelled: String = word.bytes().map(|byte| self.unicode[byte as usize]).collect();
            let new: Box<[u32]> =
                self.model.tokenize(&spelled)?.iter().map(|token| token.id).collect();
            tokens.extend_from_slice(&new);
            if word.len() <= MAX_CACHED_BYTES {
                if cache.len() == CACHED_WORDS {
                    cache.clear();
                }
                cache.insert(word.into(), new);
            }
        }
        Ok(())
    }

    /// The next word. Of several spaces, the last is left to the word that follows.
    fn next(&self, text: &str, start: usize) -> Option<Range<usize>> {
        let found = self.pattern.find_at(text, start)?;
        let last = found.as_str().chars().next_back()?;
        let leaves_last =
            last.is_whitespace() && found.end() < text.len() && found.len() > last.len_utf8();
        Some(found.start()..if leaves_last { found.end() - last.len_utf8() } else { found.end() })
    }
}

/// Matches any of these, longest first; the inner `None` if there are none.
fn any_of<'a>(tokens: impl Iterator<Item = &'a String>) -> Option<Option<Regex>> {
    let mut tokens: Vec<&String> = tokens.collect();
    if tokens.is_empty() {
        return Some(None);
    }
    tokens.sort_by_key(|token| std::cmp::Reverse(token.len()));
    let escaped: Vec<String> = tokens.into_iter().map(|token| regex::escape(token)).collect();
    Regex::new(&escaped.join("|")).ok().map(Some)
}
