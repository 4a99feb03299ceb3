//! Lua's patterns, matched step by step.
//!
//! The interpreter's own matcher is one call of C, in which nobody counts: a pattern of a few
//! characters keeps it busy for longer than anybody lives, since it tries all ways to divide a text
//! among its repetitions. So this one does the same, and says each step. What a pattern means is in
//! Lua's manual (section 6.4.1); where that says nothing it is as Lua 5.3 does, which the tests
//! hold it against.

use std::ops::Range;

/// As many captures as a pattern may have. Source: LUA_MAXCAPTURES.
const MOST_CAPTURES: usize = 32;
/// As deep as a match may go. Source: MAXCCALLS of lstrlib.c.
const MOST_DEEP: u32 = 200;

/// What a match says of a part of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    Text(Range<usize>),
    /// `()`
    Position(usize),
}

enum Capture {
    /// It began here, and is not closed yet.
    Open(usize),
    Done(Piece),
}

/// One try to match a pattern at a place of a text.
pub struct Match<'a, F> {
    text: &'a [u8],
    pattern: &'a [u8],
    captures: Vec<Capture>,
    deep: u32,
    /// Called once a step; an error ends the match.
    step: F,
}

type Found<E> = Result<Option<usize>, E>;

impl<'a, E: From<String>, F: FnMut() -> Result<(), E>> Match<'a, F> {
    pub fn new(text: &'a [u8], pattern: &'a [u8], step: F) -> Self {
        Match { text, pattern, captures: Vec::new(), deep: 0, step }
    }

    /// Where a match that begins at a place ends, if there is one.
    pub fn at(&mut self, place: usize) -> Found<E> {
        self.captures.clear();
        self.deep = 0;
        self.rest(place, 0)
    }

    /// How many captures the match has.
    pub fn count(&self) -> usize {
        self.captures.len()
    }

    /// A capture of the match; the first is the whole of it where it has none.
    pub fn piece(&self, number: usize, found: Range<usize>) -> Result<Piece, E> {
        match self.captures.get(number) {
            Some(Capture::Done(piece)) => Ok(piece.clone()),
            Some(Capture::Open(_)) => Self::bad("unfinished capture"),
            None if number == 0 => Ok(Piece::Text(found)),
            None => Self::bad(format!("invalid capture index %{}", number + 1)),
        }
    }

    fn bad<T>(what: impl Into<String>) -> Result<T, E> {
        Err(what.into().into())
    }

    /// The pattern's byte; 0 behind its end.
    fn byte(&self, at: usize) -> u8 {
        self.pattern.get(at).copied().unwrap_or(0)
    }

    /// Matches what is left of the pattern with what is left of the text.
    fn rest(&mut self, at: usize, pattern: usize) -> Found<E> {
        if self.deep == MOST_DEEP {
            return Self::bad("pattern too complex");
        }
        self.deep += 1;
        let found = self.here(at, pattern);
        self.deep -= 1;
        found
    }

    fn here(&mut self, mut at: usize, mut p: usize) -> Found<E> {
        while p < self.pattern.len() {
            (self.step)()?;
            match (self.byte(p), self.byte(p + 1)) {
                (b'(', b')') => return self.open(at, p + 2, Capture::Done(Piece::Position(at))),
                (b'(', _) => return self.open(at, p + 1, Capture::Open(at)),
                (b')', _) => return self.close(at, p + 1),
                (b'$', _) if p + 1 == self.pattern.len() => {
                    return Ok((at == self.text.len()).then_some(at));
                }
                (b'%', b'b') => match self.balanced(at, p + 2)? {
                    Some(end) => (at, p) = (end, p + 4),
                    None => return Ok(None),
                },
                (b'%', b'f') => {
                    if self.byte(p + 2) != b'[' {
                        return Self::bad("missing '[' after '%f' in pattern");
                    }
                    let end = self.item_end(p + 2)?;
                    let before = at.checked_sub(1).and_then(|i| self.text.get(i)).copied().unwrap_or(0);
                    let now = self.text.get(at).copied().unwrap_or(0);
                    if self.in_set(before, p + 2, end - 1) || !self.in_set(now, p + 2, end - 1) {
                        return Ok(None);
                    }
                    p = end;
                }
                (b'%', digit @ b'0'..=b'9') => match self.again(at, digit)? {
                    Some(end) => (at, p) = (end, p + 2),
                    None => return Ok(None),
                },
                _ => {
                    let end = self.item_end(p)?;
                    let one = self.is_one(at, p, end);
                    match (self.byte(end), one) {
                        (b'?', true) => match self.rest(at + 1, end + 1)? {
                            Some(found) => return Ok(Some(found)),
                            None => p = end + 1,
                        },
                        (b'+', true) => return self.most(at + 1, p, end),
                        (b'*', _) => return self.most(at, p, end),
                        (b'-', _) => return self.least(at, p, end),
                        (b'?', false) => p = end + 1,
                        (_, false) => return Ok(None),
                        (_, true) => (at, p) = (at + 1, end),
                    }
                }
            }
        }
        Ok(Some(at))
    }

