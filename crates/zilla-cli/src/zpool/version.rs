//! `zpool version` and `zfs version`.

use crate::args::{self, Opt};
use crate::cx::{Cx, Run};
use crate::fmt::{self, json};

pub fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "j", &[("json", false, 'j')]);
    let mut as_json = false;
    for option in options {
        match option {
            Opt::Flag('j', _) => as_json = true,
            other => return cx.bad_option(other),
        }
    }
    if !operands.is_empty() {
        return cx.bad_usage("too many arguments");
    }
    let own = fmt::version();
    // Both halves come from one build; where another daemon runs, its own version is told.
    let daemon = running().unwrap_or_else(|| env!("CARGO_PKG_VERSION").to_owned());
    if as_json {
        let mut version = json::Obj::new();
        version.str("userland", own);
        version.str("kernel", format!("zillad-{daemon}"));
        let mut root = json::schema(cx.program, "version");
        root.obj("zfs_version", version);
        cx.out.line(root.render());
    } else {
        cx.out.line(own);
        cx.out.line(format!("zillad-{daemon}"));
    }
    Ok(0)
}

/// The version of the daemon, if one runs; asking must not start one.
fn running() -> Option<String> {
    let dir = zilla_control::StateDir::from_env().ok()?;
    let mut client = zilla_control::Client::connect(&dir).ok()?;
    client.call(&zilla_control::types::Hello {}).ok().map(|hello| hello.version)
}
