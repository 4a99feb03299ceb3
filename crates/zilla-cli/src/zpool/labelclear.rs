//! `zpool labelclear`.

use super::vdevspec::{self, SpecError};
use crate::args::{self, Opt};
use crate::cx::{Cx, Run};
use zilla_control::error::ErrorCode;
use zilla_control::types::LabelClear;

pub fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "f", &[]);
    let mut force = false;
    for option in options {
        match option {
            Opt::Flag('f', _) => force = true,
            other => return cx.bad_option(other),
        }
    }
    let device = match operands.as_slice() {
        [] => return cx.bad_usage("missing vdev name"),
        [device] => device,
        _ => return cx.bad_usage("too many arguments"),
    };
    let path = match vdevspec::leaf(device) {
        Ok(leaf) => leaf.path,
        Err(SpecError::Invalid(_) | SpecError::Overridable(_)) => {
            cx.err(format!("failed to find device {device}, try specifying absolute path instead"));
            return Ok(1);
        }
    };
    match cx.call(&LabelClear { path, force })? {
        Ok(()) => Ok(0),
        Err(e) if e.code == ErrorCode::VdevInvalid => {
            e.details.iter().for_each(|line| cx.err(line));
            Ok(1)
        }
        Err(e) => {
            cx.refused(&format!("failed to clear label for {device}"), &e);
            Ok(1)
        }
    }
}
