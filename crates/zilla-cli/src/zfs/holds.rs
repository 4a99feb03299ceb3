//! `zfs hold`, `holds` and `release`.

use super::change::log;
use crate::args::{self, Opt};
use crate::cx::{Cx, Exit, Run};
use crate::fmt::{one_line, time};
use zilla_control::error::{ApiError, ErrorCode};
use zilla_control::props;
use zilla_control::props::naming::{check_dataset_name, pool_of};
use zilla_control::types::{HoldInfo, SnapshotHold, SnapshotHolds, SnapshotRelease};

/// `-r`, a tag, and at least one snapshot.
fn words(cx: &mut Cx, args: &[String]) -> Result<(bool, String, Vec<String>), Exit> {
    let (options, operands) = args::parse(args, "r", &[]);
    let mut recursive = false;
    for option in options {
        match option {
            Opt::Flag('r', _) => recursive = true,
            other => return cx.bad_option(other),
        }
    }
    match operands.split_first() {
        Some((tag, names)) if !names.is_empty() => Ok((recursive, tag.clone(), names.to_vec())),
        _ => cx.print_usage(),
    }
}

/// Whether a word names a snapshot of what can be a dataset; complains if it does not.
fn is_snapshot(cx: &mut Cx, name: &str) -> bool {
    let Some((head, _)) = name.split_once('@') else {
        cx.err(format!("'{name}' is not a snapshot"));
        return false;
    };
    match check_dataset_name(head, props::HEADS, false) {
        Ok(()) => true,
        Err(e) => {
            cx.refused(&format!("cannot open '{head}'"), &e);
            false
        }
    }
}

/// A refusal: about the dataset that is not there, or about a snapshot.
fn refused(cx: &mut Cx, action: &str, name: &str, e: &ApiError) {
    let subject = e.subject.as_deref().unwrap_or(name);
    if e.code == ErrorCode::NoEnt && !subject.contains('@') {
        cx.refused(&format!("cannot open '{subject}'"), e);
    } else {
        cx.refused(&format!("{action} '{subject}'"), e);
    }
}

pub fn hold(cx: &mut Cx, args: Vec<String>) -> Run {
    let (recursive, tag, names) = words(cx, &args)?;
    if tag.starts_with('.') {
        // OpenZFS's library uses such tags itself.
        return cx.bad_usage("tag may not start with '.'");
    }
    let (mut failed, mut changed) = (false, Vec::new());
    for name in names {
        if !is_snapshot(cx, &name) {
            failed = true;
            continue;
        }
        let request = SnapshotHold { snapshot: name.clone(), tag: tag.clone(), recursive };
        match cx.call(&request)? {
            Ok(()) => changed.push(pool_of(&name).to_owned()),
            Err(e) => {
                refused(cx, "cannot hold snapshot", &name, &e);
                failed = true;
            }
        }
    }
    log(cx, changed, failed)?;
    Ok(u8::from(failed))
}

pub fn release(cx: &mut Cx, args: Vec<String>) -> Run {
    let (recursive, tag, names) = words(cx, &args)?;
    let (mut failed, mut changed) = (false, Vec::new());
    for name in names {
        if !is_snapshot(cx, &name) {
            failed = true;
            continue;
        }
        let request = SnapshotRelease { snapshot: name.clone(), tag: tag.clone(), recursive };
        match cx.call(&request)? {
            Ok(()) => changed.push(pool_of(&name).to_owned()),
            Err(e) => {
                refused(cx, "cannot release hold from snapshot", &name, &e);
                failed = true;
            }
        }
    }
    log(cx, changed, failed)?;
    Ok(u8::from(failed))
}

pub fn holds(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, names) = args::parse(&args, "rHp", &[]);
    let (mut recursive, mut scripted, mut parsable) = (false, false, false);
    for option in options {
        match option {
            Opt::Flag('r', _) => recursive = true,
            Opt::Flag('H', _) => scripted = true,
            Opt::Flag('p', _) => parsable = true,
            other => return cx.bad_option(other),
        }
    }
    if names.is_empty() {
        return cx.print_usage();
    }
    let (mut failed, mut asked) = (false, false);
    let mut all: Vec<HoldInfo> = Vec::new();
    for name in names {
        if !is_snapshot(cx, &name) {
            failed = true;
            continue;
        }
        match cx.call(&SnapshotHolds { snapshot: name.clone(), recursive })? {
            Ok(list) => {
                asked = true;
                for hold in list {
                    // One may have been asked for twice.
                    if !all.contains(&hold) {
                        all.push(hold);
                    }
                }
            }
            Err(e) => {
                let action = if e.code == ErrorCode::NoEnt { "cannot open" } else { "cannot get holds of" };
                refused(cx, action, &name, &e);
                failed = true;
            }
        }
    }
    cx.out.put(table(&all, scripted, parsable));
    if !asked {
        cx.err("no datasets available");
    }
    Ok(u8::from(failed))
}

fn table(list: &[HoldInfo], scripted: bool, parsable: bool) -> String {
    let tags: Vec<_> = list.iter().map(|h| one_line(&h.tag)).collect();
    let names = list.iter().map(|h| h.snapshot.len()).max().unwrap_or(0);
    let width = tags.iter().map(|tag| tag.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    if !scripted {
        text.push_str(&format!("{:<names$}  {:<width$}  TIMESTAMP\n", "NAME", "TAG"));
    }
    for (hold, tag) in list.iter().zip(tags) {
        let time = if parsable { hold.time.to_string() } else { time::hold(hold.time) };
        text.push_str(&match scripted {
            true => format!("{}\t{tag}\t{time}\n", hold.snapshot),
            false => format!("{:<names$}  {tag:<width$}  {time}\n", hold.snapshot),
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_no_other_snapshot_s_line() {
        let hold = |tag: &str| HoldInfo { snapshot: "tank@a".into(), tag: tag.into(), time: 7 };
        let list = [hold("x\t1\ntank@b\tkeep"), hold("y")];
        let text = table(&list, true, true);
        assert_eq!(text, "tank@a\tx\\00111\\0012tank@b\\0011keep\t7\ntank@a\ty\t7\n");
        assert_eq!(table(&list, false, true).lines().count(), 3);
    }
}
