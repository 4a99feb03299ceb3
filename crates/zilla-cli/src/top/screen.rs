//! The terminal: another screen, keys as they are pressed, and everything as it was in the end.

use crate::terminal::tame;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr,
};
use std::io::Write;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    Quit,
    Up,
    Down,
}

/// The terminal while it shows frames; dropping it puts back what was there.
pub struct Screen {
    before: Termios,
}

impl Screen {
    /// None where input or output is no terminal.
    pub fn open() -> Option<Screen> {
        if !isatty(std::io::stdout()) || !isatty(std::io::stdin()) {
            return None;
        }
        let before = tcgetattr(std::io::stdin()).ok()?;
        let mut raw = before.clone();
        // An interrupt is a key too, or the terminal would stay as it is now.
        raw.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        raw.special_codes[SpecialCodeIndex::VMIN] = 0;
        raw.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(std::io::stdin(), OptionalActions::Flush, &raw).ok()?;
        let screen = Screen { before };
        // The other screen, no cursor.
        put("\x1b[?1049h\x1b[?25l");
        Some(screen)
    }

    /// Rows and columns.
    pub fn size(&self) -> (usize, usize) {
        match tcgetwinsize(std::io::stdout()) {
            Ok(size) if size.ws_row > 0 && size.ws_col > 0 => (size.ws_row.into(), size.ws_col.into()),
            _ => (24, 80),
        }
    }

    /// Shows lines from the top; in one write, so that nothing flickers.
    pub fn show<'a>(&mut self, lines: impl Iterator<Item = &'a String>) {
        put(&shown(lines));
    }

    /// A key that means something, or None when the time is over.
    pub fn key(&mut self, wait: Duration) -> Option<Key> {
        let until = std::time::Instant::now() + wait;
        loop {
            let left = until.saturating_duration_since(std::time::Instant::now());
            let left =
                Timespec { tv_sec: left.as_secs().try_into().ok()?, tv_nsec: left.subsec_nanos().into() };
            let input = std::io::stdin();
            let mut fds = [PollFd::new(&input, PollFlags::IN)];
            match poll(&mut fds, Some(&left)) {
                Ok(0) => return None,
                Ok(_) => {}
                // The window changed its size: a new frame.
                Err(_) => return None,
            }
            let mut bytes = [0; 16];
            match rustix::io::read(&input, &mut bytes) {
                // Nobody is at the terminal any more.
                Ok(0) | Err(_) => return Some(Key::Quit),
                Ok(n) => {
                    if let Some(key) = meaning(&bytes[..n]) {
                        return Some(key);
                    }
                }
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        put("\x1b[?25h\x1b[?1049l");
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Flush, &self.before);
    }
}

/// Lines from the top of the screen. The sequences are ours; what pools bring is none of them.
fn shown<'a>(lines: impl Iterator<Item = &'a String>) -> String {
    let lines: Vec<String> = lines.map(|line| format!("{}\x1b[K", tame(line))).collect();
    format!("\x1b[H{}\x1b[J", lines.join("\r\n"))
}

/// Whoever closed the terminal is seen at the next key.
fn put(text: &str) {
    let mut out = std::io::stdout();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn meaning(bytes: &[u8]) -> Option<Key> {
    match bytes {
        // q, Q, interrupt, end of input
        [b'q' | b'Q' | 3 | 4, ..] => Some(Key::Quit),
        [b'k', ..] | [27, b'[' | b'O', b'A', ..] => Some(Key::Up),
        [b'j', ..] | [27, b'[' | b'O', b'B', ..] => Some(Key::Down),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_command_no_terminal() {
        let lines = ["tank \x1b[2J\x07".to_owned(), "\x1b[1mdisk\x1b[0m".to_owned()];
        let text = "\x1b[Htank ?[2J?\x1b[K\r\n\x1b[1mdisk\x1b[0m\x1b[K\x1b[J";
        assert_eq!(shown(lines.iter()), text);
    }

    #[test]
    fn keys_are_known() {
        assert_eq!(meaning(b"q"), Some(Key::Quit));
        assert_eq!(meaning(&[3]), Some(Key::Quit));
        assert_eq!(meaning(b"\x1b[A"), Some(Key::Up));
        assert_eq!(meaning(b"\x1bOB"), Some(Key::Down));
        assert_eq!((meaning(b"x"), meaning(b"\x1b"), meaning(b"")), (None, None, None));
    }
}
