//! Redacted streams: what is left out is nowhere in them, what is made of them says so, and what
//! was left out comes with whatever may have it.

use super::*;
use zilla_core::dsl::RedactionList;
use zilla_core::send::{Redaction, Special, parse_token, redaction, send_special, token};
use zilla_core::zpl::SetAttr;

impl Pool {
    async fn clone_of(&self, name: &'static str, origin: &'static str) {
        let op: Op<()> =
            Box::new(move |dsl, tx| Box::pin(async move { dsl.clone_ds(&tx, name, origin).await.map(drop) }));
        self.task(op).await.unwrap();
    }

    /// A file that is nearly all hole: its blocks cannot be gone through one by one.
    async fn sparse(&self, fs: &str, i: usize) {
        let zfs = self.mount(fs).await;
        let new = NewFile::new(0o100644, Cred { uid: 0, gid: 0 });
        let (h, _) = zfs.create(zfs.root(), format!("file{i}").as_bytes(), new).await.unwrap();
        for at in [0, 1 << 47] {
            zfs.write(h.id(), at, &Bytes::from(vec![7; 300_000]), false).await.unwrap();
        }
        self.spa.sync().await.unwrap();
    }

    async fn truncate(&self, fs: &str, i: usize, size: u64) {
        let zfs = self.mount(fs).await;
        let (h, _) = zfs.lookup(zfs.root(), format!("file{i}").as_bytes()).await.unwrap();
        zfs.setattr(h.id(), SetAttr { size: Some(size), ..SetAttr::default() }).await.unwrap();
        self.spa.sync().await.unwrap();
    }

    /// `zfs redact`
    async fn redact(&self, snap: &str, mark: &'static str, others: &[&str]) -> Result<Arc<RedactionList>> {
        let snap = self.dsl().by_name(snap).await?;
        let mut of = Vec::new();
        for name in others {
            of.push(self.dsl().by_name(name).await?);
        }
        let list = redaction(self.dsl(), &snap, &of).await?;
        let put = list.clone();
        let op: Op<()> =
            Box::new(move |dsl, tx| Box::pin(async move { dsl.redact(&tx, &snap, mark, &put).await }));
        self.task(op).await?;
        Ok(Arc::new(list))
    }

    async fn left_out(&self, mark: &str) -> Arc<RedactionList> {
        let (_, mark) = self.dsl().bookmark_by_name(mark).await.unwrap();
        Arc::new(self.dsl().redaction_list(&mark.phys).await.unwrap())
    }

    async fn send_as(&self, snap: &str, opts: &SendOpts, redaction: Redaction) -> Vec<u8> {
        let ds = self.dsl().by_name(snap).await.unwrap();
        let mut out = Vec::new();
        let special = Special { redaction, ..Special::default() };
        send_special(self.dsl(), &ds, opts, &special, &mut out).await.unwrap();
        out
    }

    async fn by(&self, name: &str) -> Option<Vec<u64>> {
        self.dsl().by_name(name).await.unwrap().redact_snaps().map(|s| s.to_vec())
    }

    async fn guid(&self, name: &str) -> u64 {
        self.dsl().by_name(name).await.unwrap().guid()
    }

    async fn whole(&self, snap: &str) -> Vec<u8> {
        self.send(snap, &SendOpts::default()).await
    }
}

fn list(list: &Arc<RedactionList>) -> Redaction {
    Redaction { list: Some(list.clone()), ..Redaction::default() }
}

fn since(from: &Arc<RedactionList>) -> Redaction {
    Redaction { from: Some(from.clone()), ..Redaction::default() }
}

/// Blocks that are told, and blocks of which it is told that they are not.
fn told(stream: &[u8], list: &RedactionList) -> (u64, u64) {
    let (mut kept, mut out) = (0, 0);
    let blksz = |object| list.runs.iter().find(|r| r.object == object).map(|r| r.blksz);
    for (record, _) in records(stream) {
        let (object, offset, redacted) = match &record {
            Record::Write(w) => (w.object, w.offset, None),
            Record::WriteEmbedded(w) => (w.object, w.offset, None),
            Record::Redact(r) => (r.object, r.offset, Some(r.length)),
            _ => continue,
        };
        let Some(size) = blksz(object) else {
            assert!(redacted.is_none(), "{record:?}");
            kept += 1;
            continue;
        };
        for blkid in offset / size..(offset + redacted.unwrap_or(size)) / size {
            assert_eq!(list.contains(object, blkid), redacted.is_some(), "{record:?}");
            *(if redacted.is_some() { &mut out } else { &mut kept }) += 1;
        }
    }
    (kept, out)
}

