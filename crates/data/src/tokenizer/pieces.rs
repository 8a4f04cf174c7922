//! Cutting long texts where that does not change their tokens.
//!
//! The `tokenizers` crate keeps tens of bytes for each byte of a text while it works on it, and
//! works on one text with one core. GPT-2's rule for words never joins what lies on the two sides
//! of a lone space with the space to its right, so a long text can be cut before such a space:
//! memory stays small and all cores get something to do.

use tokenizers::{PostProcessorWrapper, PreTokenizerWrapper, Tokenizer};

/// Texts longer than this are cut, in bytes.
pub(super) const LONGEST: usize = 16 << 10;

/// Whether a text may be cut before a lone space: GPT-2's words, nothing rewritten before them,
/// nothing added after, and no added token with a space in it.
pub(super) fn cuts_at_spaces(tokenizer: &Tokenizer) -> bool {
    let words = match tokenizer.get_pre_tokenizer() {
        Some(PreTokenizerWrapper::ByteLevel(words)) => words.use_regex && !words.add_prefix_space,
        _ => false,
    };
    let plain_end = match tokenizer.get_post_processor() {
        None | Some(PostProcessorWrapper::ByteLevel(_)) => true,
        Some(_) => false,
    };
    let added = tokenizer.get_added_tokens_decoder();
    let plain_tokens = added.values().all(|token| {
        !token.lstrip && !token.rstrip && !token.single_word && !token.content.contains(' ')
    });
    words && plain_end && plain_tokens && tokenizer.get_normalizer().is_none()
}

/// The text in pieces of about `longest` bytes, or more where there is no place to cut.
pub(super) fn cut(text: &str, longest: usize) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let (piece, remaining) = match cut_after(text, longest) {
            Some(end) => (&text[..end], Some(&text[end..])),
            None => (text, None),
        };
        rest = remaining;
        Some(piece)
    })
}

/// The first place at or after `longest` with a visible ASCII character, a space and another
/// visible ASCII character around it.
fn cut_after(text: &str, longest: usize) -> Option<usize> {
    if text.len() <= longest {
        return None;
    }
    let bytes = text.as_bytes();
    let visible = |byte: u8| byte.is_ascii_graphic();
    (longest.max(1)..bytes.len() - 1)
        .find(|&at| bytes[at] == b' ' && visible(bytes[at - 1]) && visible(bytes[at + 1]))
}
