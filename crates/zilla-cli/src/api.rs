//! `zilla api`: what the daemon can be asked for, as a document of OpenAPI, for those who write
//! clients. It asks no daemon: this program's own would say the same.

use crate::args::{self, Opt};
use crate::cx::{Cx, Run};

const USAGE: &str = "usage:\n\tzilla api\n";

/// Runs `zilla api` with these arguments.
pub fn main(args: Vec<String>) -> u8 {
    Cx::main("zilla api", args, |cx, requested| cx.put_usage(USAGE, requested), run)
}

fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "h", &[("help", false, 'h')]);
    if let Some(option) = options.into_iter().next() {
        return match option {
            Opt::Flag('h', _) => {
                (cx.usage)(cx, true);
                Ok(0)
            }
            other => cx.bad_option(other),
        };
    }
    if !operands.is_empty() {
        return cx.bad_usage("too many arguments");
    }
    cx.out.line(zilla_control::openapi::DOCUMENT.trim_end());
    Ok(0)
}
