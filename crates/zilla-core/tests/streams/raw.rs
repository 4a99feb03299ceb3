//! Raw streams: what is sent encrypted is received without a key, and read with it. The open wounds
//! of OpenZFS have a test each.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use zilla_core::crypt::{KeyFormat, Suite, WrappingKey};
use zilla_core::dsl::{NewCrypt, NewSuite, Rekey};
use zilla_core::zpl::XattrMode;

pub const KEY: u8 = 7;

fn wrapping(n: u8) -> WrappingKey {
    WrappingKey::raw(KeyFormat::Raw, &[n; 32]).unwrap()
}

pub fn raw() -> SendOpts {
    SendOpts { raw: true, ..SendOpts::default() }
}

impl Pool {
    pub async fn create_crypt(&self, name: &'static str, suite: u64, key: u8) {
        let wall = self.env.wall();
        let op: Op<()> = Box::new(move |dsl, tx| {
            Box::pin(async move {
                let suite = NewSuite::Of(Suite::from_number(suite).unwrap());
                let key = Some(Arc::new(wrapping(key)));
                let crypt = NewCrypt { suite, key, location: Some("prompt".into()) };
                let ds = dsl.create_fs_with(&tx, name, ObjsetType::Zfs, 0, &crypt).await?;
                let os = dsl.objset(&ds).await?;
                let now = Time { sec: wall.as_secs() as i64, nsec: wall.subsec_nanos() };
                zpl::create_fs(&os, &tx, &ZplProps::new(0, 0, now)).await
            })
        });
        self.task(op).await.unwrap();
    }

    pub async fn load(&self, name: &str, key: u8) -> Result<()> {
        self.dsl().load_key(name, wrapping(key), false).await
    }

    async fn rekey(&self, name: &'static str, key: u8) {
        let op: Op<()> = Box::new(move |dsl, tx| {
            let how = Rekey::New { key: Arc::new(wrapping(key)), location: None };
            Box::pin(async move { dsl.rekey(&tx, name, &how).await })
        });
        self.task(op).await.unwrap();
    }

    /// Extended attributes that a dnode has no room for.
    async fn spill(&self, fs: &str, files: std::ops::Range<usize>, byte: u8) {
        let zfs = self.mount(fs).await;
        for i in files {
            let (h, _) = zfs.lookup(zfs.root(), format!("file{i}").as_bytes()).await.unwrap();
            zfs.setxattr(h.id(), b"user.big", &vec![byte; 3000 + i], XattrMode::Any).await.unwrap();
        }
        self.spa.sync().await.unwrap();
    }

    pub async fn plain(&self, snap: &str) -> Vec<u8> {
        self.send(snap, &SendOpts::default()).await
    }
}

