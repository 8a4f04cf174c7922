//! GPT-2's tokenizer, from the tokens that `tiktoken-rs` carries.
//!
//! They come as byte strings in the order in which they were learnt, without saying which two
//! parts each was joined from. But that is what byte-pair encoding with all earlier tokens leaves
//! of it: two parts.

use crate::{Error, Result};
use std::collections::HashMap;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer};

/// The one special token: begin, end and unknown.
pub(super) const END_OF_TEXT: &str = "<|endoftext|>";
const END_OF_TEXT_ID: u32 = 50256;

pub(super) fn build() -> Result<Tokenizer> {
    let tokens = tokens()?;
    let merges = merges(&tokens)?;
    let letters = letters();
    let spell = |token: &[u8]| token.iter().map(|&byte| letters[byte as usize]).collect::<String>();
    let mut vocabulary: HashMap<String, u32> =
        (0..).zip(&tokens).map(|(id, token)| (spell(token), id)).collect();
    vocabulary.insert(END_OF_TEXT.into(), END_OF_TEXT_ID);
    let merges = merges.iter().map(|(left, right)| (spell(left), spell(right))).collect();
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

/// All tokens but the special one, as bytes; a token's place is its number.
fn tokens() -> Result<Vec<Vec<u8>>> {
    let ranks = tiktoken_rs::r50k_base().map_err(broken)?;
    (0..END_OF_TEXT_ID).map(|id| ranks.decode_bytes(&[id]).map_err(broken)).collect()
}

/// The two parts of every token that has more than one byte, in the order of the tokens.
fn merges(tokens: &[Vec<u8>]) -> Result<Vec<(&[u8], &[u8])>> {
    let ranks: HashMap<&[u8], usize> =
        tokens.iter().enumerate().map(|(rank, token)| (token.as_slice(), rank)).collect();
    let longer = tokens.iter().enumerate().filter(|(_, token)| token.len() > 1);
    longer
        .map(|(rank, token)| match parts(token, rank, &ranks).as_slice() {
            &[left, right] => Ok((left, right)),
            parts => Err(broken(format!("token {rank} has {} parts", parts.len()))),
        })
        .collect()
}

/// What byte-pair encoding with the tokens before `rank` makes of a token.
fn parts<'a>(token: &'a [u8], rank: usize, ranks: &HashMap<&[u8], usize>) -> Vec<&'a [u8]> {
    // Part i is what lies between the bounds i and i + 1.
    let mut bounds: Vec<usize> = (0..=token.len()).collect();
    loop {
        let joined = |i: usize| ranks.get(&token[bounds[i]..bounds[i + 2]]);
        let best = (0..bounds.len() - 2)
            .filter_map(|i| joined(i).map(|&earlier| (earlier, i)))
            .min()
            .filter(|&(earlier, _)| earlier < rank);
        match best {
            Some((_, i)) => bounds.remove(i + 1),
            None => return bounds.windows(2).map(|ends| &token[ends[0]..ends[1]]).collect(),
        };
    }
}

/// The letter that byte-level tokenizers write for each byte: itself where it can be seen, else
/// one of those from 256 on.
pub(super) fn letters() -> Vec<char> {
    let mut unseen = 256..;
    (0..=255u8)
        .map(|byte| match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
            _ => unseen.next().and_then(char::from_u32).unwrap_or_default(),
        })
        .collect()
}

fn broken(reason: impl std::fmt::Display) -> Error {
    Error::BadTokenizer { name: "gpt2".into(), reason: reason.to_string() }
}
