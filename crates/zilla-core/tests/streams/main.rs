//! Streams between real pools on files: what is sent is received as the same, whole or cut
//! anywhere; OpenZFS's zdb then accounts for every block. Streams that OpenZFS's kernel wrote are
//! those of the set `streams` of the interop tests' corpus.

mod begun;
mod cuts;
mod heads;
mod heal;
mod lies;
mod packed;
mod raw;
mod redacted;
mod refused;
mod saved;
mod whole;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use zilla_core::dsl::{DslPool, RecvOpts};
use zilla_core::error::{Errno, Result};
use zilla_core::send::frame::{RecordReader, RecordWriter};
use zilla_core::send::{From, Receive, Resume, SendOpts, send};
use zilla_core::spa::{CreateOpts, Host, OpenOpts, Spa, discover};
use zilla_core::txg::Tx;
use zilla_core::vdev::{LeafSpec, PoolSpec, TopSpec, VdevKind};
use zilla_core::zpl::{self, Cred, FsProps, NewFile, Time, Unlimited, Zfs, ZplProps};
use zilla_env::Env;
use zilla_ondisk::enums::{ObjsetType, PoolState};
use zilla_ondisk::stream::Record;
use zilla_testkit::zdb_clean;

struct Pool {
    env: Env,
    spa: Arc<Spa>,
}

type Op<T> = Box<dyn FnOnce(Arc<DslPool>, Tx) -> BoxFuture<'static, Result<T>> + Send>;

impl Pool {
    async fn create(env: &Env, dir: &Path) -> Pool {
        Pool::create_with(env, dir, None).await
    }

    /// With some features, or all that there are.
    async fn create_with(env: &Env, dir: &Path, features: Option<Vec<String>>) -> Pool {
        let path = dir.join("d0.img");
        std::fs::File::create(&path).unwrap().set_len(256 << 20).unwrap();
        let leaves = vec![LeafSpec { path, disk: false }];
        let kind = VdevKind::File;
        let top = TopSpec { kind, leaves, is_log: false, bias: None, ashift: None };
        let spec = PoolSpec { tops: vec![top], ..PoolSpec::default() };
        let opts = CreateOpts {
            name: "tank".into(),
            host: Host { id: 0x1234, name: "host".into() },
            comment: None,
            owner: (0, 0),
            features,
            dbuf_cache: 32 << 20,
            arc_max: 64 << 20,
        };
        Pool { env: env.clone(), spa: Spa::create(env, &spec, opts).await.unwrap() }
    }

    async fn open(env: &Env, dir: &Path) -> Pool {
        let found = discover(env, &[dir.to_owned()]).await.unwrap();
        let opts = OpenOpts { force: true, dbuf_cache: 32 << 20, arc_max: 64 << 20, ..OpenOpts::default() };
        Pool { env: env.clone(), spa: Spa::open(env, &found[0], opts).await.unwrap() }
    }

    async fn export(self) {
        self.spa.close(Some(PoolState::Exported)).await.unwrap();
    }

    fn dsl(&self) -> &Arc<DslPool> {
        &self.spa.dsl
    }

