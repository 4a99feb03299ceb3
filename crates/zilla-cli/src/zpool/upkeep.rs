//! `zpool initialize` and `zpool trim`.

use crate::args::{self, Long, Opt};
use crate::cx::{Cx, Exit, Run};
use crate::fmt::vdev;
use std::collections::BTreeMap;
use zilla_control::error::ErrorCode;
use zilla_control::props;
use zilla_control::types::{Activity, AllocClass, PoolInfo, Upkeep, UpkeepCommand, VdevNode, VdevUpkeep};

/// Of whatever is refused: OpenZFS's answer is -1, also where there is no such pool.
const NOT_DONE: Exit = Exit(255);

/// What both commands make of their words.
struct Wanted {
    kind: Upkeep,
    command: UpkeepCommand,
    wait: bool,
    rate: Option<u64>,
    secure: bool,
}

pub fn initialize(cx: &mut Cx, args: Vec<String>) -> Run {
    const LONG: &[Long] =
        &[("cancel", false, 'c'), ("suspend", false, 's'), ("uninit", false, 'u'), ("wait", false, 'w')];
    let (options, operands) = args::parse(&args, "csuw", LONG);
    let mut wanted = Wanted::new(Upkeep::Initialize);
    for option in options {
        match option {
            Opt::Flag('w', _) => wanted.wait = true,
            Opt::Flag('c', _) => wanted.command(cx, 'c', UpkeepCommand::Cancel)?,
            Opt::Flag('s', _) => wanted.command(cx, 's', UpkeepCommand::Suspend)?,
            Opt::Flag('u', _) => wanted.command(cx, 'u', UpkeepCommand::Uninitialize)?,
            other => return cx.bad_option(other),
        }
    }
    if wanted.wait && wanted.command != UpkeepCommand::Start && !operands.is_empty() {
        return cx.bad_usage("-w cannot be used with -c, -s or -u");
    }
    wanted.run(cx, &operands)
}

pub fn trim(cx: &mut Cx, args: Vec<String>) -> Run {
    const LONG: &[Long] = &[
        ("cancel", false, 'c'),
        ("secure", false, 'd'),
        ("rate", true, 'r'),
        ("suspend", false, 's'),
        ("wait", false, 'w'),
    ];
    let (options, operands) = args::parse(&args, "cdr:sw", LONG);
    let mut wanted = Wanted::new(Upkeep::Trim);
    for option in options {
        let starts = wanted.command == UpkeepCommand::Start;
        match option {
            Opt::Flag('w', _) => wanted.wait = true,
            Opt::Flag(which @ ('d' | 'r'), _) if !starts => {
                return cx.bad_usage(format!("-{which} cannot be combined with the -c or -s options"));
            }
            Opt::Flag('d', _) => wanted.secure = true,
            Opt::Flag('r', text) => match props::parse_size(&text) {
                Ok(rate) => wanted.rate = Some(rate),
                Err(e) => return cx.bad_usage(format!("invalid value for rate: {e}")),
            },
            Opt::Flag('c', _) => wanted.command(cx, 'c', UpkeepCommand::Cancel)?,
            Opt::Flag('s', _) => wanted.command(cx, 's', UpkeepCommand::Suspend)?,
            other => return cx.bad_option(other),
        }
    }
    if wanted.wait && wanted.command != UpkeepCommand::Start && !operands.is_empty() {
        return cx.bad_usage("-w cannot be used with -c or -s");
    }
    wanted.run(cx, &operands)
}

impl Wanted {
    fn new(kind: Upkeep) -> Wanted {
        Wanted { kind, command: UpkeepCommand::Start, wait: false, rate: None, secure: false }
    }

    fn command(&mut self, cx: &mut Cx, letter: char, command: UpkeepCommand) -> Result<(), Exit> {
        if self.command != UpkeepCommand::Start && self.command != command {
            return cx.bad_usage(format!("-{letter} cannot be combined with other options"));
        }
        self.command = command;
        Ok(())
    }

    fn run(self, cx: &mut Cx, operands: &[String]) -> Run {
        let Some((name, devices)) = operands.split_first() else {
            return cx.bad_usage("missing pool name argument");
        };
        let pool = super::vdevs::one_pool(cx, name).map_err(|_| NOT_DONE)?;
        let verb = if self.kind == Upkeep::Trim { "trim" } else { "initialize" };
        let mut failed = false;
        let mut names = BTreeMap::new();
        if devices.is_empty() {
            leaves(&pool.root, &mut names);
        }
        for device in devices {
            match find(&pool, device) {
                Ok(guid) => drop(names.insert(guid, device.clone())),
                Err(code) => {
                    cx.refused(&format!("cannot {verb} '{device}'"), &code.into());
                    failed = true;
                }
            }
        }
        if failed {
            return Err(NOT_DONE);
        }
        let guids: Vec<u64> = names.keys().copied().collect();
        let request = VdevUpkeep {
            name: name.clone(),
            kind: self.kind,
            command: self.command,
            guids: guids.clone(),
            rate: self.rate,
            secure: self.secure,
        };
        let Some(reply) = cx.ask(&format!("cannot {verb} '{name}'"), &request)? else { return Err(NOT_DONE) };
        // Of a whole pool those devices are passed over that cannot be trimmed, unless none can.
        let passed = |code| code == ErrorCode::TrimNotSup && devices.is_empty() && !self.secure;
        let refused = reply.refused.len();
        let told: Vec<_> = reply.refused.into_iter().filter(|(_, e)| !passed(e.code)).collect();
        for (guid, error) in &told {
            let device = names.get(guid).map_or("-", String::as_str);
            cx.refused(&format!("cannot {verb} '{device}'"), error);
        }
        if told.is_empty() && refused > 0 && refused == guids.len() {
            cx.err("cannot trim: no devices in pool support trim operations");
            return Err(NOT_DONE);
        }
        if !told.is_empty() {
            return Err(NOT_DONE);
        }
        cx.log_history(name)?;
        if self.wait {
            let what = if self.kind == Upkeep::Trim { Activity::Trim } else { Activity::Initialize };
            super::wait::until_done_on(cx, name, what, &guids)?;
        }
        Ok(0)
    }
}

/// All devices of the pool's vdevs.
fn leaves(vdev: &VdevNode, names: &mut BTreeMap<u64, String>) {
    if vdev.children.is_empty()
        && let Some(path) = &vdev.path
    {
        names.insert(vdev.guid, path.clone());
    }
    vdev.children.iter().for_each(|c| leaves(c, names));
}

fn find(pool: &PoolInfo, word: &str) -> Result<u64, ErrorCode> {
    match vdev::find(pool, word) {
        Some((v, AllocClass::Normal)) if v.children.is_empty() => Ok(v.guid),
        Some((_, AllocClass::Spare)) => Err(ErrorCode::IsSpare),
        Some((_, AllocClass::Cache)) => Err(ErrorCode::IsL2cache),
        Some(_) => Err(ErrorCode::BadDev),
        None => Err(ErrorCode::NoDevice),
    }
}
