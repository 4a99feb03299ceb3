//! Bookmarks: what they count is held against the blocks themselves, through every operation that
//! changes snapshots.

use super::*;
use zilla_ondisk::dsl::{ZBM_FLAG_HAS_FBN, ZBM_FLAG_SNAPSHOT_EXISTS};

impl Pool {
    fn bookmark(&mut self, source: &str, new: &str) -> Result<()> {
        let pair = vec![(source.to_owned(), new.to_owned())];
        self.task(async |p, tx| p.bookmark(tx, &pair).await)
    }

    fn destroy_bookmark(&mut self, name: &str) {
        self.task(async |p, tx| p.destroy_bookmarks(tx, &[name.to_owned()]).await).unwrap();
    }

    fn count(&self, feature: &str) -> u64 {
        self.dsl.ctx().features.count(feature)
    }

    /// What the account of a bookmark tells is what its later states have of blocks born since.
    fn check_mark(&self, name: &str, later: &[&str]) {
        let (head, mark) = block_on(self.dsl.bookmark_by_name(name)).unwrap();
        for at in later {
            let ds = self.ds(at);
            assert!(block_on(self.dsl.is_before(&ds, &head, mark.phys.creation_txg)).unwrap(), "{name} {at}");
            let store: Arc<dyn BlockStore> = self.store.clone();
            let (bps, _) = block_on(collect(&store, ds.phys().bp, 0, None, usize::MAX)).unwrap();
            let since = bps.iter().filter(|b| b.birth() > mark.phys.creation_txg);
            let born: u64 = since.map(|b| store.dsize(b)).sum();
            let told = block_on(self.dsl.written_since_bookmark(&ds, &mark.phys)).unwrap();
            assert_eq!(told, Some(born), "written#{name} of {at}");
        }
    }

    /// Each of the features is counted once a use, and deadlists have the keys that snapshots and
    /// bookmarks need.
    fn check_marks(&mut self, heads: &[&str]) {
        self.check();
        let (mut with, mut marks) = (0, 0);
        for head in heads {
            let ds = self.ds(head);
            let all = ds.bookmarks();
            with += u64::from(!all.is_empty());
            marks += all.len() as u64;
            assert!(all.iter().all(|b| b.phys.flags & ZBM_FLAG_HAS_FBN != 0));
            let snaps = block_on(self.dsl.snapshots(&ds)).unwrap();
            let txgs: BTreeSet<u64> = snaps.iter().map(|s| s.phys().creation_txg).collect();
            for b in &all {
                let flag = b.phys.flags & ZBM_FLAG_SNAPSHOT_EXISTS != 0;
                assert_eq!(flag, txgs.contains(&b.phys.creation_txg), "{head}#{}", b.name);
            }
            // A clone's deadlist has the keys of what it came from, too.
            if !self.dsl.is_clone(&ds.dir()) {
                let latest = ds.phys().prev_snap_txg;
                let mut keys: BTreeSet<u64> = all.iter().map(|b| b.phys.creation_txg).collect();
                keys.extend(txgs);
                // The first list is of what was born after the beginning; the latest snapshot has
                // no key yet.
                keys.retain(|t| *t < latest);
                let dl = block_on(self.dsl.deadlist_open(ds.phys().deadlist_obj)).unwrap();
                let found: BTreeSet<u64> = dl.lists().keys().copied().filter(|k| *k > 1).collect();
                assert_eq!(found, keys, "{head}: keys of the deadlist");
            }
        }
        assert_eq!(self.count("bookmarks"), with);
        assert_eq!((self.count("bookmark_v2"), self.count("bookmark_written")), (marks, marks));
    }
}

fn pool() -> Pool {
    let mut p = Pool::new();
    p.create("tank/fs");
    p.write("tank/fs", 1, 0, 40, 1);
    p.snapshot("tank/fs@a");
    p
}