/// A clone that is as its origin: the receiver has the origin, and must not have it all in the
/// clone.
#[test]
fn what_has_not_changed_is_left_out_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        p.create_fs("tank/a").await;
        p.fill("tank/a", 0, 12, 1).await;
        p.snapshot("tank/a@s").await;
        p.clone_of("tank/int", "tank/a@s").await;
        p.snapshot("tank/int@i").await;
        p.clone_of("tank/rm", "tank/int@i").await;
        p.remove("tank/rm", 3, 2).await;
        p.truncate("tank/rm", 6, 0).await;
        p.snapshot("tank/rm@r").await;
        let mark = p.redact("tank/int@i", "tank/int#m", &["tank/rm@r"]).await.unwrap();
        let clone = From { is_clone: true, ..p.from("tank/a@s").await.unwrap() };
        let of = SendOpts { from: Some(clone), ..SendOpts::default() };
        let sent = p.send_as("tank/int@i", &of, list(&mark)).await;
        let onto = RecvOpts { origin: Some("tank/a@s".into()), ..to("tank/r", "i") };
        p.receive(&sent, onto).await.unwrap();
        let full = p.send_as("tank/int@i", &SendOpts::default(), list(&mark)).await;
        let (_, out) = told(&full, &mark);
        assert!(out > 4, "{mark:?}");
        assert_eq!(told(&sent, &mark), (0, out));
        p.receive(&full, to("tank/f", "i")).await.unwrap();
        same(&p.whole("tank/f@i").await, &p.whole("tank/r@i").await, "however it came");
        p.export().await;
    });
}

