//! What is said to be received is there, all of it and nothing else; what is not is refused, and
//! goes on from where it is whole.

use super::raw::KEY;
use super::*;
use std::os::unix::fs::FileExt;
use std::time::Duration;
use zilla_core::types::ObjectId;
use zilla_ondisk::blkptr::BlkPtr;

const LARGE: usize = 1 << 20;

impl Pool {
    /// One file, with records of a megabyte.
    async fn large_file(&self, fs: &str, name: &str, at: usize, data: Vec<u8>) -> u64 {
        let ds = self.dsl().by_name(fs).await.unwrap();
        let os = self.dsl().objset(&ds).await.unwrap();
        let props = FsProps { recordsize: LARGE as u32, ..FsProps::default() };
        let txgs = Some(self.spa.ctx.txgs.clone());
        let zfs = Zfs::open(self.env.clone(), os, txgs, Arc::new(Unlimited), props).await.unwrap();
        let h = match zfs.lookup(zfs.root(), name.as_bytes()).await {
            Ok((h, _)) => h,
            Err(_) => {
                let new = NewFile::new(0o100644, Cred { uid: 0, gid: 0 });
                zfs.create(zfs.root(), name.as_bytes(), new).await.unwrap().0
            }
        };
        zfs.write(h.id(), at as u64, &Bytes::from(data), false).await.unwrap();
        self.spa.sync().await.unwrap();
        h.id()
    }

    /// `tank/a@one`; and `tank/o@base` with many more files, in blocks of dnodes that a stream of
    /// the first says nothing of.
    async fn unlike(&self) {
        self.create_fs("tank/a").await;
        self.create_fs("tank/o").await;
        self.fill("tank/a", 0, 6, 1).await;
        self.fill("tank/o", 0, 90, 2).await;
        self.snapshot("tank/a@one").await;
        self.snapshot("tank/o@base").await;
    }

    /// The pointers that an object's dnode has on disk.
    async fn roots(&self, snap: &str, object: u64) -> Vec<BlkPtr> {
        let ds = self.dsl().by_name(snap).await.unwrap();
        let os = self.dsl().objset(&ds).await.unwrap();
        let dn = os.hold_wait(ObjectId(object)).await.unwrap().phys();
        assert_eq!(dn.nlevels, 2, "a file of some blocks");
        dn.blkptr.iter().filter(|bp| !bp.is_hole()).copied().collect()
    }
}

