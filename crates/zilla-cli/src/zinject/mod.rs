//! `zinject`: errors put into pools on purpose, to see what becomes of them.
//!
//! It reads OpenZFS's words ([`words`]), asks the daemon that owns the pool, and prints OpenZFS's
//! tables ([`print`]). Damage is never written: the daemon fails or delays what is read and written
//! until the handler is taken away, or its pool is.
//!
//! Refused by name, since there is no such thing here: panics (`-p`), writes that are dropped until
//! the machine is stopped (`-I`), and unloading a pool without exporting it (`-u`).

mod print;
mod words;

use crate::args::{self, Opt};
use crate::cx::{Cx, Exit, Run};
use crate::fmt::vdev;
use std::os::unix::fs::MetadataExt;
use words::Kind;
use zilla_control::ErrorCode;
use zilla_control::types::{
    DatasetByPath, DatasetMount, DatasetUnmount, InjectAdd, InjectBlocks, InjectClear, InjectFailure,
    InjectFault, InjectFlush, InjectIo, InjectLabel, InjectList, InjectState, PoolQuery,
};
use zilla_env::strerror;

/// What `zilla` says of it, and shells complete.
pub const WORDS: &str = "[-aFhmq] [-c id] [-d device] [-A state] [-D latency:lanes] [-L label] [-T type] \
                         [-t kind] [-b bookmark] [-C copies] [-l level] [-r range] [-e error] [-f frequency] \
                         [-P command] [-s seconds] [pool]";

/// Runs `zinject` with these arguments.
pub fn main(args: Vec<String>) -> u8 {
    Cx::main("zinject", args, usage, run)
}

fn usage(cx: &mut Cx, requested: bool) {
    cx.put_usage(words::USAGE, requested);
}

/// What was asked for.
#[derive(Debug, Default)]
struct Asked {
    action: Option<bool>,
    blocks: Option<InjectBlocks>,
    cancel: Option<String>,
    copies: u32,
    device: Option<String>,
    delay: Option<(u64, u64)>,
    failure: Option<InjectFailure>,
    frequency: Option<u32>,
    fail_fast: bool,
    flush: bool,
    kind: Option<Kind>,
    io: Option<InjectIo>,
    level: Option<u32>,
    label: Option<InjectLabel>,
    remount: bool,
    range: Option<(u64, u64)>,
    pause: Option<bool>,
    seconds: Option<u64>,
    quiet: bool,
    operands: Vec<String>,
}

/// Wrong words: what is wrong, and the code that OpenZFS ends with then.
fn wrong<T>(cx: &mut Cx, what: impl AsRef<str>, code: u8) -> Result<T, Exit> {
    cx.err(what);
    (cx.usage)(cx, false);
    Err(Exit(code))
}

fn run(cx: &mut Cx, words: Vec<String>) -> Run {
    if words.is_empty() {
        return list(cx);
    }
    let Some(asked) = read(cx, &words)? else { return Ok(0) };
    if let Some(which) = asked.cancel.clone() {
        if words.len() > 2 || !asked.operands.is_empty() {
            return wrong(cx, "cancel (-c) incompatible with any other options", 2);
        }
        return cancel(cx, &which);
    }
    match &asked {
        Asked { device: Some(device), .. } => of_device(cx, &asked, device),
        Asked { blocks: Some(at), .. } => of_bookmark(cx, &asked, at.clone()),
        Asked { kind: Some(kind), .. } => of_data(cx, &asked, *kind),
        Asked { pause: Some(import), .. } => of_pool(cx, &asked, *import),
        Asked { flush: true, operands, .. } if operands.is_empty() => {
            Ok(if cx.ask("failed to flush", &InjectFlush {})?.is_some() { 0 } else { 1 })
        }
        Asked { flush: true, .. } => wrong(cx, "extraneous argument for '-f'", 2),
        Asked { seconds: Some(_), .. } => wrong(cx, "-s or -g meaningless without -I (ignore writes)", 2),
        _ => wrong(cx, "at least one of '-b', '-d', '-t', '-a', '-p', '-I' or '-u' must be specified", 2),
    }
}

