//! Lua as channel programs are written in it: numbers are whole, of 64 bits, and `/` divides them
//! as such.
//!
//! OpenZFS's interpreter is a Lua 5.2 whose only number is `int64_t`. Ours is 5.3, which has such
//! numbers beside others; a program is turned into one that uses no others: `/` becomes `//` (and
//! `__div`, by which a table says what that does, `__idiv`), a number too large wraps around, and
//! one with a fraction is malformed. Other strings and comments stay as they are, and so do the
//! lines, which errors name.

/// The program for our interpreter, or what is wrong with it.
pub fn translate(script: &str) -> Result<String, String> {
    let bytes = script.as_bytes();
    let mut out = Vec::with_capacity(bytes.len() + 64);
    let (mut at, mut line) = (0, 1);
    // A `#` line is a shell's.
    if bytes.first() == Some(&b'#') {
        at = script.find('\n').unwrap_or(bytes.len());
    }
    while let Some(&c) = bytes.get(at) {
        let length = match c {
            b'-' if bytes.get(at + 1) == Some(&b'-') => {
                2 + long_bracket(&bytes[at + 2..]).unwrap_or_else(|| until_line_end(&bytes[at + 2..]))
            }
            b'[' => long_bracket(&bytes[at..]).unwrap_or(1),
            b'"' | b'\'' => quoted(&bytes[at..]),
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                return Err(syntax(line, "unexpected symbol near '/'"));
            }
            b'/' => {
                out.extend_from_slice(b"//");
                at += 1;
                continue;
            }
            b'0'..=b'9' => {
                let length = number_length(&bytes[at..]);
                out.extend_from_slice(number(&script[at..at + length], line)?.as_bytes());
                at += length;
                continue;
            }
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => word(&bytes[at..]),
            _ => 1,
        };
        let end = (at + length).min(bytes.len());
        // What a table says of its division, by its key or a string of it.
        let token: &[u8] = match &bytes[at..end] {
            b"__div" => b"__idiv",
            b"\"__div\"" => b"\"__idiv\"",
            b"'__div'" => b"'__idiv'",
            token => token,
        };
        line += token.iter().filter(|b| **b == b'\n').count();
        out.extend_from_slice(token);
        at = end;
    }
    // Only whole characters were moved.
    String::from_utf8(out).map_err(|_| "the program is not UTF-8".to_owned())
}

fn syntax(line: usize, what: &str) -> String {
    format!("{}:{line}: {what}", super::CHUNK)
}

fn until_line_end(bytes: &[u8]) -> usize {
    bytes.iter().position(|b| *b == b'\n').unwrap_or(bytes.len())
}

fn word(bytes: &[u8]) -> usize {
    bytes.iter().position(|b| !(b.is_ascii_alphanumeric() || *b == b'_')).unwrap_or(bytes.len())
}

/// The length of `[[...]]`, `[==[...]==]`, if one begins here.
fn long_bracket(bytes: &[u8]) -> Option<usize> {
    let level = bytes.iter().skip(1).take_while(|b| **b == b'=').count();
    if bytes.first() != Some(&b'[') || bytes.get(1 + level) != Some(&b'[') {
        return None;
    }
    let mut close = vec![b'='; level + 2];
    (close[0], close[level + 1]) = (b']', b']');
    let body = level + 2;
    let end = bytes[body..].windows(close.len()).position(|w| w == close);
    Some(end.map_or(bytes.len(), |end| body + end + close.len()))
}

fn quoted(bytes: &[u8]) -> usize {
    let mut at = 1;
    while let Some(&c) = bytes.get(at) {
        at += match c {
            b'\\' => 2,
            c if c == bytes[0] => return at + 1,
            // It ends nowhere: the interpreter says so.
            b'\n' => return at,
            _ => 1,
        };
    }
    bytes.len()
}

/// Letters, digits and points that belong to a number; `..` joins and does not.
fn number_length(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(&c) = bytes.get(at) {
        let joins = c == b'.' && bytes.get(at + 1) == Some(&b'.');
        if joins || !(c.is_ascii_alphanumeric() || c == b'.' || c == b'_') {
            break;
        }
        at += 1;
    }
    at
}

fn number(text: &str, line: usize) -> Result<String, String> {
    let malformed = || syntax(line, &format!("malformed number near '{text}'"));
    if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        let whole = !hex.is_empty() && hex.bytes().all(|c| c.is_ascii_hexdigit());
        return if whole { Ok(text.to_owned()) } else { Err(malformed()) };
    }
    if !text.bytes().all(|c| c.is_ascii_digit()) {
        return Err(malformed());
    }
    let wrapped = text.bytes().fold(0u64, |n, c| n.wrapping_mul(10).wrapping_add(u64::from(c - b'0')));
    // Of the interpreter's numbers those in base 16 wrap around.
    Ok(if i64::try_from(wrapped).is_ok() { wrapped.to_string() } else { format!("0x{wrapped:x}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_numbers_and_divisions_change() {
        for (script, translated) in [
            ("return 7/2", "return 7//2"),
            ("-- 1.5 / 2\nx = 'a/b' .. \"1.5/\\\"2\"", "-- 1.5 / 2\nx = 'a/b' .. \"1.5/\\\"2\""),
            ("x = [==[ 1.5/2 ]] ]==] / 3", "x = [==[ 1.5/2 ]] ]==] // 3"),
            ("--[[ 1/2\n1.5 ]] y = a[1]/b", "--[[ 1/2\n1.5 ]] y = a[1]//b"),
            ("return 18446744073709551615 + 18446744073709551616", "return 0xffffffffffffffff + 0"),
            ("v1 = x2/0x10", "v1 = x2//0x10"),
            ("s = 1 ..'a'", "s = 1 ..'a'"),
            ("t.__div = f; u['__div'] = \"__div\"", "t.__idiv = f; u['__idiv'] = \"__idiv\""),
            ("x__div, s = y, 'a __div'", "x__div, s = y, 'a __div'"),
        ] {
            assert_eq!(translate(script).as_deref(), Ok(translated));
        }
    }

    #[test]
    fn fractions_are_malformed_and_their_line_is_told() {
        for script in ["return 1.0", "return -1.5", "return 1e3", "return 0x1p4", "return 3x"] {
            assert!(translate(script).unwrap_err().contains("malformed number"), "{script}");
        }
        assert!(translate("x = 1\n\nreturn 1.5").unwrap_err().starts_with("[string \"channel program\"]:3:"));
    }

    proptest! {
        #[test]
        fn survives_anything(script in "[-\\[\\]='\"\\\\/0-9a-f.x\n ü]{0,40}") {
            if let Ok(out) = translate(&script) {
                prop_assert_eq!(out.matches('\n').count(), script.matches('\n').count());
            }
        }
    }
}
