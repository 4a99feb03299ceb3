//! What send and receive share: handing the pipe to the daemon, and showing what it says meanwhile.

use crate::cx::{Cx, Exit, Out};
use crate::fmt::time;
use std::os::fd::AsFd;
use zilla_control::handover::{self, Handed, LOCAL_TIME};
use zilla_control::{ApiError, Operation};

/// Gives the daemon the pipe of a stream.
pub fn hand_over(cx: &mut Cx, pipe: &impl AsFd) -> Result<Handed, Exit> {
    let dir = cx.client()?.state_dir().clone();
    handover::hand_over(&dir, pipe.as_fd()).map_err(|e| {
        cx.err(format!("{}: {e}", cx.program));
        Exit(1)
    })
}

/// Asks, and prints the daemon's lines until it has answered.
pub fn told<O: Operation<Reply = ()>>(
    cx: &mut Cx,
    handed: Handed,
    request: &O,
) -> Result<Result<(), ApiError>, Exit> {
    let shown = handed.try_clone().map(|lines| {
        std::thread::spawn(move || {
            lines.lines(|is_error, text| {
                let text = match text.strip_prefix(LOCAL_TIME) {
                    Some(rest) => format!("{}{rest}", time::of_day(time::now())),
                    None => text.to_owned(),
                };
                // Lines of one kind stay in order.
                if is_error { eprintln!("{text}") } else { Out::new().say(format!("{text}\n")) }
            });
        })
    });
    let answer = cx.call(request);
    // The daemon is done, so it says no more: what it said is read to its end.
    handed.end();
    if let Ok(shown) = shown {
        let _ = shown.join();
    }
    answer
}
