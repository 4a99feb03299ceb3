//! `zilla clone-file`: a new file that shares all blocks of another, within a file system or
//! between those of a pool.

use crate::args;
use crate::cx::{Cx, Run};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use zilla_control::types::{FileClone, FileId};

const USAGE: &str = "usage:
\tzilla clone-file file new-file
";

fn usage(cx: &mut Cx, requested: bool) {
    cx.put_usage(USAGE, requested);
}

pub fn main(args: Vec<String>) -> u8 {
    Cx::main("zilla clone-file", args, usage, run)
}

fn id(path: &str, file: &File) -> std::io::Result<FileId> {
    let m = file.metadata()?;
    Ok(FileId { path: path.to_owned(), device: m.dev(), inode: m.ino() })
}

fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "", &[]);
    if let Some(option) = options.into_iter().next() {
        return cx.bad_option(option);
    }
    let [from, to] = operands.as_slice() else {
        return cx.bad_usage(if operands.len() < 2 { "missing file argument" } else { "too many arguments" });
    };
    // Whether their user may read the one and make the other is the kernel's to say.
    let opened = File::open(from).and_then(|f| {
        let mode = f.metadata()?.permissions().mode() & 0o777;
        Ok((id(from, &f)?, f, mode))
    });
    let (source, _open, mode) = match opened {
        Ok(found) => found,
        Err(e) => {
            cx.err(format!("cannot clone '{from}': {e}"));
            return Ok(1);
        }
    };
    let made = OpenOptions::new().write(true).create_new(true).mode(mode).open(to);
    let target = match made.and_then(|f| Ok((id(to, &f)?, f))) {
        Ok(found) => found,
        Err(e) => {
            cx.err(format!("cannot create '{to}': {e}"));
            return Ok(1);
        }
    };
    let request = FileClone { from: source, to: target.0 };
    match cx.ask(&format!("cannot clone '{from}'"), &request)? {
        Some(_) => Ok(0),
        None => {
            // It is empty, or has a part only.
            let _ = std::fs::remove_file(Path::new(to));
            Ok(1)
        }
    }
}
