//! Limits on counts, and whom permissions were given to.

use super::*;
use crate::dsl::recv::RecvOpts;
use zilla_ondisk::stream::Begin;

fn user() -> Who {
    Who::User { uid: 1000, gids: vec![1000, 50] }
}

impl Pool {
    fn set(&mut self, name: &str, prop: &str, value: u64) -> Result<()> {
        let all = vec![(prop.to_owned(), Setting::Local(Value::u64(value)))];
        let ds = self.ds(name);
        self.task(async |p, tx| p.set_props(tx, &ds, &all).await)
    }

    /// What each dir says of those below it, held against the tree.
    fn check_counts(&mut self) {
        self.check();
        let mut todo = vec![self.dsl.root_dir()];
        while let Some(dir) = todo.pop() {
            let below = |p: &Pool| {
                let (mut fs, mut snaps, mut dirs) = (0, 0, vec![dir.clone()]);
                while let Some(d) = dirs.pop() {
                    snaps += block_on(p.dsl.snapshots(&p.ds(&d.name()))).unwrap().len() as u64;
                    let children = block_on(p.dsl.child_dirs(&d)).unwrap();
                    fs += children.len() as u64;
                    dirs.extend(children);
                }
                (fs, snaps)
            };
            let (fs, snaps) = below(self);
            for (what, n) in [(Limit::Filesystems, fs), (Limit::Snapshots, snaps)] {
                if let Some(counted) = block_on(self.dsl.counted(&dir, what)).unwrap() {
                    assert_eq!(counted, n, "{what:?} below {}", dir.name());
                }
            }
            todo.extend(block_on(self.dsl.child_dirs(&dir)).unwrap());
        }
    }

    fn limited(&self, dir: &str, more: u64, what: Limit) -> bool {
        let dir = block_on(self.dsl.dir_by_name(dir)).unwrap();
        match block_on(self.dsl.limit_check(&dir, more, what, &user(), None)) {
            Ok(()) => false,
            Err(e) => {
                assert!(e.is(Errno::DQuot), "{e}");
                true
            }
        }
    }

    fn allow(&mut self, name: &str, whom: &str, perms: &[&str]) {
        let grant = vec![(Grantee::parse(whom).unwrap(), perms.iter().map(|p| (*p).to_owned()).collect())];
        self.task(async |p, tx| p.allow(tx, name, &grant).await).unwrap();
    }

    fn may(&self, name: &str, perm: &str) -> bool {
        block_on(self.dsl.may(&self.ds(name), perm, &user())).unwrap()
    }
}

#[test]
fn limits_are_counted_from_the_first_on_and_bind_whom_they_should() {
    let mut p = Pool::with(&["extensible_dataset", "filesystem_limits", "async_destroy", "empty_bpobj"]);
    for fs in ["tank/a", "tank/a/b", "tank/a/b/c", "tank/x"] {
        p.create(fs);
    }
    p.snapshot("tank/a/b@1");
    assert!(!p.dsl.feature_active("filesystem_limits"));
    p.set("tank/a", "filesystem_limit", 3).unwrap();
    p.set("tank/a", "snapshot_limit", 2).unwrap();
    assert_eq!(p.dsl.ctx().features.count("filesystem_limits"), 1);
    p.check_counts();
    assert!(!p.limited("tank/a/b", 1, Limit::Filesystems) && p.limited("tank/a/b", 2, Limit::Filesystems));
    // Nobody counts below the other, and above nothing is limited.
    assert!(!p.limited("tank/x", 100, Limit::Filesystems) && !p.limited("tank", 100, Limit::Snapshots));
    p.create("tank/a/b/d");
    p.create("tank/x/y");
    p.snapshot("tank/a@2");
    p.snapshot("tank/x/y@3");
    p.check_counts();
    assert!(p.limited("tank/a", 1, Limit::Filesystems) && p.limited("tank/a/b/c", 1, Limit::Snapshots));
    let names = vec!["tank/a/b@n".to_owned(), "tank/x@n".to_owned()];
    assert!(block_on(p.dsl.snapshot_limit_check(&names, &user())).unwrap_err().is(Errno::DQuot));
    block_on(p.dsl.snapshot_limit_check(&names[1..], &user())).unwrap();
    block_on(p.dsl.snapshot_limit_check(&names, &Who::Admin)).unwrap();
    // What comes from where nothing is counted is counted when it moves.
    let (dir, to) = (p.ds("tank/x").dir(), p.ds("tank/a").dir());
    assert!(block_on(p.dsl.move_limit_check(&dir, &to, &user())).unwrap_err().is(Errno::DQuot));
    p.task(async |p, tx| p.rename(tx, "tank/x", "tank/a/x").await).unwrap();
    p.check_counts();
    p.destroy_snapshot("tank/a/x/y@3");
    p.destroy("tank/a/x/y");
    p.destroy("tank/a/x");
    p.check_counts();
    // Whoever may change a limit is bound by those above alone.
    p.allow("tank/a", "ul$1000", &["filesystem_limit"]);
    assert!(!p.limited("tank/a/b", 9, Limit::Filesystems));
    p.set("tank", "filesystem_limit", 5).unwrap();
    p.check_counts();
    assert!(p.limited("tank/a/b", 9, Limit::Filesystems));
}

