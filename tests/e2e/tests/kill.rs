//! `kill -9` of the daemon at random moments of a copy: each import succeeds at once, with every
//! file that was synced.
//!
//! `ZILLA_KILLS` says how often (200 for the proof, a few in every run), `ZILLA_SEED` repeats a
//! run.

use rustix::fs::{Mode, OFlags};
use rustix::io::{ReadWriteFlags, pwritev2};
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::{IoSlice, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use zilla_e2e::{Kind, Need, Pool, Random, World, can, pool};

/// A file that was synced: its name and the seed and size of its contents.
#[derive(Debug, Clone)]
struct Synced {
    name: String,
    seed: u64,
    size: usize,
}

#[test]
fn killed_at_any_moment_of_a_copy() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let kills: usize = std::env::var("ZILLA_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(4);
    let mut random = Random::from_env();
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, 512 << 20, &[]);
    let synced = Arc::new(Mutex::new(Vec::<Synced>::new()));
    let mut acknowledged = 0;
    for round in 0..kills {
        let (stop, root) = (Arc::new(AtomicBool::new(false)), pool.root());
        let writer = {
            let (stop, synced, seed) = (stop.clone(), synced.clone(), random.word());
            std::thread::spawn(move || write(root, round, seed, &stop, &synced))
        };
        std::thread::sleep(Duration::from_millis(50 + random.below(1500)));
        world.kill();
        stop.store(true, Ordering::Relaxed);
        writer.join().expect("writer");
        // The pool was not exported; the same host may take it again without being told to.
        pool.again();
        for file in synced.lock().expect("list").iter() {
            let found = fs::read(pool.root().join(&file.name));
            let expected = Random::new(file.seed).bytes(file.size);
            match found {
                Ok(found) => {
                    assert!(found == expected, "round {round}: {file:?} was synced, and is different")
                }
                Err(e) => panic!("round {round}: {file:?} was synced, and is lost: {e}"),
            }
        }
        // Room for the next rounds: half of what was synced goes, and all that was not.
        let kept: BTreeSet<String> = {
            let mut list = synced.lock().expect("list");
            acknowledged += list.iter().filter(|f| f.name.starts_with(&format!("r{round}-"))).count();
            let half = list.len() / 2;
            list.drain(..half);
            list.iter().map(|f| f.name.clone()).collect()
        };
        for entry in fs::read_dir(pool.root()).expect("list") {
            let entry = entry.expect("entry");
            if !kept.contains(&*entry.file_name().to_string_lossy()) {
                fs::remove_file(entry.path()).expect("remove");
            }
        }
        if round % 20 == 19 {
            pool.judge();
            pool.import();
        }
        eprintln!("kill {}: {acknowledged} files were synced in all, and were there", round + 1);
    }
    assert!(acknowledged >= kills, "in most rounds nothing was synced: this proves little");
    pool.scrub();
    pool.export();
    pool::zdb_clean(&world.disks(), "tank");
}