#[test]
fn what_is_sent_raw_is_read_with_its_key_in_each_suite() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        for (suite, fs, to_fs, snaps) in [
            (8, "tank/gcm", "tank/gcm2", ["tank/gcm@one", "tank/gcm@two", "tank/gcm@three"]),
            (5, "tank/ccm", "tank/ccm2", ["tank/ccm@one", "tank/ccm@two", "tank/ccm@three"]),
        ] {
            p.create_crypt(fs, suite, 7).await;
            p.fill(fs, 0, 60, 1).await;
            p.spill(fs, 0..5, 1).await;
            p.snapshot(snaps[0]).await;
            p.fill(fs, 10, 20, 2).await;
            p.remove(fs, 35, 20).await;
            p.spill(fs, 3..8, 2).await;
            p.snapshot(snaps[1]).await;
            p.fill(fs, 100, 30, 3).await;
            p.remove(fs, 0, 3).await;
            p.snapshot(snaps[2]).await;
            let mut sent = Vec::new();
            for (i, snap) in snaps.iter().enumerate() {
                let from = if i == 0 { None } else { p.from(snaps[i - 1]).await };
                sent.push(p.send(snap, &SendOpts { from, ..raw() }).await);
            }
            for (i, name) in ["one", "two", "three"].iter().enumerate() {
                p.receive(&sent[i], to(to_fs, name)).await.unwrap();
            }
            let locked = p.dsl().by_name(&format!("{to_fs}@three")).await.unwrap();
            let refused = send(p.dsl(), &locked, &SendOpts::default(), &mut Vec::<u8>::new()).await;
            assert!(refused.is_err_and(|e| e.is(Errno::Access)), "it has no key");
            assert!(p.load(to_fs, 8).await.is_err_and(|e| e.is(Errno::Access)));
            p.load(to_fs, 7).await.unwrap();
            for (i, name) in ["one", "two", "three"].iter().enumerate() {
                let want = p.plain(snaps[i]).await;
                same(&want, &p.plain(&format!("{to_fs}@{name}")).await, name);
            }
            // What is changed here is written with the same key.
            p.fill(to_fs, 200, 5, 4).await;
        }
        // Plain contents go into encrypted datasets too, and out of them.
        p.create_fs("tank/plain").await;
        p.fill("tank/plain", 0, 20, 5).await;
        p.snapshot("tank/plain@s").await;
        let full = p.plain("tank/plain@s").await;
        p.receive(&full, to("tank/gcm/child", "s")).await.unwrap();
        same(&full, &p.plain("tank/gcm/child@s").await, "into an encrypted parent");
        p.fill("tank/plain", 5, 5, 6).await;
        p.snapshot("tank/plain@t").await;
        let step = SendOpts { from: p.from("tank/plain@s").await, compressed: true, ..SendOpts::default() };
        p.receive(&p.send("tank/plain@t", &step).await, to("tank/gcm/child", "t")).await.unwrap();
        same(&p.plain("tank/plain@t").await, &p.plain("tank/gcm/child@t").await, "an increment");
        p.export().await;
        zdb_clean(dir.path(), "tank");
        let p = Pool::open(&env, dir.path()).await;
        p.load("tank/gcm2", 7).await.unwrap();
        p.mount("tank/gcm2").await;
        p.export().await;
    });
}

/// OpenZFS 12014: raw receive, then snapshot, then send.
#[test]
fn a_raw_receive_can_be_snapshotted_and_sent_on() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        p.create_crypt("tank/a", 8, 7).await;
        p.fill("tank/a", 0, 40, 1).await;
        p.snapshot("tank/a@one").await;
        p.receive(&p.send("tank/a@one", &raw()).await, to("tank/b", "one")).await.unwrap();
        // Without the key, and with it.
        p.snapshot("tank/b@mine").await;
        let first = SendOpts { from: p.from("tank/b@one").await, ..raw() };
        p.receive(&p.send("tank/b@one", &raw()).await, to("tank/c", "one")).await.unwrap();
        p.receive(&p.send("tank/b@mine", &first).await, to("tank/c", "mine")).await.unwrap();
        p.load("tank/b", 7).await.unwrap();
        p.fill("tank/b", 10, 20, 2).await;
        p.snapshot("tank/b@more").await;
        let next = SendOpts { from: p.from("tank/b@mine").await, ..raw() };
        p.receive(&p.send("tank/b@more", &next).await, to("tank/c", "more")).await.unwrap();
        p.load("tank/c", 7).await.unwrap();
        for snap in ["one", "mine", "more"] {
            same(&p.plain(&format!("tank/b@{snap}")).await, &p.plain(&format!("tank/c@{snap}")).await, snap);
        }
        same(&p.plain("tank/a@one").await, &p.plain("tank/c@one").await, "all the way");
        p.export().await;
        zdb_clean(dir.path(), "tank");
    });
}

/// OpenZFS 11688 and 15837: the receiver changes the key, and increments go on coming.
#[test]
fn a_key_changed_on_the_receiving_side_stays_the_key() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        p.create_crypt("tank/a", 8, 7).await;
        p.fill("tank/a", 0, 20, 1).await;
        p.snapshot("tank/a@one").await;
        p.receive(&p.send("tank/a@one", &raw()).await, to("tank/b", "one")).await.unwrap();
        p.receive(&p.send("tank/a@one", &raw()).await, to("tank/c", "one")).await.unwrap();
        p.load("tank/b", 7).await.unwrap();
        p.rekey("tank/b", 9).await;
        p.fill("tank/a", 5, 10, 2).await;
        p.snapshot("tank/a@two").await;
        p.rekey("tank/a", 3).await;
        let step = SendOpts { from: p.from("tank/a@one").await, ..raw() };
        let step = p.send("tank/a@two", &step).await;
        p.receive(&step, to("tank/b", "two")).await.unwrap();
        same(&p.plain("tank/a@two").await, &p.plain("tank/b@two").await, "it is still open");
        p.dsl().unload_key("tank/b").await.unwrap();
        p.load("tank/b", 9).await.unwrap();
        same(&p.plain("tank/a@two").await, &p.plain("tank/b@two").await, "the receiver's key");
        // Where nobody's key would be lost the sender's comes along.
        p.receive(&step, to("tank/c", "two")).await.unwrap();
        assert!(p.load("tank/c", 7).await.is_err_and(|e| e.is(Errno::Access)));
        p.load("tank/c", 3).await.unwrap();
        same(&p.plain("tank/a@two").await, &p.plain("tank/c@two").await, "the sender's key");
        p.export().await;
        zdb_clean(dir.path(), "tank");
    });
}

