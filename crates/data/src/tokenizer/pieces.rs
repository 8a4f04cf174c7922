//! Cutting long texts where that does not change their tokens, so that all cores get a part.
//!
//! GPT-2's rule for words starts a new one at a space between two visible characters, whatever is
//! around them. So a text can be cut before such a space.

/// Texts longer than this are cut, in bytes.
const LONGEST: usize = 16 << 10;

/// The text in pieces of about `LONGEST` bytes, or more where there is no place to cut.
pub(super) fn cut(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let (piece, remaining) = match cut_place(text) {
            Some(end) => (&text[..end], Some(&text[end..])),
            None => (text, None),
        };
        rest = remaining;
        Some(piece)
    })
}

/// The first place at or after `LONGEST` with a visible ASCII character, a space and another
/// visible ASCII character around it.
fn cut_place(text: &str) -> Option<usize> {
    if text.len() <= LONGEST {
        return None;
    }
    let bytes = text.as_bytes();
    let visible = |byte: u8| byte.is_ascii_graphic();
    (LONGEST..bytes.len() - 1)
        .find(|&at| bytes[at] == b' ' && visible(bytes[at - 1]) && visible(bytes[at + 1]))
}
