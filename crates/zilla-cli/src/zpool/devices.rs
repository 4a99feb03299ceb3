//! `zpool online`, `offline`, `clear`, `reopen` and `freeze`: the state of devices.

use super::vdevs::{lookup_cache, one_pool};
use crate::args::{self, Opt};
use crate::cx::{Cx, Exit, Run};
use crate::fmt::vdev;
use zilla_control::ErrorCode;
use zilla_control::types::{
    PoolClear, PoolFreeze, PoolHealth, PoolImport, PoolInfo, PoolQuery, PoolReopen, VdevOffline, VdevOnline,
    VdevState,
};

/// The pool, or the end of the command; it has no line end, as with OpenZFS.
fn pool_of_devices(cx: &mut Cx, name: &str) -> Result<PoolInfo, Exit> {
    one_pool(cx, name).inspect_err(|_| cx.put_usage(&format!("failed to open pool \"{name}\""), false))
}

pub fn online(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "e", &[("power", false, '\u{1}')]);
    let mut expand = false;
    for option in options {
        match option {
            Opt::Flag('e', _) => expand = true,
            Opt::Flag('\u{1}', _) => {
                cx.err("Power control not supported");
                return Ok(1);
            }
            other => return cx.bad_option(other),
        }
    }
    let Some((name, devices)) = operands.split_first() else { return cx.bad_usage("missing pool name") };
    if devices.is_empty() {
        return cx.bad_usage("missing device name");
    }
    let pool = pool_of_devices(cx, name)?;
    let mut code = 0;
    for device in devices {
        let Some((was, _)) = vdev::find(&pool, device) else {
            cx.err(format!("couldn't find device \"{device}\" in pool \"{name}\""));
            code = 1;
            continue;
        };
        let action = format!("cannot {} {device}", if expand { "expand" } else { "online" });
        let reply = match lookup_cache(cx, &pool, device, &action)? {
            Some(guid) => cx.ask(&action, &VdevOnline { name: name.clone(), guid, expand })?,
            None => None,
        };
        let Some(reply) = reply else {
            cx.err(format!("Failed to online \"{device}\" in pool \"{name}\": -1"));
            code = 1;
            continue;
        };
        if reply.state != VdevState::Healthy {
            cx.out.line(format!("warning: device '{device}' onlined, but remains in faulted state"));
            cx.out.line(match reply.state {
                VdevState::Faulted => "use 'zpool clear' to restore a faulted device",
                _ => "use 'zpool replace' to replace devices that are no longer present",
            });
            if expand {
                let was_usable = matches!(was.stats.state, VdevState::Healthy | VdevState::Degraded);
                let kind = if was_usable { "error" } else { "warning" };
                cx.out.line(format!("{kind}: failed to expand usable space on unhealthy device '{device}'"));
                if was_usable {
                    return Ok(1);
                }
            }
        }
    }
    if code == 0 {
        cx.log_history(name)?;
    }
    Ok(code)
}

pub fn offline(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "ft", &[("power", false, '\u{1}')]);
    let (mut fault, mut temporary) = (false, false);
    for option in options {
        match option {
            Opt::Flag('f', _) => fault = true,
            Opt::Flag('t', _) => temporary = true,
            Opt::Flag('\u{1}', _) => {
                cx.err("Power control not supported");
                return Ok(1);
            }
            other => return cx.bad_option(other),
        }
    }
    let Some((name, devices)) = operands.split_first() else { return cx.bad_usage("missing pool name") };
    if devices.is_empty() {
        return cx.bad_usage("missing device name");
    }
    let pool = pool_of_devices(cx, name)?;
    let mut code = 0;
    for device in devices {
        let action = format!("cannot {} {device}", if fault { "fault" } else { "offline" });
        let Some(guid) = lookup_cache(cx, &pool, device, &action)? else {
            code = 1;
            continue;
        };
        let request = VdevOffline { name: name.clone(), guid, temporary, fault };
        if cx.ask(&action, &request)?.is_none() {
            code = 1;
        }
    }
    if code == 0 {
        cx.log_history(name)?;
    }
    Ok(code)
}

/// With `-F` a pool that could not be opened is opened as it was a few txgs before; `-n` only says
/// what that would give up.
pub fn clear(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "FnX", &[("power", false, '\u{1}')]);
    let mut back = PoolImport::default();
    for option in options {
        match option {
            Opt::Flag('F', _) => back.rewind = true,
            Opt::Flag('n', _) => back.rewind_dry_run = true,
            Opt::Flag('X', _) => back.rewind_extreme = true,
            Opt::Flag('\u{1}', _) => {
                cx.err("Power control not supported");
                return Ok(1);
            }
            other => return cx.bad_option(other),
        }
    }
    let (name, device) = match operands.as_slice() {
        [] => return cx.bad_usage("missing pool name"),
        [pool] => (pool, None),
        [pool, device] => (pool, Some(device)),
        _ => return cx.bad_usage("too many arguments"),
    };
    if (back.rewind_dry_run || back.rewind_extreme) && !back.rewind {
        return cx.bad_usage("-n or -X only meaningful with -F");
    }
    let pool = one_pool(cx, name)?;
    let action = format!("cannot clear errors for {}", device.unwrap_or(name));
    let guid = match device {
        Some(device) => match lookup_cache(cx, &pool, device, &action)? {
            None => return Ok(1),
            guid => guid,
        },
        None => None,
    };
    // To an open pool nothing is given back, so there is nothing to say beforehand.
    let cleared = match back.rewind_dry_run {
        true if pool.health != PoolHealth::Unavail => return Ok(0),
        true => Err(ErrorCode::PoolUnavail.into()),
        false => cx.call(&PoolClear { name: name.clone(), guid })?,
    };
    match cleared {
        Ok(()) => {}
        Err(e) if e.code == ErrorCode::PoolUnavail => {
            return super::import::open_lost(cx, &action, &pool, back);
        }
        Err(e) => {
            cx.refused(&action, &e);
            return Ok(1);
        }
    }
    cx.log_history(name)?;
    Ok(0)
}

pub fn reopen(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "n", &[]);
    for option in options {
        match option {
            // A scrub under way goes on in any case.
            Opt::Flag('n', _) => {}
            other => return cx.bad_option(other),
        }
    }
    let (pools, mut failed) = cx.pools(&operands, PoolQuery::default())?;
    for pool in pools {
        let name = pool.name;
        let done = cx.ask(&format!("cannot reopen '{name}'"), &PoolReopen { name: name.clone() })?;
        failed |= done.is_none();
        if done.is_some() {
            cx.log_history(&name)?;
        }
    }
    Ok(u8::from(failed))
}

/// For tests of the intent log; OpenZFS does not list it either.
pub fn freeze(cx: &mut Cx, args: Vec<String>) -> Run {
    let [name] = args.as_slice() else { return cx.bad_usage("missing pool name argument") };
    let done = cx.ask(&format!("cannot freeze '{name}'"), &PoolFreeze { name: name.clone() })?;
    Ok(u8::from(done.is_none()))
}
