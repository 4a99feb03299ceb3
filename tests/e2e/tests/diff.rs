//! `zfs diff` and `zfs wait`.

use std::fs;
use std::os::unix::fs::symlink;
use zilla_e2e::{Kind, Need, Pool, World, can};

/// Lines, in any order: files come as their numbers do.
fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn what_changed_is_told_between_snapshots_and_to_what_is_there_now() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &[]);
    world.zfs("create tank/fs").ok();
    let root = pool.root().join("fs");
    let at = |name: &str| root.join(name);
    for name in ["same", "gone", "grown", "moved", "linked", "unlinked"] {
        fs::write(at(name), "old").expect("file");
    }
    fs::hard_link(at("unlinked"), at("other")).expect("link");
    fs::create_dir_all(at("dir/sub")).expect("folder");
    fs::write(at("dir/sub/deep"), "old").expect("file");
    // So many that they fill several blocks of dnodes, which stay as they are.
    for n in 0..200 {
        fs::write(at(&format!("dir/{n}")), "").expect("file");
    }
    world.zfs("snapshot tank/fs@a").ok();
    fs::remove_file(at("gone")).expect("file");
    fs::write(at("grown"), "newer").expect("file");
    fs::rename(at("moved"), at("dir/moved here")).expect("file");
    fs::hard_link(at("linked"), at("linked too")).expect("link");
    fs::remove_file(at("other")).expect("link");
    fs::write(at("dir/sub/deep"), "new").expect("file");
    fs::write(at("b\\ü"), "").expect("file");
    symlink("nowhere", at("link")).expect("link");
    world.zfs("snapshot tank/fs@b").ok();

    let m = root.display();
    let wanted = [
        format!("M\t{m}/"),
        format!("-\t{m}/gone"),
        format!("M\t{m}/grown"),
        format!("R\t{m}/moved -> {m}/dir/moved\\0040here"),
        format!("M\t{m}/linked\t(+1)"),
        format!("M\t{m}/unlinked\t(-1)"),
        format!("M\t{m}/dir"),
        format!("M\t{m}/dir/sub/deep"),
        format!("+\t{m}/b\\0134\\0303\\0274"),
        format!("+\t{m}/link"),
    ];
    let wanted = sorted(&wanted.join("\n"));
    for words in ["tank/fs@a tank/fs@b", "tank/fs@a @b", "@a tank/fs@b", "tank/fs@a", "tank/fs@a tank/fs"] {
        assert_eq!(sorted(&world.zfs(&format!("diff {words}")).ok()), wanted, "{words}");
    }
    let lines = world.zfs("diff -FHh tank/fs@a tank/fs@b").ok();
    for line in
        [format!("R\tF\t{m}/moved\t{m}/dir/moved here"), format!("+\t@\t{m}/link"), format!("+\tF\t{m}/b\\ü")]
    {
        assert!(lines.lines().any(|l| l == line), "{line} in {lines}");
    }
    let line = world.zfs("diff -t tank/fs@a tank/fs@b").ok();
    let time = line.split('.').next().unwrap_or_default().trim();
    assert!(time.parse::<u64>().is_ok_and(|t| t > 1_600_000_000), "{line}");

    // What is there now, with a number that belongs to another file since.
    fs::remove_file(at("same")).expect("file");
    let lines = world.zfs("diff tank/fs@b").ok();
    assert_eq!(sorted(&lines), sorted(&format!("M\t{m}/\n-\t{m}/same")));
    world.zfs("clone tank/fs@b tank/clone").ok();
    let clone = pool.root().join("clone");
    fs::write(clone.join("new"), "").expect("file");
    let lines = world.zfs("diff tank/fs@b tank/clone").ok();
    assert_eq!(sorted(&lines), sorted(&format!("M\t{0}/\n+\t{0}/new", clone.display())));
    assert_eq!(world.zfs("wait tank/fs").ok(), "");

    let says = |words: &str, code: i32, text: &str| {
        let done = world.zfs(words);
        assert_eq!((done.code, done.stderr.lines().next().unwrap_or_default()), (code, text), "{words}");
    };
    says("diff tank/fs@b tank/fs@a", 1, "Unable to obtain diffs: ");
    says("diff tank/fs@none", 1, "Unable to obtain diffs: dataset does not exist");
    says("diff tank/none@a", 1, "cannot open 'tank/none': dataset does not exist");
    says("diff tank/fs", 1, "Badly formed snapshot name tank/fs: invalid name");
    says("diff", 2, "must provide at least one snapshot name");
    says("diff -x tank/fs@a", 2, "invalid option 'x'");
    says("wait -t scrub tank/fs", 2, "invalid activity 'scrub'");
    says("wait tank/none", 1, "cannot open 'tank/none': dataset does not exist");
    world.zfs("unmount tank/fs").ok();
    says(
        "diff tank/fs@a",
        1,
        "Cannot diff an unmounted snapshot: operation not applicable to datasets of this type",
    );
    pool.judge();
}