#[test]
fn without_the_feature_no_limit_can_be_set() {
    let mut p = Pool::with(&["extensible_dataset"]);
    p.create("tank/a");
    let Err(Error::Refused(why)) = p.set("tank/a", "snapshot_limit", 1) else { panic!("is set") };
    assert_eq!(*why, Refusal::FeatureDisabled("filesystem_limits"));
    p.set("tank/a", "snapshot_limit", NO_LIMIT).unwrap();
}

#[test]
fn permissions_hold_for_whom_and_where_they_were_given() {
    let mut p = Pool::new();
    for fs in ["tank/a", "tank/a/b"] {
        p.create(fs);
        p.snapshot(&format!("{fs}@s"));
    }
    p.allow("tank/a", "ul$1000", &["create"]);
    p.allow("tank/a", "ud$1000", &["mount"]);
    p.allow("tank/a", "gl$50", &["clone"]);
    p.allow("tank/a", "el$", &["send"]);
    p.allow("tank/a", "ul$1001", &["rename"]);
    p.allow("tank", "Ud$1000", &["@some"]);
    p.allow("tank", "s-$@some", &["snapshot"]);
    p.allow("tank", "S-$@some", &["@more", "@some"]);
    p.allow("tank", "s-$@more", &["hold"]);
    for (name, perm, may) in [
        ("tank/a", "create", true),
        ("tank/a/b", "create", false),
        ("tank/a", "mount", false),
        ("tank/a/b", "mount", true),
        ("tank/a@s", "mount", true),
        ("tank/a@s", "create", false),
        ("tank/a", "clone", true),
        ("tank/a", "send", true),
        ("tank/a/b", "send", false),
        ("tank/a", "rename", false),
        ("tank/a/b", "snapshot", true),
        ("tank/a/b", "hold", true),
        ("tank", "hold", false),
        ("tank", "create", false),
    ] {
        assert_eq!(p.may(name, perm), may, "{perm} {name}");
        assert!(block_on(p.dsl.may(&p.ds(name), perm, &Who::Admin)).unwrap());
    }
    p.check();
    assert!(p.may("tank/a/b", "hold"), "it is on disk");
    let gone = vec![(Grantee::parse("ul$1000").unwrap(), vec!["create".to_owned()])];
    p.task(async |p, tx| p.unallow(tx, "tank/a", &gone).await).unwrap();
    let all = vec![(Grantee::parse("s-$@more").unwrap(), Vec::new())];
    p.task(async |p, tx| p.unallow(tx, "tank", &all).await).unwrap();
    assert!(!p.may("tank/a", "create") && !p.may("tank/a/b", "hold") && p.may("tank/a/b", "snapshot"));
    p.check();
    let held: Vec<_> = block_on(p.dsl.grants(&p.ds("tank/a").dir())).unwrap();
    let held: Vec<_> = held.iter().map(|(who, _)| who.as_str().to_owned()).collect();
    assert_eq!(held, ["el$", "gl$50", "ud$1000", "ul$1001"]);
}

/// What the nearest dir says of a set is all that counts, also if the set was given above it.
#[test]
fn a_set_that_is_defined_below_is_another_there() {
    let mut p = Pool::new();
    for fs in ["tank/a", "tank/a/b", "tank/a/b/c"] {
        p.create(fs);
    }
    p.allow("tank/a", "s-$@set", &["snapshot"]);
    p.allow("tank/a/b", "s-$@set", &["mount"]);
    let give = |p: &mut Pool, dir: &str| ["Ul$1000", "Ud$1000"].map(|who| p.allow(dir, who, &["@set"]));
    let is = |p: &Pool, dir: &str, wanted: [bool; 2]| {
        assert_eq!(["snapshot", "mount"].map(|perm| p.may(dir, perm)), wanted, "{dir}");
    };
    give(&mut p, "tank/a/b");
    is(&p, "tank/a", [false, false]);
    is(&p, "tank/a/b", [false, true]);
    is(&p, "tank/a/b/c", [false, true]);
    give(&mut p, "tank/a");
    is(&p, "tank/a", [true, false]);
    is(&p, "tank/a/b", [false, true]);
    is(&p, "tank/a/b/c", [false, true]);
    let mask = vec![(Grantee::parse("s-$@set").unwrap(), Vec::new())];
    p.task(async |p, tx| p.unallow(tx, "tank/a/b", &mask).await).unwrap();
    is(&p, "tank/a/b", [true, false]);
    is(&p, "tank/a/b/c", [true, false]);
}

