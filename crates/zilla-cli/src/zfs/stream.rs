//! What send and receive share: handing the pipe to the daemon, and showing what it says meanwhile.
//!
//! From who does not own it the daemon takes pipes without names alone. What else a guest's stream
//! comes from or goes to is copied here, from or to such a pipe.

use crate::cx::{Cx, Exit, Out};
use crate::fmt::time;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::thread::JoinHandle;
use zilla_control::handover::{self, Handed, LOCAL_TIME, TO_STDERR, TO_TITLE};
use zilla_control::{ApiError, Operation, StateDir};

/// Which end of the command a stream goes through.
#[derive(Clone, Copy)]
pub enum Pipe {
    Input,
    Output,
}

/// What the daemon has, and what is copied for it here.
pub struct Given {
    handed: Handed,
    output: Option<JoinHandle<io::Result<u64>>>,
}

impl Given {
    pub fn key(&self) -> &str {
        &self.handed.key
    }
}

/// Gives the daemon the pipe of a stream.
pub fn hand_over(cx: &mut Cx, pipe: Pipe) -> Result<Given, Exit> {
    let dir = cx.client()?.state_dir().clone();
    give(&dir, pipe).map_err(|e| {
        cx.err(format!("{}: {e}", cx.program));
        Exit(1)
    })
}

fn give(dir: &StateDir, pipe: Pipe) -> Result<Given, String> {
    let end = |fd: BorrowedFd<'_>| handover::hand_over(dir, fd).map_err(|e| e.to_string());
    let copied = |fd: BorrowedFd<'_>| !handover::is_nameless_pipe(&fd) && is_guest(dir);
    let mut output = None;
    let handed = match pipe {
        Pipe::Input if copied(io::stdin().as_fd()) => {
            let (from, mut to) = io::pipe().map_err(|e| e.to_string())?;
            let mut input = own(io::stdin().as_fd())?;
            // It ends with its input, with the daemon's interest in it, or with the command.
            std::thread::spawn(move || io::copy(&mut input, &mut to));
            end(from.as_fd())?
        }
        Pipe::Output if copied(io::stdout().as_fd()) => {
            let (mut from, to) = io::pipe().map_err(|e| e.to_string())?;
            let mut all = own(io::stdout().as_fd())?;
            let handed = end(to.as_fd())?;
            output = Some(std::thread::spawn(move || io::copy(&mut from, &mut all)));
            handed
        }
        Pipe::Input => end(io::stdin().as_fd())?,
        Pipe::Output => end(io::stdout().as_fd())?,
    };
    Ok(Given { handed, output })
}

fn own(fd: BorrowedFd<'_>) -> Result<File, String> {
    fd.try_clone_to_owned().map(File::from).map_err(|e| e.to_string())
}

fn is_guest(dir: &StateDir) -> bool {
    let user = rustix::process::geteuid();
    !user.is_root() && std::fs::metadata(dir.path()).is_ok_and(|m| m.uid() != user.as_raw())
}

/// Asks, and prints the daemon's lines until it has answered.
pub fn told<O: Operation<Reply = ()>>(
    cx: &mut Cx,
    Given { handed, output }: Given,
    request: &O,
) -> Result<Result<(), ApiError>, Exit> {
    let shown = handed.try_clone().map(|lines| {
        std::thread::spawn(move || {
            lines.lines(|to, text| {
                if to == TO_TITLE {
                    // The kernel takes the first 15 bytes.
                    let _ = std::fs::write("/proc/self/comm", text);
                    return;
                }
                let text = match text.strip_prefix(LOCAL_TIME) {
                    Some(rest) => format!("{}{rest}", time::of_day(time::now())),
                    None => text.to_owned(),
                };
                // Lines of one kind stay in order.
                if to == TO_STDERR { eprintln!("{text}") } else { Out::new().say(format!("{text}\n")) }
            });
        })
    });
    let answer = cx.call(request);
    // The daemon is done, so it says no more: what it said is read to its end.
    handed.end();
    if let Ok(shown) = shown {
        let _ = shown.join();
    }
    // (A refused request has not taken the pipe, whose other end then stays open.)
    let output = output.filter(|_| matches!(answer, Ok(Ok(()))));
    if let Some(Ok(Err(e))) = output.map(JoinHandle::join) {
        cx.err(format!("the stream cannot be written: {e}"));
        return Err(Exit(1));
    }
    answer
}