    async fn task<T: Send + 'static>(&self, op: Op<T>) -> Result<T> {
        let dsl = self.spa.dsl.clone();
        self.spa.ctx.sync_task(move |tx| op(dsl, tx)).await
    }

    async fn create_fs(&self, name: &'static str) {
        let wall = self.env.wall();
        let op: Op<()> = Box::new(move |dsl, tx| {
            Box::pin(async move {
                let ds = dsl.create_fs(&tx, name, ObjsetType::Zfs, 0).await?;
                let os = dsl.objset(&ds).await?;
                let now = Time { sec: wall.as_secs() as i64, nsec: wall.subsec_nanos() };
                zpl::create_fs(&os, &tx, &ZplProps::new(0, 0, now)).await
            })
        });
        self.task(op).await.unwrap();
    }

    async fn snapshot(&self, name: &'static str) {
        let op: Op<()> = Box::new(move |dsl, tx| {
            Box::pin(async move { dsl.snapshot(&tx, &[name.to_owned()]).await.map(drop) })
        });
        self.task(op).await.unwrap();
    }

    async fn mount(&self, name: &str) -> Arc<Zfs> {
        let ds = self.dsl().by_name(name).await.unwrap();
        let os = self.dsl().objset(&ds).await.unwrap();
        let txgs = (!ds.is_snapshot()).then(|| self.spa.ctx.txgs.clone());
        Zfs::open(self.env.clone(), os, txgs, Arc::new(Unlimited), FsProps::default()).await.unwrap()
    }

    /// Files `first..first + n` of many sizes, some with a hole and some with much of the same.
    async fn fill(&self, fs: &str, first: usize, n: usize, version: u8) {
        let zfs = self.mount(fs).await;
        for i in first..first + n {
            let name = format!("file{i}").into_bytes();
            let h = match zfs.lookup(zfs.root(), &name).await {
                Ok((h, _)) => h,
                Err(_) => {
                    let cred = Cred { uid: 100 + i as u32 % 3, gid: 8 };
                    zfs.create(zfs.root(), &name, NewFile::new(0o100644, cred)).await.unwrap().0
                }
            };
            let len = [100, 3000, 60_000, 200_000, 700_000][i % 5] + i * 10;
            let data: Vec<u8> =
                (0..len).map(|x| ((x * 7 + i) % 251) as u8 ^ (x / 300) as u8 ^ version).collect();
            let at = if i % 7 == 3 { 5 << 20 } else { 0 };
            zfs.write(h.id(), at, &Bytes::from(data), false).await.unwrap();
        }
        self.spa.sync().await.unwrap();
    }

    async fn remove(&self, fs: &str, first: usize, n: usize) {
        let zfs = self.mount(fs).await;
        for i in first..first + n {
            zfs.unlink(zfs.root(), format!("file{i}").as_bytes()).await.unwrap();
        }
        self.spa.sync().await.unwrap();
    }

    async fn from(&self, snap: &str) -> Option<From> {
        let ds = self.dsl().by_name(snap).await.unwrap();
        Some(From { guid: ds.guid(), txg: ds.phys().creation_txg, is_clone: false })
    }

    async fn send(&self, snap: &str, opts: &SendOpts) -> Vec<u8> {
        let ds = self.dsl().by_name(snap).await.unwrap();
        let mut out = Vec::new();
        send(self.dsl(), &ds, opts, &mut out).await.unwrap();
        out
    }

    async fn receive(&self, raw: &[u8], opts: RecvOpts) -> Result<()> {
        let mut source = Bytes::copy_from_slice(raw);
        let mut reader = RecordReader::new(&mut source);
        let Some((Record::Begin(begin), payload)) = reader.begin().await? else { panic!("no stream") };
        let mut r = Receive::begin(self.dsl(), begin, &payload, opts).await?;
        let done = match r.records(&mut reader).await {
            Ok(()) => r.end().await.map(drop),
            Err(e) => Err(e),
        };
        if done.is_err() {
            r.abort().await.unwrap();
        }
        done
    }
}

fn to(fs: &str, snap: &str) -> RecvOpts {
    RecvOpts { fs: fs.into(), snap: snap.into(), ..RecvOpts::default() }
}

/// What a stream says, as far as it does not depend on how it is put: objects, their bytes, their
/// spill blocks.
fn meaning(raw: &[u8]) -> BTreeMap<u64, BTreeMap<String, Vec<u8>>> {
    let mut source = Bytes::copy_from_slice(raw);
    let mut out: BTreeMap<u64, BTreeMap<String, Vec<u8>>> = BTreeMap::new();
    zilla_env::block_on(async {
        let mut r = RecordReader::new(&mut source);
        r.begin().await.unwrap().unwrap();
        loop {
            let (record, data) = r.next().await.unwrap();
            let mut put =
                |id, key: String, data: &[u8]| drop(out.entry(id).or_default().insert(key, data.to_vec()));
            match record {
                Record::End(_) => break,
                Record::Object(o) => {
                    let key = format!(
                        "type {} {} bonus {} codecs {} {} slots {} flags {}",
                        o.otype, o.bonustype, o.bonuslen, o.checksumtype, o.compress, o.dn_slots, o.flags
                    );
                    put(o.object, key, &data);
                }
                Record::Write(w) => {
                    let plain = match w.compressiontype {
                        0 => data.to_vec(),
                        kind => {
                            let kind = zilla_codec::compress::Compress::from_u8(kind).unwrap();
                            let mut plain = vec![0; w.logical_size as usize];
                            zilla_codec::compress::decompress(kind, &data, &mut plain).unwrap();
                            plain
                        }
                    };
                    for (i, part) in plain.chunks(512).enumerate() {
                        put(w.object, format!("at {:016x}", w.offset + i as u64 * 512), part);
                    }
                }
                Record::Spill(s) => put(s.object, "spill".into(), &data),
                _ => {}
            }
        }
    });
    out
}

