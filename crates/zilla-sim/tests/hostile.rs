//! Mutants of real pools whose checksums are right: none may end the program, keep it for ever, or
//! take its memory.
//!
//! A sample; `cargo xtask hostile --runs 20000` is the proof. What that found stays here by its
//! seed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use zilla_sim::hostile::{Base, Dice, Limits, Mutant, files_of, live};
use zilla_sim::pool::Layout;

/// More than a mutant takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn corpus(name: &str) -> Arc<Base> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/interop/corpus");
    let archive: PathBuf = folder.join(format!("{name}.tar.zst"));
    Arc::new(Base::of_archive(&archive).expect("the archive unpacks").expect("the pool can be taken apart"))
}

/// Lives with the mutants of some seeds, in a thread that can be given up.
fn survives(base: &Arc<Base>, seeds: impl IntoIterator<Item = u64>) {
    // For all tests of this program together, and what a base itself takes: an allocation without
    // bounds fails here.
    let limit = Rlimit { current: Some(3 << 30), ..getrlimit(Resource::Data) };
    setrlimit(Resource::Data, limit).expect("a limit of memory");
    for seed in seeds {
        let (tell, told) = channel();
        let base = base.clone();
        let name = base.name.clone();
        std::thread::spawn(move || {
            let mutant = Mutant::new(&base, &mut Dice::new(seed));
            let lived = catch_unwind(AssertUnwindSafe(|| live(&mutant.disks, seed, Limits::default())));
            let result = lived.unwrap_or_else(|_| Err("panicked, as said above".into()));
            let _ = tell.send(result.map_err(|e| format!("{}: {e}", mutant.what)));
        });
        match told.recv_timeout(PATIENCE) {
            Ok(Ok(())) => {}
            Ok(Err(what)) => panic!("seed {seed} of {name}: {what}"),
            Err(_) => panic!("seed {seed} of {name} does not end"),
        }
    }
}

#[test]
fn a_mutator_reaches_every_kind_of_structure() {
    let base = Base::worked(Layout::Single, 1).expect("a pool");
    let kinds: Vec<&str> = base.census().into_iter().map(|(k, _)| k).collect();
    for kind in [
        "uberblock",
        "label",
        "objset",
        "log block",
        "indirect block of level 1",
        "bonus DSL dataset",
        "bonus DSL directory",
        "bonus SPA space map header",
        "bonus System attributes",
        "bonus bpobj header",
        "dnode of DMU dnode",
        "dnode of ZFS plain file",
        "Leaf of object directory",
        "Header of ZFS directory",
        "Leaf of ZFS directory",
        "packed nvlist",
        "SPA space map",
        "System attributes",
    ] {
        assert!(kinds.contains(&kind), "{kind} is not among {kinds:?}");
    }
}

#[test]
fn the_bases_themselves_are_sound() {
    for layout in [Layout::Single, Layout::Mirror] {
        let base = Base::worked(layout, 1).expect("a pool");
        assert!(files_of(base.disks()).expect("a sound pool") > 20);
        live(base.disks(), 1, Limits::default()).unwrap_or_else(|e| panic!("{e}"));
    }
    for name in ["brt", "deduplicated", "names", "single", "snapshots", "v28", "xattr-acl"] {
        let files = files_of(corpus(name).disks()).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(files > 5, "{name} has {files} files");
    }
}

#[test]
fn pools_of_our_own() {
    for layout in [Layout::Single, Layout::Mirror] {
        let base = Arc::new(Base::worked(layout, 1).expect("a pool"));
        survives(&base, 0..60);
    }
}

#[test]
fn pools_of_openzfs() {
    for name in ["snapshots", "xattr-acl", "crash"] {
        survives(&corpus(name), 0..40);
    }
}

/// Each ended the program or kept it for ever: positions in ZAPs, lists and queues longer than they
/// are, counters that overflow, objects with blocks up to the end of all numbers, objects that say
/// that they hold dnodes.
#[test]
fn what_was_found() {
    survives(&corpus("brt"), [1062, 1842, 2002, 8016516]);
    survives(&corpus("deduplicated"), [1204, 2004, 312118]);
    survives(&corpus("crash"), [315802]);
    survives(&corpus("names"), [1255, 1375]);
    survives(&corpus("single"), [1446, 1676, 1796, 8116048]);
    survives(&corpus("snapshots"), [1017, 1147]);
    survives(&corpus("v28"), [1688, 1808, 1888, 2068, 5288]);
    survives(&corpus("xattr-acl"), [1219, 1269]);
}
