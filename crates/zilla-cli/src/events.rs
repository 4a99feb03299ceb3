//! `zilla events`: what happened to pools and devices, an object of JSON a line, for programs that
//! do something about it.
//!
//! The same events as `zpool events`, whose output is OpenZFS's and made for people. With `-f` it
//! goes on as they come. What came while nobody could read it, and is kept no more, is told by a
//! line with `dropped`.

use crate::args::{self, Opt};
use crate::cx::{Cx, Run};
use crate::fmt::json::{Json, Obj};
use zilla_control::props::naming;
use zilla_control::types::EventQuery;

const USAGE: &str = "usage:\n\tzilla events [-f] [pool]\n";
/// So long the daemon is to wait for an event, each time it is asked.
const WAIT_MS: u64 = 30_000;

/// Runs `zilla events` with these arguments.
pub fn main(args: Vec<String>) -> u8 {
    Cx::main("zilla events", args, |cx, requested| cx.put_usage(USAGE, requested), run)
}

fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "fh", &[("help", false, 'h')]);
    let mut follow = false;
    for option in options {
        match option {
            Opt::Flag('f', _) => follow = true,
            Opt::Flag('h', _) => {
                (cx.usage)(cx, true);
                return Ok(0);
            }
            other => return cx.bad_option(other),
        }
    }
    let pool = match operands.as_slice() {
        [] => None,
        [name] => Some(name.as_str()),
        _ => return cx.bad_usage("too many arguments"),
    };
    if let Some(name) = pool
        && naming::check_pool_name(name, true).is_err()
    {
        return cx.bad_usage(format!("invalid pool name '{name}'"));
    }
    let mut after = 0;
    loop {
        let request = EventQuery { after, wait_ms: if follow { WAIT_MS } else { 0 } };
        let Some(reply) = cx.ask("cannot get event", &request)? else { return Ok(1) };
        if reply.dropped > 0 {
            let mut lost = Obj::new();
            lost.set("dropped", Json::Num(reply.dropped));
            cx.out.line(lost.render());
        }
        for event in &reply.events {
            after = event.eid;
            if pool.is_none_or(|pool| event.pool() == Some(pool)) {
                cx.out.line(event.json());
            }
        }
        cx.out.flush();
        if !follow {
            return Ok(0);
        }
    }
}
