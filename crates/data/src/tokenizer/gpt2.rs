//! GPT-2's tokenizer, from its merges, which `make_gpt2_merges.py` makes.

use crate::{Error, Result};
use std::collections::HashMap;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer};

/// The only special token: beginning of text, end of text and unknown.
pub(super) const END_OF_TEXT: &str = "<|endoftext|>";
const END_OF_TEXT_ID: u32 = 50256;

/// The two parts of every token of more than one byte, in the order of the tokens.
const MERGES: &str = include_str!("gpt2_merges.txt");

pub(super) fn build() -> Result<Tokenizer> {
    let merges = MERGES.lines().map(|line| line.split_once(' ').ok_or_else(|| broken(line)));
    let merges = merges.collect::<Result<Vec<(&str, &str)>>>()?;
    let tokens = bytes_in_order().into_iter().map(String::from);
    let tokens = tokens.chain(merges.iter().map(|(left, right)| format!("{left}{right}")));
    let mut vocabulary: HashMap<String, u32> = tokens.zip(0..).collect();
    vocabulary.insert(END_OF_TEXT.into(), END_OF_TEXT_ID);
    let merges = merges.iter().map(|&(left, right)| (left.to_owned(), right.to_owned())).collect();
    let model = BPE::builder()
        .vocab_and_merges(
            vocabulary.into_iter().collect::<tokenizers::models::bpe::Vocab>(),
            merges,
        )
        .build()
        .map_err(broken)?;
    let mut tokenizer = Tokenizer::new(model);
    let bytes = ByteLevel::default().add_prefix_space(false);
    tokenizer
        .with_pre_tokenizer(Some(bytes))
        .with_post_processor(Some(bytes.trim_offsets(false)))
        .with_decoder(Some(bytes));
    let end = AddedToken::from(END_OF_TEXT, true).normalized(false);
    tokenizer.add_special_tokens([end]).map_err(broken)?;
    Ok(tokenizer)
}

/// The characters of single bytes in the order of their tokens: printable ones first.
fn bytes_in_order() -> Vec<char> {
    let (printable, others): (Vec<char>, Vec<char>) =
        bytes_to_unicode().into_iter().partition(|&character| u32::from(character) < 256);
    [printable, others].concat()
}

/// The character that byte-level tokenizers use for each byte: itself if printable, else one from
/// 256 on.
pub(super) fn bytes_to_unicode() -> Vec<char> {
    let mut unprintable = 256..;
    (0..=255u8)
        .map(|byte| match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
            _ => unprintable.next().and_then(char::from_u32).unwrap_or_default(),
        })
        .collect()
}

fn broken(reason: impl std::fmt::Display) -> Error {
    Error::BadTokenizer { name: "gpt2".into(), reason: reason.to_string() }
}
