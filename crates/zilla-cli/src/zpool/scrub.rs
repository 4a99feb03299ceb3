//! `zpool scrub` and `resilver`.

use crate::args::{self, Opt};
use crate::cx::{Cx, Run};
use zilla_control::types::{
    Activity, CheckpointState, PoolQuery, PoolResilver, PoolScrub, ScrubCommand, VdevState,
};

pub fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "spweC", &[]);
    let (mut errors, mut stop, mut pause, mut wait, mut proceed) = (false, false, false, false, false);
    for option in options {
        match option {
            Opt::Flag('e', _) => errors = true,
            Opt::Flag('s', _) => stop = true,
            Opt::Flag('p', _) => pause = true,
            Opt::Flag('w', _) => wait = true,
            Opt::Flag('C', _) => proceed = true,
            other => return cx.bad_option(other),
        }
    }
    let exclusive = [
        (pause && stop, "-s and -p"),
        (pause && proceed, "-p and -C"),
        (stop && proceed, "-s and -C"),
        (errors && proceed, "-e and -C"),
    ];
    for (both, which) in exclusive {
        if both {
            return cx.bad_usage(format!("invalid option combination: {which} are mutually exclusive"));
        }
    }
    if wait && (stop || pause) {
        return cx.bad_usage("invalid option combination: -w cannot be used with -p or -s");
    }
    if operands.is_empty() {
        return cx.bad_usage("missing pool name argument");
    }
    let command = match (stop, pause) {
        (true, _) => ScrubCommand::Stop,
        (_, true) => ScrubCommand::Pause,
        _ => ScrubCommand::Start,
    };
    let (pools, mut failed) = cx.pools(&operands, PoolQuery::default())?;
    let mut started = Vec::new();
    for pool in &pools {
        let name = pool.name.clone();
        if pool.root.stats.state == VdevState::CantOpen {
            cx.err(format!("cannot scan '{name}': pool is currently unavailable"));
            failed = true;
            continue;
        }
        let action = match command {
            ScrubCommand::Start => format!("cannot scrub {name}"),
            ScrubCommand::Pause => format!("cannot pause scrubbing {name}"),
            ScrubCommand::Stop => format!("cannot cancel scrubbing {name}"),
        };
        let request = PoolScrub { name: name.clone(), command, errors_only: errors, from_last_txg: proceed };
        if cx.ask(&action, &request)?.is_none() {
            failed = true;
            continue;
        }
        let checkpointed = pool.checkpoint.as_ref().is_some_and(|c| c.state != CheckpointState::None);
        if checkpointed && command == ScrubCommand::Start && !errors {
            cx.out.line(format!(
                "warning: will not scrub state that belongs to the checkpoint of pool '{name}'"
            ));
        }
        started.push(name);
    }
    for name in &started {
        cx.log_history(name)?;
    }
    if wait && !failed {
        for name in &started {
            super::wait::until_done(cx, name, &[Activity::Scrub])?;
        }
    }
    Ok(u8::from(failed))
}

pub fn resilver(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "", &[]);
    if let Some(option) = options.into_iter().next() {
        return cx.bad_option(option);
    }
    if operands.is_empty() {
        return cx.bad_usage("missing pool name argument");
    }
    let (pools, mut failed) = cx.pools(&operands, PoolQuery::default())?;
    for pool in pools {
        let name = pool.name;
        let done =
            cx.ask(&format!("cannot restart resilver on {name}"), &PoolResilver { name: name.clone() })?;
        failed |= done.is_none();
        if done.is_some() {
            cx.log_history(&name)?;
        }
    }
    Ok(u8::from(failed))
}
