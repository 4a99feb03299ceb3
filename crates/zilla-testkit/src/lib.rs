//! What tests of several crates share: OpenZFS's `zdb`, the judge of every pool that a test leaves
//! behind, and a block store in memory (`memory`, behind a feature since it needs the engine).
//!
//! Where it is not installed a test says so and goes on without its opinion, except where `CI` is
//! set: there it fails.
//!
//! **Its end.** `zdb -bcc` has found and said everything when it calls libzpool's `kernel_fini`,
//! and then works for six seconds on emptying a cache that the process ends with. There are
//! hundreds of runs of it in a run of the tests, which took half of their time. Where
//! `ZILLA_ZDB_PRELOAD` names `scripts/zdb-exit.c`, compiled, `zdb` leaves without that; what it
//! says and its exit code are the same. The long proofs (`make judges`) run it as it is.

#[cfg(feature = "memory")]
pub mod memory;

use std::path::Path;
use std::process::Command;

/// Where OpenZFS's is. Ours has the same name, so no search along `PATH`.
pub const ZDB: &str = "/usr/sbin/zdb";

/// OpenZFS's `zdb`, if it is installed.
pub fn zdb() -> Option<Command> {
    if !Path::new(ZDB).exists() {
        assert!(std::env::var_os("CI").is_none(), "OpenZFS's zdb is needed, and is not at {ZDB}");
        eprintln!("OpenZFS's zdb is not installed: nobody else has looked at this pool");
        return None;
    }
    let mut zdb = Command::new(ZDB);
    if let Some(library) = std::env::var_os("ZILLA_ZDB_PRELOAD").filter(|l| !l.is_empty()) {
        zdb.env("LD_PRELOAD", library);
    }
    Some(zdb)
}

/// What it says with these words behind it, if it is installed; it has to succeed.
#[track_caller]
pub fn zdb_says(args: &[&str]) -> Option<String> {
    let done = zdb()?.args(args).output().expect("zdb");
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let text = said + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "zdb {args:?}: {}\n{text}", done.status);
    Some(text)
}

/// The same of the exported pool whose devices are in a folder.
#[track_caller]
pub fn zdb_of(dir: &Path, pool: &str, options: &[&str]) -> Option<String> {
    let dir = dir.to_str().expect("a path in UTF-8");
    zdb_says(&[options, &["-e", "-p", dir, pool]].concat())
}

/// Every block of an exported pool is accounted for, and has its checksum.
#[track_caller]
pub fn zdb_clean(dir: &Path, pool: &str) {
    let Some(text) = zdb_of(dir, pool, &["-bcc"]) else { return };
    let bad = ["leaked space", "double", "block traversal size", "errors", "ABORTING", "mismatch"];
    let clean = text.contains("No leaks") && !bad.iter().any(|words| text.contains(words));
    assert!(clean, "OpenZFS finds errors in '{pool}':\n{text}");
}