    /// Where one item of the pattern ends, without its repetition.
    fn item_end(&self, mut p: usize) -> Result<usize, E> {
        let first = self.byte(p);
        p += 1;
        match first {
            b'%' if p == self.pattern.len() => Self::bad("malformed pattern (ends with '%')"),
            b'%' => Ok(p + 1),
            b'[' => {
                p += usize::from(self.byte(p) == b'^');
                loop {
                    if p >= self.pattern.len() {
                        return Self::bad("malformed pattern (missing ']')");
                    }
                    let escapes = self.byte(p) == b'%';
                    p += 1;
                    p += usize::from(escapes && p < self.pattern.len());
                    if self.byte(p) == b']' {
                        return Ok(p + 1);
                    }
                }
            }
            _ => Ok(p),
        }
    }

    /// Whether the text's byte is what an item says.
    fn is_one(&self, at: usize, p: usize, end: usize) -> bool {
        let Some(byte) = self.text.get(at).copied() else { return false };
        match self.byte(p) {
            b'.' => true,
            b'%' => in_class(byte, self.byte(p + 1)),
            b'[' => self.in_set(byte, p, end - 1),
            own => own == byte,
        }
    }

    /// Whether a byte is in the set from `[` at `p` to `]` at `end`.
    fn in_set(&self, byte: u8, mut p: usize, end: usize) -> bool {
        let inside = self.byte(p + 1) != b'^';
        p += usize::from(!inside);
        loop {
            p += 1;
            if p >= end {
                return !inside;
            }
            if self.byte(p) == b'%' {
                p += 1;
                if in_class(byte, self.byte(p)) {
                    return inside;
                }
            } else if self.byte(p + 1) == b'-' && p + 2 < end {
                p += 2;
                if (self.byte(p - 2)..=self.byte(p)).contains(&byte) {
                    return inside;
                }
            } else if self.byte(p) == byte {
                return inside;
            }
        }
    }

    /// `%bxy`
    fn balanced(&mut self, at: usize, p: usize) -> Found<E> {
        if p + 1 >= self.pattern.len() {
            return Self::bad("malformed pattern (missing arguments to '%b')");
        }
        let (open, close) = (self.byte(p), self.byte(p + 1));
        if self.text.get(at) != Some(&open) {
            return Ok(None);
        }
        let mut depth = 1u64;
        for (i, byte) in self.text.iter().enumerate().skip(at + 1) {
            (self.step)()?;
            if *byte == close {
                depth -= 1;
                if depth == 0 {
                    return Ok(Some(i + 1));
                }
            } else if *byte == open {
                depth += 1;
            }
        }
        Ok(None)
    }

    /// As often as it can be, and then less often.
    fn most(&mut self, at: usize, p: usize, end: usize) -> Found<E> {
        let mut times = 0;
        while self.is_one(at + times, p, end) {
            (self.step)()?;
            times += 1;
        }
        loop {
            match self.rest(at + times, end + 1)? {
                None if times > 0 => times -= 1,
                found => return Ok(found),
            }
        }
    }

    /// As seldom as it can be, and then more often.
    fn least(&mut self, mut at: usize, p: usize, end: usize) -> Found<E> {
        loop {
            match self.rest(at, end + 1)? {
                None if self.is_one(at, p, end) => at += 1,
                found => return Ok(found),
            }
        }
    }

    fn open(&mut self, at: usize, p: usize, capture: Capture) -> Found<E> {
        if self.captures.len() >= MOST_CAPTURES {
            return Self::bad("too many captures");
        }
        self.captures.push(capture);
        let found = self.rest(at, p)?;
        if found.is_none() {
            self.captures.pop();
        }
        Ok(found)
    }

    fn close(&mut self, at: usize, p: usize) -> Found<E> {
        let last = self.captures.iter().rposition(|c| matches!(c, Capture::Open(_)));
        let place = last.and_then(|i| self.captures.get_mut(i).map(|capture| (i, capture)));
        let Some((i, Capture::Open(begin))) = place else { return Self::bad("invalid pattern capture") };
        let begin = *begin;
        self.captures[i] = Capture::Done(Piece::Text(begin..at));
        let found = self.rest(at, p)?;
        if found.is_none() {
            self.captures[i] = Capture::Open(begin);
        }
        Ok(found)
    }

    /// `%1`: what was captured before.
    fn again(&mut self, at: usize, digit: u8) -> Found<E> {
        let number = usize::from(digit - b'0');
        let text = self.text;
        let before = match number.checked_sub(1).and_then(|i| self.captures.get(i)) {
            None | Some(Capture::Open(_)) => return Self::bad(format!("invalid capture index %{number}")),
            Some(Capture::Done(Piece::Position(_))) => return Ok(None),
            Some(Capture::Done(Piece::Text(range))) => &text[range.clone()],
        };
        for _ in 0..before.len() / 64 {
            (self.step)()?;
        }
        Ok(text[at..].starts_with(before).then_some(at + before.len()))
    }
}

/// Whether a byte is of the class that a letter behind `%` says.
fn in_class(byte: u8, class: u8) -> bool {
    let is = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'g' => byte.is_ascii_graphic(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => byte.is_ascii_whitespace() || byte == 0x0b,
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return byte == class,
    };
    is != class.is_ascii_uppercase()
}
