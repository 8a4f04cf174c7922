//! The short way to the tokens of GPT-2's kind of tokenizer.
//!
//! The `tokenizers` crate keeps track of where every letter came from, which costs most of the
//! time and tens of bytes of memory for each byte of text, and nobody here asks for it. For plain
//! byte-level pair encoding it is enough to find the words and to remember the tokens of those
//! seen before; a new word's come from the crate's own model. A test holds the two ways against
//! each other.

use super::gpt2::letters;
use ahash::AHashMap;
use regex::Regex;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use tokenizers::models::bpe::BPE;
use tokenizers::{Model, ModelWrapper, PostProcessorWrapper, PreTokenizerWrapper, Tokenizer};

/// GPT-2's rule for words. It also says that the last of several spaces belongs to the word that
/// follows; `Words::next` sees to that, since `regex` does not look ahead.
const WORDS: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";

/// Words remembered by each thread, and the longest of them in bytes.
const REMEMBERED: usize = 100_000;
const LONGEST_REMEMBERED: usize = 64;

/// The tokens of words seen before.
type Memory = AHashMap<Box<str>, Box<[u32]>>;

/// What finds words and their tokens.
pub(super) struct Words {
    model: BPE,
    pattern: Regex,
    /// Tokens that are written out in the text.
    added: Option<Regex>,
    added_ids: AHashMap<String, u32>,
    letters: Vec<char>,
    /// One for each thread that is not at work.
    memories: Mutex<Vec<Memory>>,
}

impl Words {
    /// The short way, if the tokenizer is of the kind: pair encoding of GPT-2's words as bytes,
    /// nothing rewritten before and nothing added after.
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
            letters: letters(),
            memories: Mutex::default(),
        })
    }

    /// The tokens of each text.
    pub(super) fn encode(&self, texts: &[&str]) -> tokenizers::Result<Vec<Vec<u32>>> {
        let mut memory = self.memories().pop().unwrap_or_default();
        let tokens = texts.iter().map(|text| self.encode_one(text, &mut memory)).collect();
        self.memories().push(memory);
        tokens
    }

    fn memories(&self) -> std::sync::MutexGuard<'_, Vec<Memory>> {
        self.memories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn encode_one(&self, text: &str, memory: &mut Memory) -> tokenizers::Result<Vec<u32>> {
        let mut tokens = Vec::with_capacity(text.len() / 3);
        let mut start = 0;
        for found in self.added.iter().flat_map(|added| added.find_iter(text)) {
            self.encode_words(&text[start..found.start()], memory, &mut tokens)?;
            tokens.extend(self.added_ids.get(found.as_str()));
            start = found.end();
        }
        self.encode_words(&text[start..], memory, &mut tokens)?;
        Ok(tokens)
    }

    fn encode_words(
        &self,
        text: &str,
        memory: &mut Memory,
        tokens: &mut Vec<u32>,
    ) -> tokenizers::Result<()> {
        let mut start = 0;
        while let Some(found) = self.next(text, start) {
            start = found.end;
            let word = &text[found];
            if let Some(known) = memory.get(word) {
                tokens.extend_from_slice(known);
                continue;
            }
            let spelled: String = word.bytes().map(|byte| self.letters[byte as usize]).collect();
            let new: Box<[u32]> =
                self.model.tokenize(&spelled)?.iter().map(|token| token.id).collect();
            tokens.extend_from_slice(&new);
            if word.len() <= LONGEST_REMEMBERED {
                if memory.len() == REMEMBERED {
                    memory.clear();
                }
                memory.insert(word.into(), new);
            }
        }
        Ok(())
    }

    /// The next word: spaces before something else leave it their last.
    fn next(&self, text: &str, start: usize) -> Option<Range<usize>> {
        let found = self.pattern.find_at(text, start)?;
        let last = found.as_str().chars().next_back()?;
        let is_left =
            last.is_whitespace() && found.end() < text.len() && found.len() > last.len_utf8();
        Some(found.start()..if is_left { found.end() - last.len_utf8() } else { found.end() })
    }
}

/// Finds any of these, the longest first; the inner `None` finds nothing, as there is nothing.
fn any_of<'a>(tokens: impl Iterator<Item = &'a String>) -> Option<Option<Regex>> {
    let mut tokens: Vec<&String> = tokens.collect();
    if tokens.is_empty() {
        return Some(None);
    }
    tokens.sort_by_key(|token| std::cmp::Reverse(token.len()));
    let escaped: Vec<String> = tokens.into_iter().map(|token| regex::escape(token)).collect();
    Regex::new(&escaped.join("|")).ok().map(Some)
}
