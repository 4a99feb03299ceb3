//! `zfs receive`.

use super::keys::of_new;
use super::stream::{Pipe, hand_over, told};
use crate::args::{self, Opt};
use crate::cx::{Cx, Run};
use std::collections::BTreeSet;
use std::io::IsTerminal;
use zilla_control::ErrorCode;
use zilla_control::props;
use zilla_control::types::{ReceiveAbort, StreamReceive};

pub fn receive(cx: &mut Cx, words: Vec<String>) -> Run {
    let (options, operands) = args::parse(&words, ":o:x:dehMnuvFsAc", &[]);
    let mut r = StreamReceive::default();
    let mut abort = false;
    // By the name that a property has beside shorter ones.
    let mut named = BTreeSet::new();
    let mut again = |name: &str| {
        let proper = props::dataset_prop(name).map_or(name, |p| p.name);
        !named.insert(proper.to_owned())
    };
    for option in options {
        match option {
            Opt::Flag('o', v) => {
                let Some((name, value)) = v.split_once('=') else {
                    return cx.bad_usage(format!("missing '=' for property=value argument '{v}'"));
                };
                if again(name) {
                    return cx.bad_usage(format!("property '{name}' specified multiple times"));
                }
                if name == "origin" {
                    r.origin = Some(value.to_owned());
                } else {
                    r.set.insert(name.to_owned(), value.to_owned());
                }
            }
            Opt::Flag('x', name) if again(&name) => {
                return cx.bad_usage(format!("property '{name}' specified multiple times"));
            }
            Opt::Flag('x', v) => r.exclude.push(v),
            Opt::Flag('d', _) => r.keep_path = true,
            Opt::Flag('e', _) => r.keep_last = true,
            Opt::Flag('h', _) => r.skip_holds = true,
            Opt::Flag('M', _) => r.force_unmount = true,
            Opt::Flag('n', _) => r.dry_run = true,
            Opt::Flag('u', _) => r.no_mount = true,
            Opt::Flag('v', _) => r.verbose = true,
            Opt::Flag('F', _) => r.force = true,
            Opt::Flag('s', _) => r.resumable = true,
            Opt::Flag('A', _) => abort = true,
            Opt::Flag('c', _) => r.heal = true,
            other => return cx.bad_option(other),
        }
    }
    if r.keep_path && r.keep_last {
        return cx.bad_usage("invalid option combination: -d and -e are mutually exclusive");
    }
    let [target] = operands.as_slice() else {
        return match operands.is_empty() {
            true => cx.bad_usage("missing snapshot argument"),
            false => cx.bad_usage("too many arguments"),
        };
    };
    if abort {
        if r != StreamReceive::default() {
            return cx.print_usage();
        }
        return match cx.call(&ReceiveAbort { name: target.clone() })? {
            Ok(()) => Ok(0),
            Err(e) if e.code == ErrorCode::NoEnt => {
                cx.bad_usage(format!("cannot open '{target}': {}", e.description()))
            }
            Err(e) => {
                cx.err(e.description());
                Ok(1)
            }
        };
    }
    if std::io::stdin().is_terminal() {
        cx.err("Error: Backup stream can not be read from a terminal.\nYou must redirect standard input.");
        return Ok(1);
    }
    r.target.clone_from(target);
    // Standard input has the stream, not a key.
    if r.set.get("keylocation").is_some_and(|place| place != "prompt") {
        r.key = of_new(cx, &r.set, "cannot receive new filesystem stream")?;
    }
    let handed = hand_over(cx, Pipe::Input)?;
    r.stream = handed.key().to_owned();
    match told(cx, handed, &r)? {
        Ok(()) => Ok(0),
        Err(e) => {
            let text = e.description();
            match (e.code, &e.subject) {
                (ErrorCode::Stream, _) => cx.err(text),
                (_, Some(subject)) => cx.err(format!("cannot open '{subject}': {text}")),
                (_, None) => cx.err(format!("cannot receive: {text}")),
            }
            e.details.iter().for_each(|l| cx.err(l));
            Ok(1)
        }
    }
}
