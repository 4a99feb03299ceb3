//! Printing, the way OpenZFS prints.
//!
//! Functions here turn typed facts into text and know neither the daemon nor the terminal, so the
//! output of real OpenZFS commands can be held against them in tests.
//!
//! What it keeps true: columns, spaces and words are OpenZFS's, because scripts cut them apart;
//! numbers are printed by the one place that knows how (`zilla_control::props::nicenum`).

pub mod color;
pub mod ddt;
pub mod interval;
pub mod json;
pub mod poolprop;
pub mod proplist;
pub mod time;
pub mod vdev;
mod zone;

use std::borrow::Cow;

/// A text as one field of one line, whoever it is from: what would end the line or the field is
/// shown as its bytes, as `zfs diff` shows them (`\0012`). Else a tag, a comment or a property
/// could have lines that look like those of other datasets. In JSON it is as it is.
pub fn one_line(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if c.is_control() {
            c.encode_utf8(&mut [0; 4]).bytes().for_each(|b| out.push_str(&format!("\\{b:04o}")));
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// The first line of `version`.
pub fn version() -> String {
    format!("zilla-{}", env!("CARGO_PKG_VERSION"))
}

/// `text` padded on the right to `width` characters.
pub fn left(text: &str, width: usize) -> String {
    format!("{text:<width$}")
}

/// `text` padded on the left to `width` characters.
pub fn right(text: &str, width: usize) -> String {
    format!("{text:>width$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_stays_in_its_place() {
        for (text, shown) in [
            ("", ""),
            ("a b \\ ü", "a b \\ ü"),
            ("x\ntank/y\tz", "x\\0012tank/y\\0011z"),
            ("\r\x1b[2J\x7f", "\\0015\\0033[2J\\0177"),
            ("\u{85}", "\\0302\\0205"),
        ] {
            assert_eq!(one_line(text), shown, "{text:?}");
        }
    }
}