#[test]
fn bookmarks_outlive_their_snapshots_and_tell_what_was_written_since() {
    let mut p = pool();
    p.bookmark("tank/fs@a", "tank/fs#a").unwrap();
    p.bookmark("tank/fs#a", "tank/fs#copy").unwrap();
    p.write("tank/fs", 1, 10, 10, 2);
    p.sync();
    p.check_mark("tank/fs#a", &["tank/fs"]);
    p.check_marks(&["tank/fs"]);
    p.snapshot("tank/fs@b");
    p.write("tank/fs", 1, 5, 10, 3);
    p.snapshot("tank/fs@c");
    p.bookmark("tank/fs@b", "tank/fs#b").unwrap();
    p.write("tank/fs", 1, 0, 8, 4);
    p.write("tank/fs", 2, 0, 20, 4);
    p.sync();
    let check = |p: &mut Pool| {
        p.check_marks(&["tank/fs"]);
        p.check_mark("tank/fs#a", &["tank/fs", "tank/fs@c"]);
        p.check_mark("tank/fs#copy", &["tank/fs", "tank/fs@c"]);
        p.check_mark("tank/fs#b", &["tank/fs", "tank/fs@c"]);
    };
    check(&mut p);
    for gone in ["tank/fs@b", "tank/fs@a"] {
        p.destroy_snapshot(gone);
        check(&mut p);
        p.write("tank/fs", 1, 12, 10, 5);
        p.sync();
        check(&mut p);
    }
    p.destroy_snapshot("tank/fs@c");
    p.write("tank/fs", 1, 20, 10, 6);
    p.sync();
    p.snapshot("tank/fs@d");
    p.write("tank/fs", 1, 0, 40, 7);
    p.sync();
    p.check_marks(&["tank/fs"]);
    for mark in ["tank/fs#a", "tank/fs#b"] {
        p.check_mark(mark, &["tank/fs", "tank/fs@d"]);
    }
    p.destroy_bookmark("tank/fs#a");
    p.check_marks(&["tank/fs"]);
    p.destroy_bookmark("tank/fs#copy");
    p.destroy_bookmark("tank/fs#copy");
    p.check_marks(&["tank/fs"]);
    p.destroy_snapshot("tank/fs@d");
    p.check_marks(&["tank/fs"]);
    p.destroy_bookmark("tank/fs#b");
    p.check_marks(&["tank/fs"]);
    p.bookmark("tank/fs#b", "tank/fs#x").unwrap_err();
}

#[test]
fn bookmarks_go_with_their_head() {
    let mut p = pool();
    p.bookmark("tank/fs@a", "tank/fs#a").unwrap();
    p.destroy_snapshot("tank/fs@a");
    p.destroy("tank/fs");
    p.check_marks(&[]);
}