/// Reads the options; None: the usage was asked for.
fn read(cx: &mut Cx, words: &[String]) -> Result<Option<Asked>, Exit> {
    let (options, operands) = args::parse(words, ":aA:b:C:d:D:f:Fg:qhIc:t:T:l:mr:s:e:uL:p:P:", &[]);
    let mut asked = Asked { operands, ..Asked::default() };
    for option in options {
        let (letter, value) = match option {
            Opt::Flag(letter, value) => (letter, value),
            Opt::Missing(letter) => return wrong(cx, format!("option -{letter} requires an operand"), 1),
            Opt::Unknown(letter, _) => return wrong(cx, format!("invalid option '{letter}'"), 2),
        };
        match letter {
            'h' => {
                usage(cx, true);
                return Ok(None);
            }
            'a' => asked.flush = true,
            'F' => asked.fail_fast = true,
            'm' => asked.remount = true,
            'q' => asked.quiet = true,
            'c' => asked.cancel = Some(value),
            'd' => asked.device = Some(value),
            'p' => return refuse(cx, "-p", "a panic would take all pools of the daemon along"),
            'I' => {
                return refuse(
                    cx,
                    "-I",
                    "it ends by stopping the machine; use '-e noop' to drop a device's writes",
                );
            }
            'u' => return refuse(cx, "-u", "a pool is open or exported here: export and import it instead"),
            'g' => return wrong(cx, "-s or -g meaningless without -I (ignore writes)", 2),
            letter => {
                if let Err(what) = words::value(&mut asked, letter, &value) {
                    return wrong(cx, what, 1);
                }
            }
        }
    }
    Ok(Some(asked))
}

fn refuse<T>(cx: &mut Cx, option: &str, why: &str) -> Result<T, Exit> {
    cx.err(format!("option '{option}' is not supported by zilla: {why}"));
    Err(Exit(2))
}

fn list(cx: &mut Cx) -> Run {
    let Some(handlers) = cx.ask("unable to list handlers", &InjectList {})? else { return Ok(1) };
    let text = print::tables(&handlers);
    match text.is_empty() {
        true => cx.out.put("No handlers registered.\nRun 'zinject -h' for usage information.\n"),
        false => cx.out.put(text),
    }
    Ok(0)
}

fn cancel(cx: &mut Cx, which: &str) -> Run {
    let id = match which {
        "all" => None,
        number => match number.parse() {
            Ok(id) => Some(id),
            Err(_) => {
                return wrong(cx, format!("invalid handle id '{number}': must be an integer or 'all'"), 1);
            }
        },
    };
    let Some(gone) = cx.ask("failed to remove handlers", &InjectClear { id })? else { return Ok(1) };
    match id {
        None => cx.out.line("removed all registered handlers"),
        Some(id) if gone.is_empty() => {
            cx.err(format!("failed to remove handler {id}: No such file or directory"));
            return Ok(1);
        }
        Some(id) => cx.out.line(format!("removed handler {id}")),
    }
    Ok(0)
}

/// Asks for a handler and says what it is.
fn add(cx: &mut Cx, asked: &Asked, pool: &str, fault: InjectFault) -> Run {
    let request = InjectAdd { pool: pool.to_owned(), fault, frequency: asked.frequency, flush: asked.flush };
    match cx.call(&request)? {
        Ok(handler) => {
            let text = if asked.quiet { format!("{}\n", handler.id) } else { print::added(&handler) };
            cx.out.put(text);
            Ok(0)
        }
        // These are whole sentences.
        Err(e) if matches!(e.code, ErrorCode::Exists) => {
            cx.err(e.description());
            Ok(1)
        }
        Err(e) => {
            cx.refused("failed to add handler", &e);
            Ok(1)
        }
    }
}