fn same(a: &[u8], b: &[u8], what: &str) {
    let (a, b) = (meaning(a), meaning(b));
    assert!(!a.is_empty(), "{what}: nothing in it");
    for (id, want) in &a {
        let got = b.get(id).unwrap_or_else(|| panic!("{what}: object {id} is missing"));
        let names = |m: &BTreeMap<String, Vec<u8>>| m.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(want), names(got), "{what}: object {id}");
        assert!(want == got, "{what}: object {id} has other bytes");
    }
    assert_eq!(a.len(), b.len(), "{what}: objects");
}

#[test]
fn what_is_sent_is_received() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        p.create_fs("tank/a").await;
        p.fill("tank/a", 0, 60, 1).await;
        p.snapshot("tank/a@one").await;
        p.fill("tank/a", 10, 20, 2).await;
        p.remove("tank/a", 35, 20).await;
        p.snapshot("tank/a@two").await;
        // Numbers that were another file's.
        p.fill("tank/a", 100, 30, 3).await;
        p.snapshot("tank/a@three").await;
        let full = p.send("tank/a@one", &SendOpts::default()).await;
        p.receive(&full, to("tank/b", "one")).await.unwrap();
        same(&full, &p.send("tank/b@one", &SendOpts::default()).await, "full");
        let one = p.from("tank/a@one").await;
        let opts = SendOpts {
            from: one,
            compressed: true,
            embed: true,
            large_blocks: true,
            raw: false,
            resume: None,
        };
        let step = p.send("tank/a@two", &opts).await;
        p.receive(&step, to("tank/b", "two")).await.unwrap();
        let step = p.send("tank/a@three", &SendOpts { from: p.from("tank/a@two").await, ..opts }).await;
        p.receive(&step, to("tank/b", "three")).await.unwrap();
        for snap in ["one", "two", "three"] {
            let sent = p.send(&format!("tank/a@{snap}"), &SendOpts::default()).await;
            same(&sent, &p.send(&format!("tank/b@{snap}"), &SendOpts::default()).await, snap);
        }
        // All at once, and as a clone of what is there.
        let jump = SendOpts { from: one, ..SendOpts::default() };
        let step = p.send("tank/a@three", &jump).await;
        p.receive(&step, RecvOpts { origin: Some("tank/b@one".into()), ..to("tank/c", "x") }).await.unwrap();
        let sent = p.send("tank/a@three", &SendOpts::default()).await;
        same(&sent, &p.send("tank/c@x", &SendOpts::default()).await, "clone");
        // Whole, over what is there, which nothing may depend on.
        let forced = || RecvOpts { force: true, ..to("tank/b", "again") };
        assert!(p.receive(&sent, forced()).await.is_err_and(|e| e.is(Errno::Exist)));
        let op: Op<()> = Box::new(|dsl, tx| {
            Box::pin(async move {
                dsl.destroy_snapshots(&tx, &["tank/c@x".into()], false).await?;
                dsl.destroy_head(&tx, "tank/c").await
            })
        });
        p.task(op).await.unwrap();
        p.receive(&sent, forced()).await.unwrap();
        same(&sent, &p.send("tank/b@again", &SendOpts::default()).await, "forced");
        let left =
            p.dsl().snapshots(&p.dsl().by_name("tank/b").await.unwrap_or_else(|e| panic!("{e}"))).await;
        assert_eq!(left.unwrap().len(), 1);
        p.export().await;
    });
    zdb_clean(dir.path(), "tank");
}