/// As in OpenZFS the key is the one that the stream's last part speaks of.
#[test]
fn a_key_changed_before_the_rest_is_sent_comes_with_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        p.create_crypt("tank/a", 8, 7).await;
        p.fill("tank/a", 0, 30, 1).await;
        p.snapshot("tank/a@one").await;
        let stream = p.send("tank/a@one", &raw()).await;
        let opts = RecvOpts { resumable: true, ..to("tank/b", "one") };
        assert!(p.receive(&stream[..stream.len() / 2], opts.clone()).await.is_err());
        p.spa.sync().await.unwrap();
        p.rekey("tank/a", 3).await;
        let left = p.dsl().recv_partial("tank/b").await.unwrap().unwrap();
        let state = p.dsl().resume_state(&left).await.unwrap().unwrap();
        let resume = Some(Resume { object: state.object, offset: state.offset });
        let rest = p.send("tank/a@one", &SendOpts { resume, ..raw() }).await;
        p.receive(&rest, opts).await.unwrap();
        assert!(p.load("tank/b", 7).await.is_err_and(|e| e.is(Errno::Access)));
        p.load("tank/b", 3).await.unwrap();
        same(&p.plain("tank/a@one").await, &p.plain("tank/b@one").await, "the sender's key");
        p.export().await;
        zdb_clean(dir.path(), "tank");
    });
}

/// OpenZFS 18739: increments do not go on top of what has other IVs, however equal it is.
#[test]
fn other_sets_of_ivs_are_refused_and_nothing_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        p.create_crypt("tank/a", 8, 7).await;
        p.fill("tank/a", 0, 20, 1).await;
        p.snapshot("tank/a@one").await;
        p.fill("tank/a", 5, 10, 2).await;
        p.snapshot("tank/a@two").await;
        p.fill("tank/a", 5, 10, 3).await;
        p.snapshot("tank/a@three").await;
        p.receive(&p.send("tank/a@one", &raw()).await, to("tank/b", "one")).await.unwrap();
        let (one, two) = (p.from("tank/a@one").await, p.from("tank/a@two").await);
        let raw_two = p.send("tank/a@two", &SendOpts { from: one, ..raw() }).await;
        let raw_three = p.send("tank/a@three", &SendOpts { from: two, ..raw() }).await;
        let plain_two = p.send("tank/a@two", &SendOpts { from: one, ..SendOpts::default() }).await;
        let said = |r: Result<()>| r.expect_err("refused").to_string();
        assert!(said(p.receive(&plain_two, to("tank/b", "two")).await).contains("must be loaded"));
        p.load("tank/b", 7).await.unwrap();
        p.receive(&plain_two, to("tank/b", "two")).await.unwrap();
        let mismatch = said(p.receive(&raw_three, to("tank/b", "three")).await);
        assert!(mismatch.contains("IV set guid mismatch"), "{mismatch}");
        p.create_fs("tank/plain").await;
        p.receive(&p.plain("tank/a@one").await, to("tank/p", "one")).await.unwrap();
        let onto = said(p.receive(&raw_two, to("tank/p", "two")).await);
        assert!(onto.contains("existing unencrypted dataset"), "{onto}");
        let forced = RecvOpts { force: true, ..to("tank/b", "x") };
        let over = said(p.receive(&p.send("tank/a@one", &raw()).await, forced).await);
        assert!(over.contains("cannot be used to destroy an encrypted filesystem"), "{over}");
        same(&p.plain("tank/a@two").await, &p.plain("tank/b@two").await, "as it was");
        p.export().await;
        zdb_clean(dir.path(), "tank");
    });
}