fn noise(len: usize, seed: u8) -> Vec<u8> {
    let mut x = u64::from(seed) | 1;
    let mut next = || {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (x >> 33) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Turns the bytes of all copies of a block over; done twice it is as it was.
fn turn(dir: &Path, bps: &[BlkPtr]) {
    let disk = std::fs::File::options().read(true).write(true).open(dir.join("d0.img")).unwrap();
    for (bp, dva) in bps.iter().flat_map(|bp| bp.dvas().map(move |dva| (bp, dva))) {
        let at = dva.offset + (4 << 20);
        let mut data = vec![0; bp.psize() as usize];
        disk.read_exact_at(&mut data, at).unwrap();
        data.iter_mut().for_each(|b| *b = !*b);
        disk.write_all_at(&data, at).unwrap();
    }
}

#[test]
fn what_cannot_be_put_down_over_damage_is_not_said_to_be_received() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    let (step, file, roots) = env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        p.create_fs("tank/a").await;
        let file = p.large_file("tank/a", "file", 0, noise(3 * LARGE, 1)).await;
        p.snapshot("tank/a@one").await;
        let large = SendOpts { large_blocks: true, ..SendOpts::default() };
        p.receive(&p.send("tank/a@one", &large).await, to("tank/b", "one")).await.unwrap();
        p.large_file("tank/a", "file", LARGE, noise(LARGE, 2)).await;
        p.snapshot("tank/a@two").await;
        let from = p.from("tank/a@one").await;
        let step = p.send("tank/a@two", &SendOpts { from, ..large }).await;
        let roots = p.roots("tank/b@one", file).await;
        p.export().await;
        (step, file, roots)
    });
    // What points to the file's blocks, at the target.
    turn(dir.path(), &roots);
    env.block_on(async {
        let p = Pool::open(&env, dir.path()).await;
        let done = p.receive(&step, to("tank/b", "two")).await;
        let why = "cannot be written over damaged blocks";
        assert!(done.as_ref().is_err_and(|e| e.is(Errno::Io) && e.to_string().contains(why)), "{done:?}");
        assert!(p.dsl().by_name("tank/b@two").await.is_err(), "it is there, without what was changed");
        assert!(p.dsl().by_name("tank/b/%recv").await.is_err(), "half a receive is there");
        let kept = RecvOpts { resumable: true, ..to("tank/b", "two") };
        assert!(p.receive(&step, kept).await.is_err_and(|e| e.is(Errno::Io)));
        p.export().await;
    });
    // The disk has come to itself again, and the rest of the stream makes the snapshot whole.
    turn(dir.path(), &roots);
    env.block_on(async {
        let p = Pool::open(&env, dir.path()).await;
        let ds = p.dsl().recv_partial("tank/b").await.unwrap().expect("something to go on from");
        let state = p.dsl().resume_state(&ds).await.unwrap().expect("a note of how far it came");
        assert!((state.object, state.offset) < (file, LARGE as u64), "{state:?} is behind what is missing");
        let opts = SendOpts {
            from: p.from("tank/a@one").await,
            large_blocks: true,
            resume: Some(Resume { object: state.object, offset: state.offset }),
            ..SendOpts::default()
        };
        let rest = p.send("tank/a@two", &opts).await;
        p.receive(&rest, RecvOpts { resumable: true, ..to("tank/b", "two") }).await.unwrap();
        let sent = p.send("tank/a@two", &SendOpts::default()).await;
        same(&sent, &p.send("tank/b@two", &SendOpts::default()).await, "in the end");
        p.export().await;
    });
    zdb_clean(dir.path(), "tank");
}

#[test]
fn a_whole_stream_that_is_received_as_a_clone_ends_with_its_last_object() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        p.unlike().await;
        let full = p.send("tank/a@one", &SendOpts::default()).await;
        let base = || RecvOpts { origin: Some("tank/o@base".into()), ..to("tank/c", "x") };
        p.receive(&full, base()).await.unwrap();
        same(&full, &p.send("tank/c@x", &SendOpts::default()).await, "at once");
        // The same of one that was cut, and goes on behind its last object.
        let opts = |fs| RecvOpts { resumable: true, origin: Some("tank/o@base".into()), ..to(fs, "x") };
        assert!(p.receive(&full[..full.len() - 312], opts("tank/d")).await.is_err());
        p.spa.sync().await.unwrap();
        let ds = p.dsl().recv_partial("tank/d").await.unwrap().unwrap();
        let state = p.dsl().resume_state(&ds).await.unwrap().unwrap();
        let resume = Some(Resume { object: state.object, offset: state.offset });
        let rest = p.send("tank/a@one", &SendOpts { resume, ..SendOpts::default() }).await;
        p.receive(&rest, RecvOpts { resumable: true, ..to("tank/d", "x") }).await.unwrap();
        same(&full, &p.send("tank/d@x", &SendOpts::default()).await, "resumed");
        p.export().await;
    });
    zdb_clean(dir.path(), "tank");
}