#[test]
fn what_cannot_be_received_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        p.create_fs("tank/a").await;
        p.fill("tank/a", 0, 10, 1).await;
        p.snapshot("tank/a@one").await;
        p.fill("tank/a", 0, 10, 2).await;
        p.snapshot("tank/a@two").await;
        let full = p.send("tank/a@one", &SendOpts::default()).await;
        let step =
            p.send("tank/a@two", &SendOpts { from: p.from("tank/a@one").await, ..SendOpts::default() }).await;
        let no = |e: Result<()>, errno| assert!(e.as_ref().is_err_and(|e| e.is(errno)), "{e:?}");
        no(p.receive(&step, to("tank/b", "two")).await, Errno::NoEnt);
        p.receive(&full, to("tank/b", "one")).await.unwrap();
        no(p.receive(&full, to("tank/b", "again")).await, Errno::Exist);
        no(p.receive(&step, to("tank/b", "one")).await, Errno::Exist);
        p.fill("tank/b", 3, 1, 9).await;
        no(p.receive(&step, to("tank/b", "two")).await, Errno::TxtBsy);
        for len in [200, 312, 5000, full.len() / 2, full.len() - 1] {
            assert!(p.receive(&full[..len], to("tank/c", "one")).await.is_err());
            assert!(p.dsl().by_name("tank/c").await.is_err(), "half a dataset is there");
            let forced = RecvOpts { force: true, ..to("tank/b", "two") };
            assert!(p.receive(&step[..len.min(step.len() - 1)], forced).await.is_err());
            assert!(p.dsl().by_name("tank/b/%recv").await.is_err(), "half a receive is there");
        }
        p.receive(&step, RecvOpts { force: true, ..to("tank/b", "two") }).await.unwrap();
        let sent = p.send("tank/a@two", &SendOpts::default()).await;
        same(&sent, &p.send("tank/b@two", &SendOpts::default()).await, "after all that");
        p.export().await;
    });
    zdb_clean(dir.path(), "tank");
}

#[test]
fn a_receive_that_was_cut_anywhere_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    let (full, step) = env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        p.create_fs("tank/a").await;
        p.fill("tank/a", 0, 40, 1).await;
        p.snapshot("tank/a@one").await;
        p.fill("tank/a", 5, 20, 2).await;
        p.remove("tank/a", 30, 5).await;
        p.snapshot("tank/a@two").await;
        let full = p.send("tank/a@one", &SendOpts::default()).await;
        let from = p.from("tank/a@one").await;
        let step = p.send("tank/a@two", &SendOpts { from, ..SendOpts::default() }).await;
        p.export().await;
        (full, step)
    });
    for (n, part) in [7, 23, 50, 71, 99].into_iter().enumerate() {
        env.block_on(async {
            let p = Pool::open(&env, dir.path()).await;
            let fs = format!("tank/r{n}");
            let from = p.from("tank/a@one").await;
            for (raw, snap, from) in [(&full, "one", None), (&step, "two", from)] {
                let opts = || RecvOpts { resumable: true, ..to(&fs, snap) };
                let cut = raw.len() * part / 100;
                assert!(p.receive(&raw[..cut], opts()).await.is_err());
                let ds = p.dsl().recv_partial(&fs).await.unwrap().expect("something to go on from");
                p.spa.sync().await.unwrap();
                let state = p.dsl().resume_state(&ds).await.unwrap().expect("a note of how far it came");
                assert!(state.bytes > 0 && state.bytes <= cut as u64, "{state:?}");
                // Nothing else may be received meanwhile, nor what does not go on there.
                assert!(p.receive(raw, to(&fs, snap)).await.is_err_and(|e| e.is(Errno::Busy)));
                let resume = Some(Resume { object: state.object, offset: state.offset });
                let wrong = Some(Resume { object: state.object + 1, offset: 0 });
                let of = |resume| SendOpts { from, resume, ..SendOpts::default() };
                let bad = p.send(&format!("tank/a@{snap}"), &of(wrong)).await;
                assert!(p.receive(&bad, opts()).await.is_err());
                let rest = p.send(&format!("tank/a@{snap}"), &of(resume)).await;
                assert!(rest.len() < raw.len() + 1000);
                p.receive(&rest, opts()).await.unwrap();
                let sent = p.send(&format!("tank/a@{snap}"), &SendOpts::default()).await;
                same(&sent, &p.send(&format!("{fs}@{snap}"), &SendOpts::default()).await, snap);
                let head = p.dsl().by_name(&fs).await.unwrap();
                assert!(p.dsl().resume_state(&head).await.unwrap().is_none());
            }
            p.export().await;
        });
    }
    zdb_clean(dir.path(), "tank");
}

