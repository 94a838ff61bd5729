//! Opaque texts on their way into and out of PostgreSQL, which cannot store U+0000.
//!
//! Names never have one. Documents and labels are arbitrary text: one that has a NUL must neither be refused nor spoil
//! the batch that it is in.

use std::borrow::Cow;

/// Stands before what it replaces; itself doubled by a digit. A private-use character that is hardly ever sent.
const ESCAPE: char = '\u{E000}';

/// A text as it can be stored.
pub(crate) fn stored(text: &str) -> Cow<'_, str> {
    if !text.contains(['\0', ESCAPE]) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '\0' => out.extend([ESCAPE, '0']),
            ESCAPE => out.extend([ESCAPE, '1']),
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// The text that was stored.
pub(crate) fn restored(text: &str) -> Cow<'_, str> {
    if !text.contains(ESCAPE) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, c == ESCAPE) {
            (_, true) => out.push(if chars.next() == Some('0') { '\0' } else { ESCAPE }),
            (c, false) => out.push(c),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_comes_back() {
        for text in ["", "plain", "a\0b", "\0", "\u{E000}", "\u{E000}0", "\0\u{E000}1\0", "söhne 🚦"] {
            assert!(!stored(text).contains('\0'));
            assert_eq!(restored(&stored(text)), text);
        }
    }
}
