//! `zilla top`: pools, devices, caches and logs on a terminal, drawn anew every second.
//!
//! The figures are those that the page and the metrics show. [`frame`] makes the lines of two
//! moments and knows no terminal; [`screen`] knows nothing else. No library for terminals is used:
//! a screenful of lines, two keys and a size are a few escape sequences, and the program stays
//! small. Where standard output is no terminal, one frame is printed.

mod frame;
mod screen;

use crate::args::{self, Opt};
use crate::cx::{Cx, Exit, Run};
use frame::{Figures, frame};
use screen::{Key, Screen};
use std::time::{Duration, Instant};
use zilla_control::types::{ArcStatQuery, LogStatQuery, PoolQuery};

const USAGE: &str = "usage:\n\tzilla top [-n frames] [interval]\n";
const ACTION: &str = "cannot read statistics";
/// Of a frame that goes to a file.
const PLAIN_WIDTH: usize = 100;

/// Runs `zilla top` with these arguments.
pub fn main(args: Vec<String>) -> u8 {
    Cx::main("zilla top", args, |cx, requested| cx.put_usage(USAGE, requested), run)
}

fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, mut operands) = args::parse(&args, "n:", &[]);
    let mut frames = None;
    for option in options {
        match option {
            Opt::Flag('n', n) => match n.parse::<u64>() {
                Ok(n) if n > 0 => frames = Some(n),
                _ => return cx.bad_usage(format!("invalid number '{n}'")),
            },
            other => return cx.bad_option(other),
        }
    }
    let interval = crate::fmt::interval::Interval::take(cx, &mut operands)?;
    if !operands.is_empty() {
        return cx.bad_usage("too many arguments");
    }
    let every = if interval.every > 0.0 { interval.every } else { 1.0 };
    let every = Duration::try_from_secs_f64(every).unwrap_or(Duration::from_secs(1));
    let Some(mut screen) = Screen::open() else {
        for n in 0..frames.unwrap_or(1) {
            if n > 0 {
                std::thread::sleep(every);
            }
            let now = ask(cx)?;
            frame(&now, None, PLAIN_WIDTH).iter().for_each(|line| cx.out.line(line));
            cx.out.flush();
        }
        return Ok(0);
    };
    let mut before: Option<Figures> = None;
    let mut top = 0usize;
    let mut left = frames;
    loop {
        let now = ask(cx)?;
        let (rows, columns) = screen.size();
        let lines = frame(&now, before.as_ref(), columns);
        let due = Instant::now() + every;
        loop {
            top = top.min(lines.len().saturating_sub(rows));
            screen.show(lines.iter().skip(top).take(rows));
            match screen.key(due.saturating_duration_since(Instant::now())) {
                Some(Key::Quit) => return Ok(0),
                Some(Key::Up) => top = top.saturating_sub(1),
                Some(Key::Down) => top += 1,
                None => break,
            }
        }
        before = Some(now);
        left = left.map(|n| n - 1);
        if left == Some(0) {
            return Ok(0);
        }
    }
}

fn ask(cx: &mut Cx) -> Result<Figures, Exit> {
    let pools = cx.ask(ACTION, &PoolQuery::default())?.ok_or(Exit(1))?;
    let arc = cx.ask(ACTION, &ArcStatQuery::default())?.ok_or(Exit(1))?;
    let logs = cx.ask(ACTION, &LogStatQuery::default())?.ok_or(Exit(1))?;
    Ok(Figures { pools, arc, logs })
}