#[test]
fn streams_of_openzfs_come_back_as_they_were() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/interop/corpus");
    let unpacked = tempfile::tempdir().unwrap();
    let mut tar = Command::new("tar");
    tar.arg("--zstd").arg("-xf").arg(corpus.join("streams.tar.zst")).arg("-C").arg(unpacked.path());
    assert!(tar.status().unwrap().success());
    let read = |name: &str| std::fs::read(unpacked.path().join("streams/streams").join(name)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        for (name, fs, snap, from, compressed) in [
            ("full.zsend", "tank/f", "s1", None, false),
            ("incr-s1-s2.zsend", "tank/f", "s2", Some("tank/f@s1"), false),
            ("full-compressed.zsend", "tank/c", "s3", None, true),
            ("vol.zsend", "tank/v", "v1", None, false),
            ("vol-incr.zsend", "tank/v", "v2", Some("tank/v@v1"), true),
        ] {
            let raw = read(name);
            p.receive(&raw, to(fs, snap)).await.unwrap_or_else(|e| panic!("{name}: {e}"));
            let from = match from {
                Some(f) => p.from(f).await,
                None => None,
            };
            let again =
                p.send(&format!("{fs}@{snap}"), &SendOpts { from, compressed, ..SendOpts::default() }).await;
            std::fs::write(dir.path().join(name), &again).unwrap();
            same(&raw, &again, name);
            match Command::new("/usr/sbin/zstream").arg("dump").arg(dir.path().join(name)).output() {
                Ok(dump) => {
                    let why = String::from_utf8_lossy(&dump.stderr);
                    assert!(dump.status.success(), "{name}: {why}");
                }
                Err(e) if std::env::var_os("CI").is_some() => panic!("OpenZFS's zstream is needed: {e}"),
                Err(e) => eprintln!("{name} is not checked by OpenZFS's zstream: {e}"),
            }
        }
        p.export().await;
    });
    zdb_clean(dir.path(), "tank");
}

/// The records of a stream, each with its payload.
fn records(raw: &[u8]) -> Vec<(Record, Bytes)> {
    let mut source = Bytes::copy_from_slice(raw);
    zilla_env::block_on(async {
        let mut r = RecordReader::new(&mut source);
        let mut out = vec![r.begin().await.unwrap().unwrap()];
        loop {
            let next = r.next().await.unwrap();
            if matches!(next.0, Record::End(_)) {
                return out;
            }
            out.push(next);
        }
    })
}

/// The same with right checksums.
fn rewritten(list: &[(Record, Bytes)]) -> Vec<u8> {
    let mut out = Vec::new();
    zilla_env::block_on(async {
        let mut w = RecordWriter::new(&mut out);
        for (r, data) in list {
            w.record(r, data.clone()).await.unwrap();
        }
        let toguid = list[0].0.toguid();
        w.end(toguid).await.unwrap();
    });
    out
}

/// A number that somebody may wish to try.
fn odd(dice: &mut impl FnMut(u64) -> u64, old: u64) -> u64 {
    match dice(8) {
        0 => 0,
        1 => u64::MAX,
        2 => i64::MAX as u64 - dice(1 << 20),
        3 => 1 << dice(64),
        4 => old.wrapping_add(1),
        5 => old.wrapping_sub(dice(600)),
        6 => dice(200),
        _ => old ^ 1 << dice(64),
    }
}