/// Writes files until the daemon is gone, syncing each third; what fsync acknowledged goes on the
/// list.
fn write(root: PathBuf, round: usize, seed: u64, stop: &AtomicBool, synced: &Mutex<Vec<Synced>>) {
    let mut random = Random::new(seed);
    for i in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let (seed, size) = (random.word(), random.below(300_000) as usize);
        let name = format!("r{round}-{i}");
        let bytes = Random::new(seed).bytes(size);
        let write = || -> std::io::Result<bool> {
            let mut file = fs::File::create(root.join(&name))?;
            file.write_all(&bytes)?;
            if i % 3 == 0 {
                file.sync_all()?;
            }
            Ok(i % 3 == 0)
        };
        match write() {
            Ok(true) => synced.lock().expect("list").push(Synced { name, seed, size }),
            Ok(false) => {}
            // The daemon is gone, and with it the mount.
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// The narrowest moment: nothing but the intent log knows what fsync has just promised.
#[test]
fn killed_right_after_an_fsync() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &[]);
    let mut random = Random::from_env();
    for round in 0..6 {
        let (root, dir) = (pool.root(), format!("dir{round}"));
        fs::create_dir(root.join(&dir)).expect("directory");
        let size = random.below(400_000) as usize + 1;
        let contents = random.bytes(size);
        let (temporary, place) = (root.join(&dir).join("new"), root.join(&dir).join("final"));
        let mut file = fs::File::create(&temporary).expect("create");
        file.write_all(&contents).expect("write");
        file.sync_all().expect("fsync");
        fs::rename(&temporary, &place).expect("rename");
        fs::hard_link(&place, root.join(format!("link{round}"))).expect("link");
        fs::File::open(root.join(&dir)).expect("open").sync_all().expect("fsync of the directory");
        world.kill();
        drop(file);
        pool.again();
        assert!(fs::read(&place).expect("the synced file") == contents, "round {round}");
        assert!(fs::read(root.join(format!("link{round}"))).expect("its link") == contents);
        assert!(!temporary.exists());
    }
    pool.export();
    pool::zdb_clean(&world.disks(), "tank");
}

/// Where a buffer lies in an image. The log's records begin at multiples of eight bytes.
fn find(image: &[u8], what: &[u8]) -> Vec<usize> {
    (0..image.len() - what.len()).step_by(8).filter(|at| image[*at..].starts_with(what)).collect()
}

/// A log that was damaged since it was claimed: what it holds is not given up by itself.
#[test]
fn a_log_that_cannot_be_replayed_is_kept_and_said() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    let home = pool.root().join("home");
    world.zfs("create -o canmount=noauto tank/home").ok();
    world.zfs("mount tank/home").ok();
    let stable = |name: &str, contents: &[u8]| {
        let mut file = fs::File::create(home.join(name)).expect("create");
        file.write_all(contents).expect("write");
        file.sync_all().expect("fsync");
    };
    stable("first", b"first");
    pool.sync();
    let contents = Random::from_env().bytes(3000);
    stable("last", &contents);
    world.kill();
    pool.again();
    pool.export();
    let image = &pool.disks[0];
    let places = find(&fs::read(image).expect("image"), &contents[..64]);
    assert_eq!(places.len(), 1, "it is in the log and nowhere else");
    let damage = || {
        let disk = fs::File::options().read(true).write(true).open(image).expect("image");
        let mut byte = [0];
        disk.read_exact_at(&mut byte, places[0] as u64).expect("read");
        disk.write_all_at(&[!byte[0]], places[0] as u64).expect("write");
    };
    damage();
    pool.import();
    let said = world.zfs("mount tank/home").fails();
    assert!(said.contains("its intent log cannot be replayed, so it is mounted read-only"), "{said}");
    let status = world.zpool("status tank").ok();
    for words in
        ["status: An intent log holds changes that cannot be replayed.", "\ttank/home: ", "'zfs mount -f'"]
    {
        assert!(status.contains(words), "{status}");
    }
    assert!(!world.zpool("status -x").ok().contains("healthy"));
    assert_eq!(fs::read(home.join("first")).expect("what was synced"), b"first");
    let refused = fs::write(home.join("more"), "").expect_err("it is read-only");
    assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()));
    pool.export();
    let kept = world.path().join("kept.img");
    fs::copy(image, &kept).expect("copy");

    pool.import();
    world.zfs("mount -f tank/home").ok();
    assert!(!home.join("last").exists(), "it was given up");
    stable("more", b"more");
    assert!(!world.zpool("status tank").ok().contains("intent log"));
    pool.export();

    fs::copy(&kept, image).expect("copy");
    damage();
    pool.import();
    world.zfs("mount tank/home").ok();
    assert!(fs::read(home.join("last")).expect("what was acknowledged") == contents);
    assert!(!world.zpool("status tank").ok().contains("intent log"));
    pool.judge();
}

