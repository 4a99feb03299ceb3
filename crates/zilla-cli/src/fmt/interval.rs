//! `[interval [count]]` at the end of a command line, and the time stamps of `-T`.

use super::time;
use crate::cx::{Cx, Exit};
use std::time::Duration;

/// How often to print again.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Interval {
    /// Seconds between; 0: once.
    pub every: f64,
    /// How many times; 0: for ever.
    pub count: u64,
}

impl Interval {
    /// Takes numbers off the end of `operands`.
    pub fn take(cx: &mut Cx, operands: &mut Vec<String>) -> Result<Interval, Exit> {
        let mut interval = Interval::default();
        if let Some(last) = number(operands.last()) {
            nonzero(cx, last)?;
            operands.pop();
            interval.every = last;
            if let Some(first) = number(operands.last()) {
                nonzero(cx, first)?;
                operands.pop();
                interval = Interval { every: first, count: last as u64 };
            }
        }
        Ok(interval)
    }

    /// After one round: waits for the next, or says that there is none.
    pub fn next(&mut self, cx: &mut Cx) -> bool {
        if self.every == 0.0 {
            return false;
        }
        if self.count != 0 {
            self.count -= 1;
            if self.count == 0 {
                return false;
            }
        }
        cx.out.flush();
        std::thread::sleep(Duration::try_from_secs_f64(self.every).unwrap_or(Duration::from_secs(1)));
        true
    }
}

/// Digits and points, not ending in a point.
fn number(text: Option<&String>) -> Option<f64> {
    let text = text?;
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if plain && !text.ends_with('.') { text.parse().ok() } else { None }
}

fn nonzero(cx: &mut Cx, value: f64) -> Result<(), Exit> {
    if value == 0.0 { cx.bad_usage("interval cannot be zero") } else { Ok(()) }
}

/// The stamps of `-T u|d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stamp {
    Unix,
    Date,
}

impl Stamp {
    pub fn parse(cx: &mut Cx, text: &str) -> Result<Stamp, Exit> {
        match text.chars().next() {
            Some('u') => Ok(Stamp::Unix),
            Some('d') => Ok(Stamp::Date),
            _ => cx.print_usage(),
        }
    }

    pub fn now(self) -> String {
        match self {
            Stamp::Unix => time::now().to_string(),
            Stamp::Date => time::stamp_date(time::now()),
        }
    }
}