fn mutate(dice: &mut impl FnMut(u64) -> u64, (record, data): &mut (Record, Bytes)) {
    match record {
        Record::Object(o) => match dice(7) {
            0 => o.object = odd(dice, o.object),
            1 => o.otype = odd(dice, o.otype.into()) as u32 & 0xff,
            2 => o.bonustype = odd(dice, o.bonustype.into()) as u32 & 0xff,
            3 => o.blksz = odd(dice, o.blksz.into()) as u32,
            4 => o.dn_slots = odd(dice, 1) as u8,
            5 => o.checksumtype = dice(40) as u8,
            _ => {
                let mut bonus = data.to_vec();
                if !bonus.is_empty() {
                    let at = dice(bonus.len() as u64) as usize;
                    bonus[at] = dice(256) as u8;
                }
                *data = bonus.into();
            }
        },
        Record::Write(w) => match dice(3) {
            0 => w.object = odd(dice, w.object),
            1 => w.offset = odd(dice, w.offset),
            _ => {
                w.compressiontype = dice(20) as u8;
                w.compressed_size = data.len() as u64;
                if w.compressiontype == 0 {
                    w.logical_size = data.len() as u64;
                }
            }
        },
        Record::Free(f) => match dice(3) {
            0 => f.object = odd(dice, f.object),
            1 => f.offset = odd(dice, f.offset),
            _ => f.length = odd(dice, f.length),
        },
        Record::FreeObjects(f) => match dice(2) {
            0 => f.firstobj = odd(dice, f.firstobj),
            _ => f.numobjs = odd(dice, f.numobjs),
        },
        Record::Spill(s) => s.object = odd(dice, s.object),
        _ => {}
    }
}

#[test]
fn an_enemy_s_stream_is_received_or_refused() {
    let runs: u64 = std::env::var("ZILLA_HOSTILE_STREAMS").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut dice = move |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        p.create_fs("tank/a").await;
        p.fill("tank/a", 0, 12, 1).await;
        p.snapshot("tank/a@one").await;
        p.fill("tank/a", 5, 5, 2).await;
        p.remove("tank/a", 10, 2).await;
        p.snapshot("tank/a@two").await;
        let full = records(&p.send("tank/a@one", &SendOpts::default()).await);
        let opts = SendOpts { from: p.from("tank/a@one").await, compressed: true, ..SendOpts::default() };
        let step = records(&p.send("tank/a@two", &opts).await);
        p.receive(&rewritten(&full), to("tank/b", "one")).await.unwrap();
        let mut taken = 0;
        for _ in 0..runs {
            let whole = dice(2) == 0;
            let mut bad = if whole { full.clone() } else { step.clone() };
            for _ in 0..1 + dice(4) {
                let at = 1 + dice(bad.len() as u64 - 1) as usize;
                match dice(6) {
                    0 => drop(bad.remove(at)),
                    1 => {
                        let copy = bad[at].clone();
                        bad.insert(1 + dice(bad.len() as u64 - 1) as usize, copy);
                    }
                    _ => mutate(&mut dice, &mut bad[at]),
                }
            }
            // (One that has become inconsistent with its payload's length cannot be written at
            // all.)
            bad.retain(|(r, data)| r.payload_len() == data.len() as u64);
            let fs = if whole { "tank/c" } else { "tank/b" };
            if p.receive(&rewritten(&bad), RecvOpts { force: true, ..to(fs, "x") }).await.is_ok() {
                taken += 1;
                let op: Op<()> = Box::new(move |dsl, tx| {
                    Box::pin(async move {
                        dsl.destroy_snapshots(&tx, &[format!("{fs}@x")], false).await?;
                        if whole { dsl.destroy_head(&tx, fs).await } else { Ok(()) }
                    })
                });
                p.task(op).await.unwrap();
            }
        }
        assert!(taken > 0 && taken < runs, "{taken} of {runs} were taken");
        let sent = p.send("tank/a@one", &SendOpts::default()).await;
        same(&sent, &p.send("tank/b@one", &SendOpts::default()).await, "what was there before");
        p.export().await;
    });
    zdb_clean(dir.path(), "tank");
}
