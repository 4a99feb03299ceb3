//! Every set of pools that OpenZFS made: read without writing, and written and given back.
//!
//! A set that is not on this machine is passed over; the few in `corpus/` always are.

use zilla_e2e::{Need, can};
use zilla_interop::{find, folders, read_only, read_write};

macro_rules! sets {
    ($($set:ident $name:literal)*) => {
        const NAMES: &[&str] = &[$($name,)*];
        $(mod $set {
            use super::*;

            #[test]
            fn is_read_as_described() {
                check($name, read_only);
            }

            #[test]
            fn is_written_and_given_back() {
                check($name, read_write);
            }
        })*
    };
}

sets! {
    brt "brt"
    checksum "checksum"
    compress "compress"
    crash "crash"
    crypt "crypt"
    deduplicated "deduplicated"
    dirs "dirs"
    gpt "gpt"
    mirror_log_cache "mirror-log-cache"
    names "names"
    raidz1 "raidz1"
    raidz2 "raidz2"
    recordsize "recordsize"
    single "single"
    snapshots "snapshots"
    streams "streams"
    v28 "v28"
    xattr_acl "xattr-acl"
    zvol "zvol"
}

fn check(name: &str, with: fn(&std::path::Path, &str)) {
    match find(name) {
        // Their files belong to several users.
        Some(archive) if can(&[Need::Fuse, Need::Root]) => with(&archive, name),
        Some(_) => {}
        None => eprintln!("{name}: not on this machine"),
    }
}

/// Sets made since, or of one's own.
#[test]
fn all_others() {
    for folder in folders() {
        for entry in std::fs::read_dir(&folder).expect("corpus") {
            let file = entry.expect("corpus").file_name().to_string_lossy().into_owned();
            if let Some(name) = file.strip_suffix(".tar.zst").filter(|n| !NAMES.contains(n)) {
                eprintln!("{name}, which has no test of its own");
                check(name, read_only);
                check(name, read_write);
            }
        }
    }
    assert!(find("single").is_some(), "the repository's own sets are missing");
}
