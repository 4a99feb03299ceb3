//! `zilla status` and `zilla stop`: the daemon as a service, for people who never started one.
//!
//! A daemon is started by the first command that needs it, so people may not know that it runs,
//! where, and how to end it. These two never start one. `stop` returns when the daemon is gone: its
//! pools are closed and their devices free. What the daemon waits for meanwhile it writes to its
//! log, and that is shown.

use crate::args::{self, Opt};
use crate::cx::{Cx, Exit, Run};
use crate::fmt::json;
use rustix::fs::{FlockOperation, flock};
use std::io::{Read, Seek, SeekFrom};
use std::time::{Duration, Instant};
use zilla_control::paths::{Access, LOCK_FILE, LOG_FILE, TOKEN_FILE};
use zilla_control::types::{Hello, HelloReply, MountList, PoolHealth, PoolInfo, PoolQuery, Shutdown};
use zilla_control::{Client, ClientError, Folder, StateDir};

/// What init scripts and systemctl answer for a service that does not run.
const NOT_RUNNING: u8 = 3;
/// More than a daemon takes that waits for requests (30 s) and open files (10 s) and then syncs its
/// pools.
const STOP_LIMIT: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(50);
/// Of the log while the daemon ends.
const LOG_LIMIT: u64 = 1 << 20;

const STATUS_USAGE: &str = "usage:\n\tzilla status [-j]\n";
const PAGE_USAGE: &str = "usage:\n\tzilla page [-o]\n";
const STOP_USAGE: &str = "usage:\n\tzilla stop\n";

/// Runs `zilla status` with these arguments.
pub fn status_main(args: Vec<String>) -> u8 {
    Cx::main("zilla status", args, |cx, requested| cx.put_usage(STATUS_USAGE, requested), status)
}

/// Runs `zilla stop` with these arguments.
pub fn stop_main(args: Vec<String>) -> u8 {
    Cx::main("zilla stop", args, |cx, requested| cx.put_usage(STOP_USAGE, requested), stop)
}

/// Runs `zilla page` with these arguments.
pub fn page_main(args: Vec<String>) -> u8 {
    Cx::main("zilla page", args, |cx, requested| cx.put_usage(PAGE_USAGE, requested), page)
}

/// `-j` and nothing else.
pub(crate) fn only_json(cx: &mut Cx, args: &[String]) -> Result<bool, Exit> {
    let (options, operands) = args::parse(args, "jh", &[("json", false, 'j'), ("help", false, 'h')]);
    let mut as_json = false;
    for option in options {
        match option {
            Opt::Flag('j', _) => as_json = true,
            Opt::Flag('h', _) => {
                (cx.usage)(cx, true);
                return Err(Exit(0));
            }
            other => return cx.bad_option(other),
        }
    }
    if !operands.is_empty() {
        return cx.bad_usage("too many arguments");
    }
    Ok(as_json)
}

/// The folder that commands ask, and the daemon in it, if one runs.
fn find(cx: &mut Cx) -> Result<(StateDir, Option<Client>), Exit> {
    let found = StateDir::to_ask().map_err(ClientError::Start).and_then(|dir| match Client::connect(&dir) {
        Ok(client) => Ok((dir, Some(client))),
        Err(ClientError::NotRunning(_)) => Ok((dir, None)),
        Err(e) => Err(e),
    });
    found.map_err(|e| {
        cx.err(format!("{}: {e}", cx.program));
        Exit(1)
    })
}

struct Running {
    hello: HelloReply,
    pools: Vec<PoolInfo>,
    /// Pool or dataset, and where.
    mounts: Vec<(String, String)>,
}

impl Running {
    fn ask(client: &mut Client) -> Result<Running, ClientError> {
        let hello = client.call(&Hello {})?;
        let pools = client.call(&PoolQuery::default())?;
        let mounts = client.call(&MountList::default())?;
        let mounts = mounts.into_iter().map(|m| (m.dataset, m.mountpoint)).collect();
        Ok(Running { hello, pools, mounts })
    }

    fn mounts_of<'a>(&'a self, pool: &'a str) -> impl Iterator<Item = &'a (String, String)> {
        self.mounts.iter().filter(move |(name, _)| zilla_control::props::naming::pool_of(name) == pool)
    }
}