#[test]
fn a_raw_stream_cut_or_flipped_anywhere_goes_on_or_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let mut p = Pool::create(&env, dir.path()).await;
        p.create_crypt("tank/a", 8, 7).await;
        p.fill("tank/a", 0, 30, 1).await;
        p.spill("tank/a", 0..4, 1).await;
        p.snapshot("tank/a@one").await;
        p.fill("tank/a", 5, 10, 2).await;
        p.snapshot("tank/a@two").await;
        let from = p.from("tank/a@one").await;
        for (round, percent) in [3usize, 40, 97].into_iter().enumerate() {
            for (snap, from) in [("one", None), ("two", from)] {
                let stream = p.send(&format!("tank/a@{snap}"), &SendOpts { from, ..raw() }).await;
                let mut bad = stream.clone();
                bad[stream.len() * percent / 100] ^= 4;
                let fs = format!("tank/r{round}");
                assert!(p.receive(&bad, to(&fs, snap)).await.is_err());
                let opts = RecvOpts { resumable: true, ..to(&fs, snap) };
                let cut = &stream[..stream.len() * percent / 100];
                assert!(p.receive(cut, opts.clone()).await.is_err());
                if round == 1 {
                    p.export().await;
                    zdb_clean(dir.path(), "tank");
                    p = Pool::open(&env, dir.path()).await;
                }
                p.spa.sync().await.unwrap();
                let left = p.dsl().recv_partial(&fs).await.unwrap().unwrap();
                let state = p.dsl().resume_state(&left).await.unwrap().unwrap();
                assert!(state.raw);
                let resume = Some(Resume { object: state.object, offset: state.offset });
                let rest = p.send(&format!("tank/a@{snap}"), &SendOpts { from, resume, ..raw() }).await;
                p.receive(&rest, opts).await.unwrap();
            }
        }
        p.load("tank/a", 7).await.ok();
        for round in 0..3 {
            p.load(&format!("tank/r{round}"), 7).await.unwrap();
            for snap in ["one", "two"] {
                let want = p.plain(&format!("tank/a@{snap}")).await;
                same(&want, &p.plain(&format!("tank/r{round}@{snap}")).await, snap);
            }
        }
        p.export().await;
        zdb_clean(dir.path(), "tank");
    });
}

/// A create looks whether the key is there, and later in its task writes what needs it.
#[test]
fn a_key_is_not_unloaded_in_the_middle_of_another_s_task() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        p.create_crypt("tank/a", 8, KEY).await;
        p.snapshot("tank/a@one").await;
        let (begun, within) = (Arc::new(AtomicBool::new(false)), env.clone());
        let begins = begun.clone();
        let create: Op<bool> = Box::new(move |dsl, _| {
            Box::pin(async move {
                let dir = dsl.dir_by_name("tank/a").await?;
                assert!(dsl.key_loaded(&dir).await?);
                begins.store(true, Ordering::Release);
                within.sleep(Duration::from_millis(100)).await;
                dsl.key_loaded(&dir).await
            })
        });
        let unload = async {
            while !begun.load(Ordering::Acquire) {
                env.sleep(Duration::from_millis(1)).await;
            }
            p.dsl().unload_key("tank/a").await
        };
        let (stayed, unloaded) = futures_util::future::join(p.task(create), unload).await;
        assert!(stayed.unwrap(), "the key was gone in the middle of the task");
        unloaded.unwrap();
        let (dir, dsl) = (p.dsl().dir_by_name("tank/a").await.unwrap(), p.dsl());
        assert!(!dsl.key_loaded(&dir).await.unwrap());
        // One that is in use stays, and is opened with it.
        p.load("tank/a", KEY).await.unwrap();
        let used = dsl.by_name("tank/a@one").await.unwrap().hold();
        assert!(dsl.unload_key("tank/a").await.is_err_and(|e| e.is(Errno::Busy)));
        assert!(dsl.key_loaded(&dir).await.unwrap());
        drop(used);
        let head = dsl.by_name("tank/a").await.unwrap();
        assert!(!dsl.objset(&head).await.unwrap().is_locked());
        p.export().await;
    });
}
