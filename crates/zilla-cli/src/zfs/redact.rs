//! `zfs redact`.

use crate::args;
use crate::cx::{Cx, Run};
use zilla_control::ErrorCode;
use zilla_control::props::naming::pool_of;
use zilla_control::types::DatasetRedact;

/// The command exits with the number of the error, as OpenZFS's does.
fn exit(code: ErrorCode) -> u8 {
    match code {
        ErrorCode::NoEnt => 2,
        ErrorCode::NoSource => 3,
        ErrorCode::PoolInvalArg => 7,
        ErrorCode::Exists => 17,
        ErrorCode::CrossTarget => 18,
        ErrorCode::BadType => 22,
        ErrorCode::NameTooLong => 36,
        ErrorCode::BadVersion => 95,
        ErrorCode::Busy => 114,
        _ => 1,
    }
}

pub fn redact(cx: &mut Cx, words: Vec<String>) -> Run {
    let (options, operands) = args::parse(&words, "", &[]);
    if let Some(option) = options.into_iter().next() {
        return cx.bad_option(option);
    }
    let [snapshot, bookmark, snapshots @ ..] = operands.as_slice() else {
        return cx.bad_usage("too few arguments");
    };
    if snapshots.is_empty() {
        return cx.bad_usage("too few arguments");
    }
    let request = DatasetRedact {
        snapshot: snapshot.clone(),
        bookmark: bookmark.clone(),
        snapshots: snapshots.to_vec(),
    };
    match cx.call(&request)? {
        Ok(()) => {
            cx.log_history(pool_of(snapshot))?;
            Ok(0)
        }
        Err(e) => {
            cx.err(e.description());
            Ok(exit(e.code))
        }
    }
}