/// The same without an fsync by the program, which opened the file for stable writes instead or
/// says so with each of them.
#[test]
fn a_write_that_is_to_be_stable_is() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &[]);
    let mut random = Random::from_env();
    // The file is to be written so, or each write says so, to it or to a new one.
    let each = OFlags::empty();
    let opens = [(OFlags::DSYNC, "journal"), (OFlags::SYNC, "journal"), (each, "journal"), (each, "new")];
    let mut contents = HashMap::<_, Vec<u8>>::new();
    for (round, (flag, name)) in opens.into_iter().cycle().take(8).enumerate() {
        let (path, contents) = (pool.root().join(name), contents.entry(name).or_default());
        if name == "new" && round > 4 {
            fs::remove_file(&path).expect("remove");
            contents.clear();
        }
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::APPEND | flag;
        let file = rustix::fs::open(&path, flags, Mode::from(0o644)).expect("open");
        for _ in 0..=random.below(5) {
            let size = random.below(40_000) as usize + 1;
            let bytes = random.bytes(size);
            let each = if flag.is_empty() { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
            let written =
                pwritev2(&file, &[IoSlice::new(&bytes)], contents.len() as u64, each).expect("write");
            contents.extend(&bytes[..written]);
        }
        world.kill();
        drop(file);
        pool.again();
        assert!(fs::read(&path).expect("what was written") == *contents, "round {round}");
    }
    pool.export();
    pool::zdb_clean(&world.disks(), "tank");
}

/// Several at once write to one file, each write stable when it is done; and who else has the file
/// open sees what they wrote, whichever of them opened it first.
#[test]
fn stable_writes_of_several_at_once() {
    const BLOCK: usize = 8 << 10;
    const WRITERS: usize = 6;
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, 256 << 20, &[]);
    let seed = Random::from_env().below(1 << 30) as usize;
    let block = |writer: usize, at: usize| [(seed + writer * 31 + at * 7) as u8; BLOCK];
    for (name, reader_first) in [("alone", false), ("beside", true)] {
        let path = pool.root().join(name);
        fs::write(&path, vec![0; WRITERS * 8 * BLOCK]).expect("write");
        let opened = || fs::File::open(&path).expect("open");
        let early = reader_first.then(opened);
        let flags = OFlags::RDWR | OFlags::DSYNC;
        let open = || fs::File::from(rustix::fs::open(&path, flags, Mode::empty()).expect("open"));
        let files: Vec<_> = (0..WRITERS).map(|_| open()).collect();
        let reader = early.unwrap_or_else(opened);
        std::thread::scope(|s| {
            for (writer, file) in files.iter().enumerate() {
                let reader = &reader;
                s.spawn(move || {
                    for at in 0..8 {
                        let (offset, want) = (((at * WRITERS + writer) * BLOCK) as u64, block(writer, at));
                        let mut got = [0; BLOCK];
                        reader.read_exact_at(&mut got, offset).expect("read");
                        file.write_all_at(&want, offset).expect("write");
                        reader.read_exact_at(&mut got, offset).expect("read");
                        assert!(got == want, "{name}: writer {writer}, block {at}");
                        file.read_exact_at(&mut got, offset).expect("read");
                        assert!(got == want, "{name}: writer {writer}, block {at}, by itself");
                    }
                });
            }
        });
    }
    world.kill();
    pool.again();
    for name in ["alone", "beside"] {
        let found = fs::read(pool.root().join(name)).expect("what was written");
        for (i, have) in found.chunks(BLOCK).enumerate() {
            assert!(*have == block(i % WRITERS, i / WRITERS), "{name}: block {i} after the kill");
        }
    }
    pool.export();
    pool::zdb_clean(&world.disks(), "tank");
}

#[test]
fn sigterm_leaves_everything_clean() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    fs::write(pool.root().join("a"), "kept").expect("write");
    world.stop();
    assert!(world.mounts().is_empty(), "mounts are left: {:?}", world.mounts());
    pool::zdb_clean(&world.disks(), "tank");
    pool.again();
    assert_eq!(fs::read_to_string(pool.root().join("a")).expect("read"), "kept");
    pool.judge();
}