fn of_device(cx: &mut Cx, asked: &Asked, device: &str) -> Run {
    if asked.kind.is_some()
        || asked.blocks.is_some()
        || asked.level.is_some()
        || asked.range.is_some()
        || asked.copies != 0
    {
        return wrong(cx, "device (-d) incompatible with data error injection", 2);
    }
    if asked.pause.is_some() || asked.seconds.is_some() || asked.remount {
        return wrong(cx, "device (-d) incompatible with other options", 2);
    }
    let [pool] = asked.operands.as_slice() else {
        return wrong(cx, "device (-d) injection requires a single pool name", 2);
    };
    let failure = asked.failure.unwrap_or(InjectFailure::Nxio);
    let both = usize::from(asked.action.is_some()) + usize::from(asked.delay.is_some());
    if both > 1 || both == 1 && (asked.failure.is_some() || asked.label.is_some() || asked.fail_fast) {
        return wrong(cx, "device (-d) incompatible with other options", 2);
    }
    if asked.action.is_some() && (asked.io.is_some() || asked.frequency.is_some()) {
        return wrong(cx, "device (-d) incompatible with other options", 2);
    }
    if failure == InjectFailure::Checksum {
        return wrong(cx, "device error type must be 'io', 'nxio' or 'corrupt'", 2);
    }
    if failure == InjectFailure::Corrupt && (asked.io != Some(InjectIo::Read) || asked.frequency.is_none()) {
        return wrong(cx, "device corrupt errors require io type read and a frequency value", 2);
    }
    if asked.delay.is_some() && !matches!(asked.io, None | Some(InjectIo::Read | InjectIo::Write)) {
        return wrong(cx, "I/O type for a delay must be 'read' or 'write'", 2);
    }
    let (pools, _) = cx.pools(std::slice::from_ref(pool), PoolQuery::default())?;
    let Some(info) = pools.first() else { return Ok(1) };
    let found = vdev::find(info, device);
    let Some((found, _)) = found else {
        cx.err(format!("cannot find device '{device}' in pool '{pool}'"));
        return Ok(1);
    };
    let (guid, io) = (found.guid, asked.io.unwrap_or(InjectIo::All));
    if let Some(fault) = asked.action {
        let done =
            cx.ask("failed to change the device's state", &InjectState { pool: pool.clone(), guid, fault })?;
        return Ok(u8::from(done.is_none()));
    }
    let fault = match asked.delay {
        Some((milliseconds, lanes)) => {
            let nanoseconds = milliseconds.saturating_mul(1_000_000);
            InjectFault::Delay { guid, nanoseconds, lanes, io }
        }
        None => InjectFault::Device { guid, label: asked.label, failure, io, fail_fast: asked.fail_fast },
    };
    add(cx, asked, pool, fault)
}

/// What no data error takes.
fn only_data(cx: &mut Cx, asked: &Asked, who: &str) -> Result<InjectFailure, Exit> {
    let others = asked.action.is_some()
        || asked.delay.is_some()
        || asked.label.is_some()
        || asked.io.is_some_and(|io| io != InjectIo::Read)
        || asked.fail_fast
        || asked.pause.is_some()
        || asked.seconds.is_some();
    if others {
        return wrong(cx, format!("{who} incompatible with other options"), 2);
    }
    match asked.failure.unwrap_or(InjectFailure::Io) {
        failure @ (InjectFailure::Io | InjectFailure::Checksum) => Ok(failure),
        InjectFailure::Decompress | InjectFailure::Decrypt if asked.copies != 0 => {
            let what = "the '-C' option may not be used with logical data errors 'decrypt' and 'decompress'";
            wrong(cx, what, 2)
        }
        failure @ (InjectFailure::Decompress | InjectFailure::Decrypt) => Ok(failure),
        _ => wrong(cx, "data error type must be 'checksum' or 'io'", 2),
    }
}

fn of_bookmark(cx: &mut Cx, asked: &Asked, at: InjectBlocks) -> Run {
    let others = asked.range.is_some() || asked.kind.is_some() || asked.level.is_some() || asked.remount;
    if others || asked.frequency.is_some() || asked.copies != 0 {
        return wrong(cx, "raw (-b) format with any other options", 2);
    }
    let failure = only_data(cx, asked, "raw (-b) format")?;
    let [pool] = asked.operands.as_slice() else {
        return wrong(cx, "raw (-b) format expects a single pool name", 2);
    };
    add(cx, asked, pool, InjectFault::Blocks { at, copies: 0, failure })
}