#[test]
fn who_creates_a_dataset_gets_what_those_above_give() {
    let mut p = Pool::new();
    p.create("tank/a");
    p.allow("tank", "c-$", &["destroy", "mount"]);
    p.allow("tank/a", "C-$", &["@own"]);
    p.allow("tank/a", "s-$@own", &["rollback"]);
    p.create("tank/a/mine");
    p.create("tank/a/theirs");
    let dir = p.ds("tank/a/mine").dir();
    p.task(async |p, tx| p.grant_to_creator(tx, &dir, 1000).await).unwrap();
    for perm in ["destroy", "mount", "rollback"] {
        assert!(p.may("tank/a/mine", perm), "{perm}");
        assert!(!p.may("tank/a/theirs", perm) && !p.may("tank/a", perm), "{perm}");
    }
    p.check();
}

#[test]
fn only_well_formed_names_of_grantees_are_taken() {
    for good in ["ul$0", "Ud$4294967295", "gl$1", "Gd$2", "el$", "Ed$", "c-$", "C-$", "s-$@set", "S-$@a_b"] {
        assert!(Grantee::parse(good).is_some(), "{good}");
    }
    let long = format!("s-$@{}", "x".repeat(200));
    for bad in
        ["", "u", "ul", "ul$", "ul$x", "u-$1", "ul$4294967296", "el$1", "cl$", "s-$set", "s-$@", "x-$", &long]
    {
        assert!(Grantee::parse(bad).is_none(), "{bad}");
    }
}

fn limit_of_files(value: Setting) -> Vec<(String, Setting)> {
    vec![("filesystem_limit".to_owned(), value)]
}

/// A pool that cannot count refuses a limit before anything is made that would have it.
#[test]
fn a_limit_in_a_pool_that_cannot_count_leaves_nothing_behind() {
    let mut p = Pool::new();
    let parent = p.dsl.root_dir();
    let five = || Value::u64(5);
    let disabled = |e: Error| match e {
        Error::Refused(why) => *why == Refusal::FeatureDisabled("filesystem_limits"),
        _ => false,
    };
    let new = p.dsl.new_props_check(&parent, "tank/x", &limit_of_files(Setting::Local(five())), 0);
    assert!(new.is_err_and(disabled));
    assert!(p.set("tank", "filesystem_limit", 5).is_err_and(disabled));
    p.set("tank", "filesystem_limit", NO_LIMIT).unwrap();
    let b = Begin { objset_type: ObjsetType::Zfs.number() as u32, toguid: 77, ..Begin::default() };
    let settings = limit_of_files(Setting::Received(five()));
    let o = RecvOpts { fs: "tank/r".into(), snap: "s".into(), settings, ..RecvOpts::default() };
    let t = p.task(async |p, tx| p.recv_begin(tx, &b, &o).await).unwrap();
    p.task(async |p, tx| p.recv_end(tx, &t, &b, &o).await).unwrap();
    assert_eq!(block_on(p.dsl.prop(&p.ds("tank/r"), "filesystem_limit")).unwrap(), None);
    p.check();
}

/// A limit that a stream brings is counted from then on, in a new dataset and in one that is there.
#[test]
fn a_received_limit_is_counted() {
    let mut p = Pool::with(&[FEATURES, &["filesystem_limits"]].concat());
    let settings = limit_of_files(Setting::Received(Value::u64(1)));
    let mut o = RecvOpts { fs: "tank/r".into(), snap: "s".into(), settings, ..RecvOpts::default() };
    let mut b = Begin { objset_type: ObjsetType::Zfs.number() as u32, toguid: 77, ..Begin::default() };
    for fs in ["tank/r", "tank/q"] {
        if fs == "tank/q" {
            p.task(async |p, tx| p.create_fs(tx, fs, ObjsetType::Zfs, 0).await).unwrap();
            (o.fs, o.force, b.toguid) = (fs.to_owned(), true, 78);
        }
        let t = p.task(async |p, tx| p.recv_begin(tx, &b, &o).await).unwrap();
        p.task(async |p, tx| p.recv_end(tx, &t, &b, &o).await).unwrap();
        assert!(p.limited(fs, 2, Limit::Filesystems), "{fs}");
    }
    p.check_counts();
}