#[test]
fn large_files_are_never_taken_for_others_with_smaller_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        p.create_fs("tank/a").await;
        p.large_file("tank/a", "file", 0, noise(4 * LARGE, 1)).await;
        p.snapshot("tank/a@one").await;
        let large = SendOpts { large_blocks: true, ..SendOpts::default() };
        let full = p.send("tank/a@one", &large).await;
        p.receive(&full, to("tank/b", "one")).await.unwrap();
        p.large_file("tank/a", "file", 2 * LARGE, noise(LARGE, 2)).await;
        p.snapshot("tank/a@two").await;
        let from = p.from("tank/a@one").await;
        let split = p.send("tank/a@two", &SendOpts { from, ..SendOpts::default() }).await;
        let no = |done: Result<()>| {
            assert!(done.as_ref().is_err_and(|e| e.is(Errno::Inval)), "{done:?}");
        };
        no(p.receive(&split, to("tank/b", "two")).await);
        no(p.receive(&split, RecvOpts { force: true, ..to("tank/b", "two") }).await);
        no(p.receive(&split, RecvOpts { origin: Some("tank/b@one".into()), ..to("tank/c", "two") }).await);
        // Nor where the stream that is gone on with had them whole.
        let step = p.send("tank/a@two", &SendOpts { from, ..large }).await;
        for (stream, fs, snap, from) in [(&full, "tank/d", "one", None), (&step, "tank/b", "two", from)] {
            let opts = || RecvOpts { resumable: true, ..to(fs, snap) };
            assert!(p.receive(&stream[..stream.len() - LARGE / 2], opts()).await.is_err());
            p.spa.sync().await.unwrap();
            let ds = p.dsl().recv_partial(fs).await.unwrap().unwrap();
            let state = p.dsl().resume_state(&ds).await.unwrap().unwrap();
            let resume = Some(Resume { object: state.object, offset: state.offset });
            let of = |large_blocks| SendOpts { from, large_blocks, resume, ..SendOpts::default() };
            no(p.receive(&p.send(&format!("tank/a@{snap}"), &of(false)).await, opts()).await);
            p.receive(&p.send(&format!("tank/a@{snap}"), &of(true)).await, opts()).await.unwrap();
            let sent = p.send(&format!("tank/a@{snap}"), &SendOpts::default()).await;
            same(&sent, &p.send(&format!("{fs}@{snap}"), &SendOpts::default()).await, snap);
        }
        p.export().await;
    });
    zdb_clean(dir.path(), "tank");
}

#[test]
fn what_stands_in_the_log_alone_is_not_received_over() {
    let (dir, crashed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let env = zilla_env::real_env(2);
    let step = env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        p.create_fs("tank/a").await;
        p.fill("tank/a", 0, 3, 1).await;
        p.snapshot("tank/a@one").await;
        p.receive(&p.send("tank/a@one", &SendOpts::default()).await, to("tank/b", "one")).await.unwrap();
        p.fill("tank/a", 0, 1, 2).await;
        p.snapshot("tank/a@two").await;
        let from = p.from("tank/a@one").await;
        let step = p.send("tank/a@two", &SendOpts { from, ..SendOpts::default() }).await;
        let ds = p.dsl().by_name("tank/b").await.unwrap();
        p.dsl().open_log(&ds).await.unwrap();
        let zfs = p.mount("tank/b").await;
        p.spa.sync().await.unwrap();
        let (h, _) = zfs.lookup(zfs.root(), b"file2").await.unwrap();
        zfs.write(h.id(), 0, &Bytes::from_static(b"acknowledged"), false).await.unwrap();
        zfs.fsync(h.id()).await.unwrap();
        std::fs::copy(dir.path().join("d0.img"), crashed.path().join("d0.img")).unwrap();
        drop((h, zfs, ds));
        p.export().await;
        step
    });
    env.block_on(async {
        let p = Pool::open(&env, crashed.path()).await;
        let done = p.receive(&step, to("tank/b", "two")).await;
        assert!(done.as_ref().is_err_and(|e| e.is(Errno::TxtBsy)), "{done:?}");
        let ds = p.dsl().by_name("tank/b").await.unwrap();
        p.dsl().open_log(&ds).await.unwrap();
        let zfs = p.mount("tank/b").await;
        let (h, _) = zfs.lookup(zfs.root(), b"file2").await.unwrap();
        assert_eq!(zfs.read(h.id(), 0, 12).await.unwrap().concat(), b"acknowledged");
        drop((h, zfs, ds));
        p.spa.sync().await.unwrap();
        // With force it goes.
        p.receive(&step, RecvOpts { force: true, ..to("tank/b", "two") }).await.unwrap();
        let sent = p.send("tank/a@two", &SendOpts::default()).await;
        same(&sent, &p.send("tank/b@two", &SendOpts::default()).await, "with force");
        p.export().await;
    });
}

