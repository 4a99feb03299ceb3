//! `zpool destroy`, `export` and `sync`.

use crate::args::{self, Opt};
use crate::cx::{Cx, Exit, Run};
use zilla_control::error::{ApiError, ErrorCode};
use zilla_control::types::{PoolDestroy, PoolExport, PoolQuery, PoolSync};

pub fn destroy(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "f", &[]);
    let mut force = false;
    for option in options {
        match option {
            Opt::Flag('f', _) => force = true,
            other => return cx.bad_option(other),
        }
    }
    let name = cx.only(&operands, "missing pool argument")?;
    let (pools, _) = cx.pools(&operands, PoolQuery::default())?;
    if pools.is_empty() {
        if name.contains('/') {
            cx.err("use 'zfs destroy' to destroy a dataset");
        }
        return Err(Exit(1));
    }
    let Err(e) = cx.call(&PoolDestroy { name: name.clone(), force })? else { return Ok(0) };
    in_use(cx, &format!("cannot destroy '{name}'"), &e);
    if e.code == ErrorCode::UmountFailed {
        cx.err(format!("could not destroy '{name}': could not unmount datasets"));
    }
    Ok(1)
}

/// Says why a pool is not let go of: mostly because somebody uses a file system or volume of it.
fn in_use(cx: &mut Cx, action: &str, e: &ApiError) {
    match (e.code, &e.subject) {
        (ErrorCode::UmountFailed, Some(place)) => cx.refused(&format!("cannot unmount '{place}'"), e),
        (ErrorCode::Busy, Some(_)) => cx.err(format!("{action}: pool is busy")),
        _ => cx.refused(action, e),
    }
}

pub fn export(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "afF", &[]);
    let (mut all, mut force, mut hard_force) = (false, false, false);
    for option in options {
        match option {
            Opt::Flag('a', _) => all = true,
            Opt::Flag('f', _) => force = true,
            Opt::Flag('F', _) => hard_force = true,
            other => return cx.bad_option(other),
        }
    }
    if all && !operands.is_empty() {
        return cx.bad_usage("too many arguments");
    }
    if !all && operands.is_empty() {
        return cx.bad_usage("missing pool argument");
    }
    let (pools, mut failed) = cx.pools(&operands, PoolQuery::default())?;
    for pool in pools {
        let name = pool.name;
        let action = format!("cannot export '{name}'");
        if let Err(e) = cx.call(&PoolExport { name, force, hard_force })? {
            in_use(cx, &action, &e);
            failed = true;
        }
    }
    Ok(u8::from(failed))
}

pub fn sync(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "f", &[]);
    let mut force = false;
    for option in options {
        match option {
            Opt::Flag('f', _) => force = true,
            other => return cx.bad_option(other),
        }
    }
    let (pools, mut failed) = cx.pools(&operands, PoolQuery::default())?;
    for pool in pools {
        let name = pool.name;
        failed |= cx.ask(&format!("sync of pool '{name}' failed"), &PoolSync { name, force })?.is_none();
    }
    Ok(u8::from(failed))
}
