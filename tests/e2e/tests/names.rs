//! Many names in one directory, through growth from a micro-ZAP to a fat one, a new import and removal.
//!
//! `ZILLA_NAMES` says how many (100,000 for the proof).

use std::collections::BTreeSet;
use std::fs;
use zilla_e2e::{Kind, Need, Pool, World, can};

#[test]
fn many_names_in_one_directory() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let count: usize = std::env::var("ZILLA_NAMES").ok().and_then(|n| n.parse().ok()).unwrap_or(5_000);
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 1 << 30, &[]);
    let dir = pool.root().join("many");
    fs::create_dir(&dir).expect("folder");
    let name = |i: usize| format!("a name that is not too short, number {i}");
    for i in 0..count {
        fs::write(dir.join(name(i)), "").unwrap_or_else(|e| panic!("{}: {e}", name(i)));
    }
    let list = || -> BTreeSet<String> {
        let entries = fs::read_dir(&dir).expect("list").map(|e| e.expect("entry").file_name());
        let names: Vec<_> = entries.map(|n| n.to_string_lossy().into_owned()).collect();
        let set: BTreeSet<String> = names.iter().cloned().collect();
        assert_eq!(set.len(), names.len(), "a name is listed twice");
        set
    };
    let expected: BTreeSet<String> = (0..count).map(name).collect();
    assert!(list() == expected);
    pool.export();
    pool.import();
    assert!(list() == expected);
    for i in (0..count).filter(|i| i % 10 != 0) {
        fs::remove_file(dir.join(name(i))).expect("remove");
    }
    assert_eq!(list().len(), count.div_ceil(10));
    pool.judge();
}
