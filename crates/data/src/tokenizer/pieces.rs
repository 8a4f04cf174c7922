//! Splits long texts where that does not change their tokens, to use all cores.
//!
//! GPT-2's word pattern starts a new word at a space between two visible characters, whatever the
//! context. So a text can be split before such a space.

/// Texts longer than this are split, in bytes.
const MAX_PIECE: usize = 16 << 10;

/// The text in pieces of about `MAX_PIECE` bytes, or more if there is no split point.
pub(super) fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let (piece, remaining) = match split_point(text) {
            Some(end) => (&text[..end], Some(&text[end..])),
            None => (text, None),
        };
        rest = remaining;
        Some(piece)
    })
}

/// The first space at or after `MAX_PIECE` between two visible ASCII characters.
fn split_point(text: &str) -> Option<usize> {
    if text.len() <= MAX_PIECE {
        return None;
    }
    let bytes = text.as_bytes();
    let visible = |byte: u8| byte.is_ascii_graphic();
    (MAX_PIECE..bytes.len() - 1)
        .find(|&at| bytes[at] == b' ' && visible(bytes[at - 1]) && visible(bytes[at + 1]))
}
