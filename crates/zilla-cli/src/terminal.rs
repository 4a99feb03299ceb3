//! Text for a terminal.
//!
//! Names, comments, properties, lines of histories: what is printed may be anybody's who made a
//! pool or was given a dataset, and a terminal takes some characters for commands. So they are
//! shown as `?`, but for ends of lines, tabs, and the sequences that only change colours, which are
//! our own as well. What goes to a file or a pipe stays as it is.

use std::borrow::Cow;
use std::io::IsTerminal;

fn is_command(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\t')
}

/// The length of a sequence at the beginning of a text that sets colours (SGR in ECMA-48).
fn colour(text: &str) -> Option<usize> {
    let parameters = text.strip_prefix("\x1b[")?;
    let end = parameters.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    parameters.get(end..)?.starts_with('m').then_some("\x1b[".len() + end + 1)
}

/// A text without commands. One that begins with a return takes the place of the line before, as a
/// command's progress does.
pub fn tame(text: &str) -> Cow<'_, str> {
    let (back, mut rest) = match text.strip_prefix('\r') {
        Some(rest) => ("\r", rest),
        None => ("", text),
    };
    if !rest.contains(is_command) {
        return Cow::Borrowed(text);
    }
    let mut out = back.to_owned();
    while let Some(at) = rest.find(is_command) {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let length = match colour(from) {
            Some(length) => {
                out.push_str(from.get(..length).unwrap_or_default());
                length
            }
            None => {
                out.push('?');
                from.chars().next().map_or(1, char::len_utf8)
            }
        };
        rest = from.get(length..).unwrap_or_default();
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// A text for standard output, whatever that is.
pub fn for_output(text: &str) -> Cow<'_, str> {
    if std::io::stdout().is_terminal() { tame(text) } else { Cow::Borrowed(text) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_terminal_is_commanded_by_nobody() {
        for (text, shown) in [
            ("tank\tü\n", "tank\tü\n"),
            ("\x1b[1mNAME\x1b[0m", "\x1b[1mNAME\x1b[0m"),
            ("\x1b[0;31mFAULTED\x1b[0m\x07", "\x1b[0;31mFAULTED\x1b[0m?"),
            ("a\x1b]0;title\x07b", "a?]0;title?b"),
            ("\x1b[2J\x1b[H", "?[2J?[H"),
            ("\x1b", "?"),
            ("\x1b[", "?["),
            ("\x1b[1", "?[1"),
            ("\u{9b}2J", "?2J"),
            ("\r 5 completed", "\r 5 completed"),
            ("\rx\ry", "\rx?y"),
        ] {
            assert_eq!(tame(text), shown, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_no_command_stays(text in "[a-z\u{1b}\u{7}\u{85}\\[;0-9m\n é]{0,40}") {
            let shown = tame(&text);
            prop_assert_eq!(shown.chars().count(), text.chars().count());
            let other = |c: &char| !is_command(*c) && *c != '?';
            prop_assert!(text.chars().filter(other).eq(shown.chars().filter(other)));
            prop_assert_eq!(tame(&shown), shown.clone());
        }
    }
}