fn of_data(cx: &mut Cx, asked: &Asked, kind: Kind) -> Run {
    let failure = only_data(cx, asked, "data error (-t)")?;
    let object = match asked.operands.as_slice() {
        [object] => object,
        [] => return wrong(cx, "missing object", 2),
        _ => return wrong(cx, "data error (-t) expects a single object", 2),
    };
    let dnode = match kind {
        Kind::Mos(kind) => {
            if failure == InjectFailure::Decrypt {
                return wrong(cx, "decryption errors may only be injected for 'data' types", 2);
            }
            // All blocks of objects of a type are meant, whatever their places.
            let narrower = asked.level.is_some() || asked.range.is_some() || asked.copies != 0;
            if narrower || asked.remount {
                return refuse(cx, "-l, -r, -C and -m", "the pool's own objects fail as a whole");
            }
            return add(cx, asked, object, InjectFault::Mos { kind, failure });
        }
        Kind::Data => false,
        Kind::Dnode if asked.range.is_some() => {
            return wrong(cx, "range cannot be specified when type is 'dnode'", 1);
        }
        Kind::Dnode if failure == InjectFailure::Decrypt => {
            return wrong(cx, "decryption errors may only be injected for 'data' types", 2);
        }
        Kind::Dnode => true,
    };
    if !object.starts_with('/') {
        cx.err(format!("invalid object '{object}': must be full path"));
        return Ok(1);
    }
    let inode = match std::fs::symlink_metadata(object) {
        Ok(found) => found.ino(),
        Err(e) => {
            cx.err(format!("cannot open '{object}': {}", strerror(&e)));
            return Ok(1);
        }
    };
    let dataset = match cx.call(&DatasetByPath { path: object.clone() })? {
        Ok(dataset) => dataset,
        Err(_) => {
            cx.err(format!("invalid path '{object}': not a ZFS filesystem"));
            return Ok(1);
        }
    };
    if asked.remount
        && !many(
            cx,
            "cannot unmount",
            &DatasetUnmount { target: Some(dataset.clone()), ..DatasetUnmount::default() },
        )?
    {
        return Ok(1);
    }
    let pool = zilla_control::props::naming::pool_of(&dataset).to_owned();
    let fault = InjectFault::File {
        dataset: dataset.clone(),
        object: inode,
        dnode,
        level: asked.level.unwrap_or(0),
        range: asked.range,
        copies: asked.copies,
        failure,
    };
    let code = add(cx, asked, &pool, fault)?;
    if asked.remount
        && !many(cx, "cannot mount", &DatasetMount { name: Some(dataset), ..DatasetMount::default() })?
    {
        return Ok(1);
    }
    Ok(code)
}

/// Asks for what can fail for several; whether it did for none.
fn many<O>(cx: &mut Cx, action: &str, request: &O) -> Result<bool, Exit>
where
    O: zilla_control::Operation<Reply = zilla_control::types::ManyReply>,
{
    let Some(reply) = cx.ask(action, request)? else { return Ok(false) };
    reply.errors.iter().for_each(|e| cx.refused(action, e));
    Ok(reply.errors.is_empty())
}

fn of_pool(cx: &mut Cx, asked: &Asked, import: bool) -> Run {
    let alone = asked.failure.is_none()
        && asked.frequency.is_none()
        && asked.label.is_none()
        && asked.io.is_none()
        && asked.level.is_none()
        && asked.range.is_none()
        && asked.action.is_none()
        && asked.delay.is_none()
        && asked.copies == 0
        && !asked.remount
        && !asked.fail_fast;
    if !alone {
        return wrong(cx, "import|export delay (-P) incompatible with other options", 2);
    }
    let ([pool], Some(seconds)) = (asked.operands.as_slice(), asked.seconds) else {
        let what = "import|export delay (-P) injection requires a duration (-s) and a single pool name";
        return wrong(cx, what, 2);
    };
    add(cx, asked, pool, InjectFault::Pause { import, seconds })
}
