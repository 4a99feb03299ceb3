//! `zfs wait`.

use crate::args::{self, Opt};
use crate::cx::{Cx, Run};
use zilla_control::props;
use zilla_control::props::naming::check_dataset_name;
use zilla_control::types::DatasetWait;

/// What can be waited for: files without a name that are being freed.
const ACTIVITY: &str = "deleteq";

pub fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "t:", &[]);
    for option in options {
        match option {
            Opt::Flag('t', text) => {
                if let Some(word) = text.split(',').find(|w| *w != ACTIVITY) {
                    return cx.bad_usage(format!("invalid activity '{word}'"));
                }
            }
            other => return cx.bad_option(other),
        }
    }
    let name = match operands.as_slice() {
        [] => return cx.bad_usage("missing 'filesystem' argument"),
        [name] => name.clone(),
        _ => return cx.bad_usage("too many arguments"),
    };
    let action = format!("cannot open '{name}'");
    if let Err(e) = check_dataset_name(&name, props::FS, false) {
        cx.refused(&action, &e);
        return Ok(1);
    }
    loop {
        match cx.ask(&action, &DatasetWait { name: name.clone() })? {
            None => return Ok(1),
            Some(true) => return Ok(0),
            Some(false) => {}
        }
    }
}