#[test]
fn bookmarks_follow_promotion_and_rollback() {
    let mut p = pool();
    p.bookmark("tank/fs@a", "tank/fs#a").unwrap();
    p.write("tank/fs", 1, 3, 10, 2);
    p.snapshot("tank/fs@b");
    p.bookmark("tank/fs@b", "tank/fs#b").unwrap();
    p.write("tank/fs", 1, 8, 10, 3);
    p.sync();
    p.task(async |p, tx| p.clone_ds(tx, "tank/clone", "tank/fs@b").await.map(drop)).unwrap();
    p.write("tank/clone", 1, 0, 5, 4);
    p.sync();
    p.snapshot("tank/fs@c");
    p.bookmark("tank/fs@c", "tank/fs#c").unwrap();
    // A bookmark may be of the snapshot that the clone came from.
    p.bookmark("tank/fs@b", "tank/clone#own").unwrap();
    p.task(async |p, tx| p.destroy_bookmarks(tx, &["tank/clone#own".to_owned()]).await).unwrap();
    p.task(async |p, tx| p.promote(tx, "tank/clone").await).unwrap();
    let heads = ["tank/clone", "tank/fs"];
    p.check_marks(&heads);
    let names = |p: &Pool, fs: &str| p.ds(fs).bookmarks().into_iter().map(|b| b.name).collect::<Vec<_>>();
    assert_eq!(
        (names(&p, "tank/clone"), names(&p, "tank/fs")),
        (vec!["a".into(), "b".into()], vec!["c".into()])
    );
    p.check_mark("tank/clone#a", &["tank/clone"]);
    p.check_mark("tank/clone#b", &["tank/clone"]);
    p.check_mark("tank/fs#c", &["tank/fs"]);
    p.write("tank/fs", 1, 0, 30, 5);
    p.sync();
    p.check_mark("tank/fs#c", &["tank/fs"]);
    p.task(async |p, tx| p.rollback(tx, "tank/fs", None).await).unwrap();
    p.check_mark("tank/fs#c", &["tank/fs"]);
    p.write("tank/fs", 1, 0, 3, 6);
    p.sync();
    p.check_mark("tank/fs#c", &["tank/fs"]);
    p.check_marks(&heads);
    // Nothing after a bookmark can be rolled back to.
    p.destroy_snapshot("tank/fs@c");
    p.snapshot("tank/clone@d");
    let e = p.task(async |p, tx| p.rollback(tx, "tank/fs", None).await).unwrap_err();
    assert!(e.is(Errno::NoEnt) || e.is(Errno::Exist), "{e}");
}

#[test]
fn what_cannot_be_bookmarked_is_refused() {
    let mut p = pool();
    p.create("tank/other");
    p.snapshot("tank/other@x");
    p.bookmark("tank/fs@a", "tank/fs#a").unwrap();
    let refusal = |e: Error| match e {
        Error::Refused(why) => (*why).clone(),
        other => panic!("{other}"),
    };
    let mut why = |source: &str, new: &str| refusal(p.bookmark(source, new).unwrap_err());
    assert_eq!(why("tank/fs@a", "tank/fs#a"), Refusal::BookmarkExists("tank/fs#a".into()));
    assert_eq!(why("tank/other@x", "tank/fs#b"), Refusal::NotAncestor);
    assert_eq!(why("tank/fs", "tank/fs#b"), Refusal::NotSnapshot("tank/fs".into()));
    assert_eq!(why("tank/fs#none", "tank/fs#b"), Refusal::NoBookmark("tank/fs#none".into()));
    assert_eq!(why("tank/fs@a", "tank/fs@b"), Refusal::NotBookmark("tank/fs@b".into()));
    let long = format!("tank/fs#{}", "n".repeat(260));
    assert_eq!(why("tank/fs@a", &long), Refusal::NameTooLong(long.clone()));
    p.check_marks(&["tank/fs"]);
}

#[test]
fn without_the_later_features_bookmarks_are_three_words() {
    let mut p = Pool::with(&["extensible_dataset", "bookmarks"]);
    p.create("tank/fs");
    p.write("tank/fs", 1, 0, 4, 1);
    p.snapshot("tank/fs@a");
    p.bookmark("tank/fs@a", "tank/fs#a").unwrap();
    let id = p.ds("tank/fs").bookmarks_obj.load(std::sync::atomic::Ordering::Relaxed);
    let zap = block_on(Zap::open(p.dsl.mos(), id)).unwrap();
    assert_eq!(block_on(zap.get("a")).unwrap().as_u64s().unwrap().len(), 3);
    p.destroy_snapshot("tank/fs@a");
    let phys = block_on(p.dsl.bookmark_by_name("tank/fs#a")).unwrap().1.phys;
    assert_eq!(phys.flags, 0);
    p.destroy_bookmark("tank/fs#a");
    assert_eq!(p.count("bookmarks"), 0);
    let mut p = Pool::with(&["extensible_dataset"]);
    p.create("tank/fs");
    p.snapshot("tank/fs@a");
    assert!(p.bookmark("tank/fs@a", "tank/fs#a").unwrap_err().is(Errno::NotSup));
}
