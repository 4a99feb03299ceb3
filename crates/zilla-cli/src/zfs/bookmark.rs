//! `zfs bookmark`.

use crate::args;
use crate::cx::{Cx, Run};
use zilla_control::props;
use zilla_control::props::naming::{check_dataset_name, pool_of};
use zilla_control::types::{DatasetBookmark, DatasetKind, DatasetQuery};

pub fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "", &[]);
    if let Some(option) = options.into_iter().next() {
        return cx.bad_option(option);
    }
    let (mut source, mut target) = match operands.as_slice() {
        [] => return cx.bad_usage("missing source argument"),
        [_] => return cx.bad_usage("missing bookmark argument"),
        [source, target, ..] => (source.clone(), target.clone()),
    };
    if !source.contains(['@', '#']) {
        return cx.bad_usage(format!("invalid source name '{source}': must contain a '@' or '#'"));
    }
    if !target.contains('#') {
        return cx.bad_usage(format!("invalid bookmark name '{target}': must contain a '#'"));
    }
    // One of them may go without its dataset, which is the other's.
    match (source.starts_with(['@', '#']), target.starts_with('#')) {
        (true, true) => {
            return cx.bad_usage("either source or bookmark must be specified as full dataset paths");
        }
        (false, true) => target = format!("{}{target}", dataset(&source)),
        (true, false) => source = format!("{}{source}", dataset(&target)),
        (false, false) => {}
    }
    let action = format!("cannot open '{source}'");
    let types = if source.contains('@') { props::SNAP } else { props::BOOK };
    if let Err(e) = check_dataset_name(&source, types, false) {
        cx.refused(&action, &e);
        return cx.print_usage();
    }
    let query = DatasetQuery {
        roots: vec![source.clone()],
        depth: Some(0),
        kinds: vec![DatasetKind::Snapshot, DatasetKind::Bookmark],
        ..DatasetQuery::default()
    };
    let Some(reply) = cx.ask(&action, &query)? else { return Ok(1) };
    if let Some(e) = reply.errors.first() {
        cx.refused(&action, e);
        return cx.print_usage();
    }
    let request = DatasetBookmark { source, target: target.clone() };
    match cx.ask(&format!("cannot create bookmark '{target}'"), &request)? {
        None => Ok(1),
        Some(()) => {
            cx.log_history(pool_of(&target))?;
            Ok(0)
        }
    }
}

fn dataset(name: &str) -> &str {
    name.split(['@', '#']).next().unwrap_or(name)
}