#[test]
fn what_is_left_out_comes_with_what_may_have_it() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    let no = |e: Result<()>, errno| assert!(e.as_ref().is_err_and(|e| e.is(errno)), "{e:?}");
    env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        p.create_fs("tank/a").await;
        p.fill("tank/a", 0, 30, 1).await;
        p.sparse("tank/a", 50).await;
        p.snapshot("tank/a@s").await;
        p.clone_of("tank/dev", "tank/a@s").await;
        p.clone_of("tank/shop", "tank/a@s").await;
        // One overwrites, cuts and removes; the other does so with more, and with others.
        p.fill("tank/dev", 2, 9, 2).await;
        p.truncate("tank/dev", 4, 150_000).await;
        p.truncate("tank/dev", 14, 0).await;
        p.remove("tank/dev", 19, 3).await;
        p.remove("tank/dev", 50, 1).await;
        p.fill("tank/shop", 8, 9, 3).await;
        p.remove("tank/shop", 20, 3).await;
        p.snapshot("tank/dev@d").await;
        p.snapshot("tank/shop@w").await;
        p.fill("tank/a", 5, 4, 4).await;
        p.remove("tank/a", 24, 1).await;
        p.snapshot("tank/a@t").await;
        let dev = p.redact("tank/a@s", "tank/a#dev", &["tank/dev@d"]).await.unwrap();
        let both = p.redact("tank/a@s", "tank/a#both", &["tank/dev@d", "tank/shop@w"]).await.unwrap();
        let blocks = |l: &RedactionList| l.runs.iter().map(|r| r.count).sum::<u64>();
        assert!(blocks(&both) > 3 && blocks(&dev) > blocks(&both) + 5, "{dev:?}\n{both:?}");
        assert!(both.runs.iter().all(|r| (0..r.count).all(|i| dev.contains(r.object, r.blkid + i))));
        // Refusals.
        no(p.redact("tank/a@s", "tank/a#dev", &["tank/dev@d"]).await.map(drop), Errno::Exist);
        no(p.redact("tank/a@s", "tank/a#dev", &["tank/shop@w"]).await.map(drop), Errno::NoEnt);
        no(p.redact("tank/a@s", "tank/a#x", &["tank/a@s"]).await.map(drop), Errno::Inval);
        no(p.redact("tank/a@t", "tank/a#x", &["tank/dev@d"]).await.map(drop), Errno::Inval);
        no(p.redact("tank/a@s", "tank/a#b#c", &["tank/dev@d"]).await.map(drop), Errno::Inval);
        p.export().await;

        // Lists are read as they were written.
        let p = Pool::open(&env, dir.path()).await;
        assert_eq!(
            (p.left_out("tank/a#dev").await, p.left_out("tank/a#both").await),
            (dev.clone(), both.clone())
        );
        let full = p.whole("tank/a@s").await;
        let packed = SendOpts { compressed: true, embed: true, large_blocks: true, ..SendOpts::default() };
        for (how, name) in [(SendOpts::default(), "tank/r"), (packed, "tank/rp")] {
            let sent = p.send_as("tank/a@s", &how, list(&dev)).await;
            let (kept, out) = told(&sent, &dev);
            assert!(kept > 20 && out > 20, "{kept} {out}");
            p.receive(&sent, to(name, "s")).await.unwrap();
            let by = Some(vec![p.guid("tank/dev@d").await]);
            assert_eq!((p.by(name).await, p.by(&format!("{name}@s")).await), (by.clone(), by));
        }
        same(&p.whole("tank/r@s").await, &p.whole("tank/rp@s").await, "however it is sent");
        assert!(p.whole("tank/r@s").await.len() < full.len());
        // The snapshot by which it is redacted goes on top, and is whole.
        let clone = From { is_clone: true, ..p.from("tank/a@s").await.unwrap() };
        let of = SendOpts { from: Some(clone), ..SendOpts::default() };
        let (d, w) = (p.send("tank/dev@d", &of).await, p.send("tank/shop@w", &of).await);
        let onto = |name: &str, snap: &str| RecvOpts { origin: Some("tank/r@s".into()), ..to(name, snap) };
        p.receive(&d, onto("tank/rd", "d")).await.unwrap();
        same(&p.whole("tank/dev@d").await, &p.whole("tank/rd@d").await, "the clone");
        assert_eq!(p.by("tank/rd").await, None);
        // Another would lack what it has of the blocks that were left out.
        no(p.receive(&w, onto("tank/rw", "w")).await, Errno::Inval);
        let plain = SendOpts { from: p.from("tank/a@s").await, ..SendOpts::default() };
        no(p.receive(&p.send("tank/a@t", &plain).await, to("tank/r", "t")).await, Errno::Inval);
        // From the bookmark on all of it comes, and is whole; what is there of it already, too.
        let again = SendOpts { from: p.from("tank/a@s").await, ..SendOpts::default() };
        let t = p.send_as("tank/a@t", &again, since(&dev)).await;
        p.receive(&t, to("tank/r", "t")).await.unwrap();
        same(&p.whole("tank/a@t").await, &p.whole("tank/r@t").await, "from the bookmark");
        assert_eq!(p.by("tank/r").await, None);
        let undone = p.send_as("tank/a@s", &again, since(&dev)).await;
        let rp = RecvOpts { origin: Some("tank/rp@s".into()), ..to("tank/ru", "u") };
        p.receive(&undone, rp).await.unwrap();
        same(&full, &p.whole("tank/ru@u").await, "undone");
        // What both leave out stays out, and the rest comes.
        let some = Redaction { list: Some(both.clone()), ..since(&dev) };
        let step = p.send_as("tank/a@s", &again, some).await;
        p.receive(&step, RecvOpts { origin: Some("tank/rp@s".into()), ..to("tank/rb", "b") }).await.unwrap();
        let direct = p.send_as("tank/a@s", &SendOpts::default(), list(&both)).await;
        p.receive(&direct, to("tank/rc", "c")).await.unwrap();
        same(&p.whole("tank/rc@c").await, &p.whole("tank/rb@b").await, "less is left out");
        let of_both = Some(both.snaps.clone());
        assert_eq!((p.by("tank/rb@b").await, p.by("tank/rc@c").await), (of_both.clone(), of_both.clone()));
        // Either of the two goes on top of what both have changed.
        let onto = |name: &str, snap: &str| RecvOpts { origin: Some("tank/rc@c".into()), ..to(name, snap) };
        p.receive(&w, onto("tank/rcw", "w")).await.unwrap();
        same(&p.whole("tank/shop@w").await, &p.whole("tank/rcw@w").await, "the other clone");
        // A redacted dataset is sent on as what it is, and so are its snapshots and clones.
        let on = p.whole("tank/rc@c").await;
        p.receive(&on, to("tank/re", "c")).await.unwrap();
        assert_eq!(p.by("tank/re@c").await, of_both);
        no(p.redact("tank/re@c", "tank/re#x", &["tank/rcw@w"]).await.map(drop), Errno::Busy);
        p.clone_of("tank/rclone", "tank/re@c").await;
        assert_eq!(p.by("tank/rclone").await, of_both);
        p.export().await;
    });
    zdb_clean(dir.path(), "tank");
}