#[test]
fn a_receive_outlives_who_looks_at_its_dataset_and_is_in_nobody_s_way() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        p.create_fs("tank/a").await;
        p.fill("tank/a", 0, 3, 1).await;
        p.snapshot("tank/a@one").await;
        let full = p.send("tank/a@one", &SendOpts::default()).await;
        let mut source = Bytes::from(full.clone());
        let mut reader = RecordReader::new(&mut source);
        let Some((Record::Begin(begin), payload)) = reader.begin().await.unwrap() else { panic!() };
        let mut r = Receive::begin(p.dsl(), begin, &payload, to("tank/b", "one")).await.unwrap();
        // Snapshots are taken of all but what is not there yet.
        let names = p.dsl().recursive_names("tank@all").await.unwrap();
        assert_eq!(names, ["tank/a@all", "tank@all"].map(str::to_owned));
        assert_eq!(p.dsl().recursive_names("tank/b@all").await.unwrap(), ["tank/b@all"]);
        r.records(&mut reader).await.unwrap();
        // Somebody has it open at its very end, as who sets a property does.
        let looks = p.dsl().by_name("tank/b").await.unwrap().hold();
        let goes = env.clone();
        env.spawn(async move {
            goes.sleep(Duration::from_millis(5)).await;
            drop(looks);
        });
        r.end().await.unwrap();
        same(&full, &p.send("tank/b@one", &SendOpts::default()).await, "in the end");
        p.export().await;
    });
}

#[test]
fn what_is_received_on_an_origin_is_not_promoted_before_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        p.unlike().await;
        let full = p.send("tank/a@one", &SendOpts::default()).await;
        let mut source = Bytes::from(full.clone());
        let mut reader = RecordReader::new(&mut source);
        let Some((Record::Begin(begin), payload)) = reader.begin().await.unwrap() else { panic!() };
        let opts = RecvOpts { origin: Some("tank/o@base".into()), ..to("tank/c", "one") };
        let mut r = Receive::begin(p.dsl(), begin, &payload, opts).await.unwrap();
        let promote =
            || -> Op<()> { Box::new(|dsl, tx| Box::pin(async move { dsl.promote(&tx, "tank/c").await })) };
        assert!(p.task(promote()).await.is_err_and(|e| e.is(Errno::Busy)));
        r.records(&mut reader).await.unwrap();
        r.end().await.unwrap();
        same(&full, &p.send("tank/c@one", &SendOpts::default()).await, "in the end");
        p.task(promote()).await.unwrap();
        p.export().await;
    });
    zdb_clean(dir.path(), "tank");
}

#[test]
fn what_is_held_over_damage_spares_a_snapshot_and_keeps_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    let (file, roots) = env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        p.create_crypt("tank/a", 8, KEY).await;
        let file = p.large_file("tank/a", "file", 0, noise(3 * LARGE, 1)).await;
        let roots = p.roots("tank/a", file).await;
        p.export().await;
        (file, roots)
    });
    turn(dir.path(), &roots);
    env.block_on(async {
        let p = Pool::open(&env, dir.path()).await;
        p.load("tank/a", KEY).await.unwrap();
        let zfs = p.mount("tank/a").await;
        zfs.write(file, 10, &Bytes::from_static(b"held"), false).await.unwrap();
        drop(zfs);
        // In the txg of the write: what has the root of that must stay as it is.
        p.snapshot("tank/a@s").await;
        let unloaded = p.dsl().unload_key("tank/a").await;
        assert!(unloaded.as_ref().is_err_and(|e| e.is(Errno::Busy)), "{unloaded:?}");
        p.export().await;
    });
    turn(dir.path(), &roots);
    env.block_on(async {
        let p = Pool::open(&env, dir.path()).await;
        p.load("tank/a", KEY).await.unwrap();
        let ds = p.dsl().by_name("tank/a@s").await.unwrap();
        send(p.dsl(), &ds, &SendOpts::default(), &mut Vec::new()).await.unwrap();
        p.export().await;
    });
}