fn status(cx: &mut Cx, args: Vec<String>) -> Run {
    let as_json = only_json(cx, &args)?;
    let (dir, client) = find(cx)?;
    let running = match client.map(|mut client| Running::ask(&mut client)).transpose() {
        Ok(running) => running,
        Err(e) => {
            cx.err(format!("{}: {e}", cx.program));
            return Ok(1);
        }
    };
    if as_json {
        let mut root = json::schema("zilla", "status");
        root.str("state_dir", dir.path().to_string_lossy());
        root.str("state", if running.is_some() { "running" } else { "stopped" });
        if let Some(r) = &running {
            root.set("pid", json::Json::Num(u64::from(r.hello.pid)));
            root.str("version", &r.hello.version);
            let mut pools = json::Obj::new();
            for pool in &r.pools {
                let mut one = json::Obj::new();
                one.str("state", pool.health.as_str());
                let mut mounts = json::Obj::new();
                r.mounts_of(&pool.name).for_each(|(name, at)| mounts.str(name, at));
                one.obj("mounts", mounts);
                pools.obj(&pool.name, one);
            }
            root.obj("pools", pools);
        }
        cx.out.line(root.render());
    } else {
        cx.out.line(format!("state folder: {}", dir.path().display()));
        match &running {
            None => cx.out.line("      daemon: not running (a command that needs it starts it)"),
            Some(r) => {
                cx.out.line(format!(
                    "      daemon: running, process {}, version {}",
                    r.hello.pid, r.hello.version
                ));
                cx.out.line(format!("         log: {}", dir.path().join(LOG_FILE).display()));
                if r.pools.is_empty() {
                    cx.out.line("       pools: none");
                }
                for pool in &r.pools {
                    let mounted = match r.mounts_of(&pool.name).count() {
                        0 => "nothing mounted".to_owned(),
                        1 => "1 file system mounted".to_owned(),
                        n => format!("{n} file systems mounted"),
                    };
                    cx.out.line(format!("        pool: {} {}, {mounted}", pool.name, pool.health.as_str()));
                }
            }
        }
    }
    Ok(match running {
        None => NOT_RUNNING,
        Some(r) if r.pools.iter().any(|p| p.health != PoolHealth::Online) => 1,
        Some(_) => 0,
    })
}

/// Prints the page's address with a token after the `#`, which a browser keeps to itself.
fn page(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "o", &[]);
    let mut role = "viewer ";
    for option in options {
        match option {
            Opt::Flag('o', _) => role = "operator ",
            other => return cx.bad_option(other),
        }
    }
    if !operands.is_empty() {
        return cx.bad_usage("too many arguments");
    }
    let (dir, client) = find(cx)?;
    let hello = client.map(|mut client| client.call(&Hello {})).transpose();
    let served = hello.map(|hello| hello.and_then(|h| Some((h.page?, h.page_name))));
    let address = match served {
        Ok(Some((at, Some(name)))) => format!("https://{name}:{}", at.port()),
        Ok(Some((at, None))) => format!("http://{at}"),
        Ok(None) => {
            cx.err("zilla page: no page is served: start the daemon with ZILLA_HTTP=127.0.0.1:8420 (see zillad(8))");
            return Ok(1);
        }
        Err(e) => {
            cx.err(format!("zilla page: {e}"));
            return Ok(1);
        }
    };
    let tokens = dir.open().and_then(|f| f.read(TOKEN_FILE).map_err(|e| format!("'{TOKEN_FILE}': {e}")));
    match tokens {
        Ok(text) => {
            let token = text.lines().find_map(|l| l.strip_prefix(role)).unwrap_or_default();
            cx.out.line(format!("{address}/#{token}"));
            Ok(0)
        }
        Err(why) => {
            cx.err(format!("zilla page: {why}"));
            Ok(1)
        }
    }
}

fn stop(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "", &[]);
    if let Some(option) = options.into_iter().next() {
        return cx.bad_option(option);
    }
    if !operands.is_empty() {
        return cx.bad_usage("too many arguments");
    }
    let (dir, client) = find(cx)?;
    let Some(mut client) = client else {
        cx.out.line(format!("no daemon is running in '{}'", dir.path().display()));
        return Ok(0);
    };
    let outcome = end(cx, &dir, &mut client);
    outcome.or_else(|why| {
        cx.err(format!("{}: {why}", cx.program));
        Ok(1)
    })
}

fn end(cx: &mut Cx, dir: &StateDir, client: &mut Client) -> Result<u8, String> {
    let folder = dir.open()?;
    let mut log = folder.file(LOG_FILE, Access::Append).map_err(|e| format!("the daemon's log: {e}"))?;
    log.seek(SeekFrom::End(0)).map_err(|e| format!("the daemon's log: {e}"))?;
    client.call(&Shutdown {}).map_err(|e| e.to_string())?;
    let begin = Instant::now();
    let mut rest = String::new();
    loop {
        let gone = is_free(&folder)?;
        show_warnings(cx, &mut log, &mut rest);
        if gone {
            cx.out.line("stopped: its pools are closed, and opened again by the next command");
            return Ok(0);
        }
        if begin.elapsed() > STOP_LIMIT {
            let seconds = STOP_LIMIT.as_secs();
            return Err(format!(
                "it still ends after {seconds} s; see '{}'",
                dir.path().join(LOG_FILE).display()
            ));
        }
        std::thread::sleep(LOOK);
    }
}

/// Whether no daemon holds the folder any more.
fn is_free(folder: &Folder) -> Result<bool, String> {
    let lock = folder.file(LOCK_FILE, Access::Write).map_err(|e| format!("'{LOCK_FILE}': {e}"))?;
    match flock(&lock, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(format!("'{LOCK_FILE}': {e}")),
    }
}

/// Prints what the log has gained of warnings and errors.
fn show_warnings(cx: &mut Cx, log: &mut std::fs::File, rest: &mut String) {
    let mut bytes = Vec::new();
    if log.take(LOG_LIMIT).read_to_end(&mut bytes).is_err() {
        return;
    }
    rest.push_str(&String::from_utf8_lossy(&bytes));
    while let Some(end) = rest.find('\n') {
        let line: String = rest.drain(..=end).collect();
        let said = [" WARN ", " ERROR "].iter().find_map(|level| line.split_once(level));
        if let Some((_, what)) = said {
            cx.err(what.trim());
        }
    }
}