#[test]
fn a_redacted_stream_that_is_cut_goes_on_and_lists_go_with_their_bookmarks() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        let lists = || p.dsl().feature_active("redaction_bookmarks");
        p.create_fs("tank/a").await;
        p.fill("tank/a", 0, 30, 1).await;
        p.snapshot("tank/a@s").await;
        p.clone_of("tank/dev", "tank/a@s").await;
        p.fill("tank/dev", 2, 20, 2).await;
        p.snapshot("tank/dev@d").await;
        p.fill("tank/a", 10, 9, 5).await;
        p.snapshot("tank/a@t").await;
        let dev = p.redact("tank/a@s", "tank/a#dev", &["tank/dev@d"]).await.unwrap();
        assert!(lists());
        let from = p.from("tank/a@s").await;
        let again = SendOpts { from, ..SendOpts::default() };
        let red = p.send_as("tank/a@s", &SendOpts::default(), list(&dev)).await;
        let step = p.send_as("tank/a@t", &again, since(&dev)).await;
        for (n, part) in [5, 40, 75, 98].into_iter().enumerate() {
            let fs = format!("tank/r{n}");
            for (stream, snap, opts, how) in
                [(&red, "s", SendOpts::default(), list(&dev)), (&step, "t", again, since(&dev))]
            {
                let into = || RecvOpts { resumable: true, ..to(&fs, snap) };
                assert!(p.receive(&stream[..stream.len() * part / 100], into()).await.is_err());
                p.spa.sync().await.unwrap();
                let ds = p.dsl().recv_partial(&fs).await.unwrap().unwrap();
                let state = p.dsl().resume_state(&ds).await.unwrap().unwrap();
                let t = parse_token(&token(&state).unwrap()).unwrap();
                let told = (how.list.as_ref(), how.from.as_ref());
                assert_eq!(t.redact_snaps.as_ref(), told.0.map(|l| &l.snaps));
                assert_eq!(t.book_redact_snaps.as_ref(), told.1.map(|l| &l.snaps));
                let opts = SendOpts { resume: Some(t.resume()), ..opts };
                if snap == "s" {
                    // The whole rest would lie beside what is redacted, and nothing would say so.
                    let bare = p.send(&format!("tank/a@{snap}"), &opts).await;
                    assert!(p.receive(&bare, into()).await.is_err());
                }
                let rest = p.send_as(&format!("tank/a@{snap}"), &opts, how).await;
                p.receive(&rest, into()).await.unwrap();
            }
            same(&p.whole("tank/a@t").await, &p.whole(&format!("{fs}@t")).await, &fs);
            let fs2 = fs.clone();
            let op: Op<()> = Box::new(move |dsl, tx| {
                Box::pin(async move {
                    let snaps = ["s", "t"].map(|s| format!("{fs2}@{s}"));
                    dsl.destroy_snapshots(&tx, &snaps, false).await?;
                    dsl.destroy_head(&tx, &fs2).await
                })
            });
            p.task(op).await.unwrap();
        }
        assert!(!p.dsl().feature_active("redacted_datasets"));
        // More snapshots than a bonus takes: the list has a spill block.
        let many = RedactionList { snaps: (1..100).collect(), ..(*dev).clone() };
        let (snap, put) = (p.dsl().by_name("tank/a@s").await.unwrap(), many.clone());
        let op: Op<()> = Box::new(move |dsl, tx| {
            Box::pin(async move { dsl.redact(&tx, &snap, "tank/a#many", &put).await })
        });
        p.task(op).await.unwrap();
        assert!(p.dsl().feature_active("redaction_list_spill"));
        p.export().await;
        zdb_clean(dir.path(), "tank");
        let p = Pool::open(&env, dir.path()).await;
        assert_eq!(*p.left_out("tank/a#many").await, many);
        // A copy of a bookmark is a plain one; a bookmark of what is redacted has its snapshots.
        let op: Op<()> = Box::new(|dsl, tx| {
            Box::pin(async move {
                dsl.bookmark(&tx, &[("tank/a#many".into(), "tank/a#copy".into())]).await?;
                dsl.destroy_bookmarks(&tx, &["tank/a#many".into(), "tank/a#dev".into()]).await
            })
        });
        p.task(op).await.unwrap();
        let (_, copy) = p.dsl().bookmark_by_name("tank/a#copy").await.unwrap();
        assert_eq!(copy.phys.redaction_obj, 0);
        for feature in ["redaction_list_spill", "redaction_bookmarks"] {
            assert!(!p.dsl().feature_active(feature), "{feature}");
        }
        p.receive(&red, to("tank/r", "s")).await.unwrap();
        let op: Op<()> = Box::new(|dsl, tx| {
            Box::pin(async move { dsl.bookmark(&tx, &[("tank/r@s".into(), "tank/r#m".into())]).await })
        });
        p.task(op).await.unwrap();
        let of = p.left_out("tank/r#m").await;
        assert_eq!((of.snaps.clone(), of.runs.len()), (dev.snaps.clone(), 0));
        p.export().await;
    });
    zdb_clean(dir.path(), "tank");
}
