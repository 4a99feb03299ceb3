//! Any words as command lines of `zpool`, `zfs` and `zilla`'s other commands: each ends with an
//! exit code, having asked nobody.
//!
//! The first byte says which program, the second which of its commands; lines behind them are the
//! words. No daemon is there, so what is right ends where it would ask. Commands that change files
//! by themselves are left out. Most inputs print something: `-close_fd_mask=3`.
#![no_main]
use libfuzzer_sys::fuzz_target;
use std::sync::Once;

const ZPOOL: &[&str] = &[
    "create", "destroy", "add", "remove", "labelclear", "checkpoint", "list", "iostat", "status", "online", "offline", "clear",
    "reopen", "attach", "detach", "replace", "split", "initialize", "resilver", "scrub", "trim", "import", "export", "upgrade",
    "reguid", "history", "events", "get", "set", "sync", "wait", "version", "help", "prefetch", "ddtprune",
];
const ZFS: &[&str] = &[
    "version", "create", "destroy", "snapshot", "rollback", "clone", "promote", "rename", "bookmark", "list", "set", "get",
    "inherit", "upgrade", "userspace", "groupspace", "projectspace", "mount", "unmount", "share", "unshare", "send", "receive",
    "allow", "unallow", "hold", "holds", "release", "diff", "load-key", "unload-key", "change-key", "redact", "wait", "program",
    "help", "jail", "zone",
];
/// Words that work on files past the daemon, whatever they are called by.
const APART: &[&str] = &["project", "rewrite"];

fn alone() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // No folder can be there, and no daemon be started in it.
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var("ZILLA_DIR", "/dev/null/zilla") };
    });
}

fuzz_target!(|data: &[u8]| {
    alone();
    let Some(([program, command], words)) = data.split_first_chunk() else { return };
    let Ok(words) = std::str::from_utf8(words) else { return };
    // As the kernel gives them, words have no NUL.
    if words.contains('\0') {
        return;
    }
    let (run, names): (fn(Vec<String>) -> u8, &[&str]) = match program % 2 {
        0 => (zilla_cli::zpool::main, ZPOOL),
        _ => (zilla_cli::zfs::main, ZFS),
    };
    let mut line: Vec<String> = words.lines().map(str::to_owned).collect();
    // Some lines have their command's name among the words.
    if let Some(name) = names.get(usize::from(*command)) {
        line.insert(0, (*name).to_owned());
    }
    if line.first().is_some_and(|w| APART.contains(&w.as_str())) {
        return;
    }
    let code = run(line.clone());
    assert!(code <= 2 || code == 255, "{line:?} ends with {code}");
});
