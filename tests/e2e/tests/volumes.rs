//! Volumes as people use them: over NBD, as files, under kills, resizes, rollbacks and destroys.

use rustix::fs::{FallocateFlags, fallocate};
use std::fs::OpenOptions;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use zilla_e2e::{Kind, Need, Pool, World, can};

const FUA: u16 = 1;
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISC: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const EPERM: u32 = 1;
const ENOSPC: u32 = 28;

/// The smallest client there is.
struct Nbd {
    io: UnixStream,
    size: u64,
    readonly: bool,
}

impl Nbd {
    fn connect(world: &World, name: &str) -> Option<Nbd> {
        let mut io = UnixStream::connect(world.state().join("nbd.sock")).expect("nbd.sock");
        io.set_read_timeout(Some(Duration::from_secs(60))).expect("timeout");
        let mut hello = [0; 18];
        io.read_exact(&mut hello).expect("greeting");
        assert_eq!(&hello[..16], b"NBDMAGICIHAVEOPT");
        io.write_all(&3u32.to_be_bytes()).expect("flags");
        let option =
            [&b"IHAVEOPT"[..], &1u32.to_be_bytes(), &(name.len() as u32).to_be_bytes(), name.as_bytes()];
        io.write_all(&option.concat()).expect("option");
        let mut told = [0; 10];
        match io.read_exact(&mut told) {
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => return None,
            other => other.expect("export"),
        }
        let size = u64::from_be_bytes(told[..8].try_into().expect("size"));
        Some(Nbd { io, size, readonly: told[9] & 2 != 0 })
    }

    /// The error on the wire, and data of a read. None: the server has hung up.
    fn try_ask(
        &mut self,
        command: u16,
        flags: u16,
        off: u64,
        len: u32,
        data: &[u8],
    ) -> Option<(u32, Vec<u8>)> {
        let mut out = 0x2560_9513u32.to_be_bytes().to_vec();
        out.extend(flags.to_be_bytes());
        out.extend(command.to_be_bytes());
        out.extend(7u64.to_be_bytes());
        out.extend(off.to_be_bytes());
        out.extend(len.to_be_bytes());
        out.extend(data);
        self.io.write_all(&out).ok()?;
        let mut reply = [0; 16];
        self.io.read_exact(&mut reply).ok()?;
        let error = u32::from_be_bytes(reply[4..8].try_into().expect("error"));
        let mut data = vec![0; if command == READ && error == 0 { len as usize } else { 0 }];
        self.io.read_exact(&mut data).ok()?;
        Some((error, data))
    }

    fn ask(&mut self, command: u16, flags: u16, off: u64, len: u32, data: &[u8]) -> (u32, Vec<u8>) {
        self.try_ask(command, flags, off, len, data).expect("an answer")
    }

    fn write(&mut self, flags: u16, off: u64, data: &[u8]) -> u32 {
        self.ask(WRITE, flags, off, data.len() as u32, data).0
    }

    fn read(&mut self, off: u64, len: u32) -> Vec<u8> {
        let (error, data) = self.ask(READ, 0, off, len, b"");
        assert_eq!(error, 0);
        data
    }

    /// Leaves, and waits until the server has seen it.
    fn leave(mut self) {
        let _ = self.try_ask(DISC, 0, 0, 0, b"");
    }
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    (0..len).map(next).collect()
}

#[test]
fn what_was_acknowledged_over_nbd_survives_a_kill() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, 256 << 20, &[]);
    world.zfs("create -V 32m tank/v").ok();
    let mut nbd = Nbd::connect(&world, "tank/v").expect("an export");
    assert_eq!((nbd.size, nbd.readonly), (32 << 20, false));
    let (a, b, c) = (noise(1, 300_000), noise(2, 5000), noise(3, 128 << 10));
    assert_eq!(nbd.write(0, 1000, &a), 0);
    assert_eq!(nbd.write(0, 1 << 20, &c), 0);
    assert_eq!(nbd.ask(TRIM, 0, (1 << 20) + 16384, 16384, b"").0, 0);
    assert_eq!(nbd.ask(FLUSH, 0, 0, 0, b"").0, 0);
    assert_eq!(nbd.write(FUA, 2000, &b), 0);
    world.kill();
    world.zpool("list").ok();
    let mut nbd = Nbd::connect(&world, "tank/v").expect("an export");
    let mut want = a;
    want[1000..6000].copy_from_slice(&b);
    assert!(nbd.read(1000, 300_000) == want, "what was acknowledged is not there");
    let mut want = c;
    want[16384..32768].fill(0);
    assert!(nbd.read(1 << 20, 128 << 10) == want, "what was acknowledged is not there");
    nbd.leave();
    pool.judge();
}

#[test]
fn a_volume_changes_under_its_clients() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &[]);
    world.zfs("create -s -V 8m -b 8k tank/v").ok();
    let mut nbd = Nbd::connect(&world, "tank/v").expect("an export");
    assert_eq!(nbd.write(0, 0, &noise(1, 50_000)), 0);
    world.zfs("snapshot tank/v@s").ok();
    // Another size counts at once.
    assert_eq!(nbd.write(0, 8 << 20, &[1; 512]), ENOSPC);
    world.zfs("set volsize=16m tank/v").ok();
    assert_eq!(nbd.write(0, 8 << 20, &[1; 512]), 0);
    world.zfs("set volsize=4m tank/v").ok();
    assert_eq!(nbd.write(0, 8 << 20, &[1; 512]), ENOSPC);
    world.zfs("set readonly=on tank/v").ok();
    assert_eq!(nbd.write(0, 0, &[1; 512]), EPERM);
    world.zfs("inherit readonly tank/v").ok();
    // A rollback gives it the snapshot's contents and size.
    assert_eq!(nbd.write(0, 100, &noise(2, 50_000)), 0);
    world.zfs("rollback tank/v@s").ok();
    assert!(nbd.read(0, 50_000) == noise(1, 50_000));
    assert_eq!(world.zfs("get -Hp -o value volsize tank/v").ok(), "8388608\n");
    // Snapshots are there for those who are to see them.
    assert!(Nbd::connect(&world, "tank/v@s").is_none());
    world.zfs("set snapdev=visible tank/v").ok();
    let mut snap = Nbd::connect(&world, "tank/v@s").expect("an export");
    assert!(snap.readonly && snap.read(0, 50_000) == noise(1, 50_000));
    assert_eq!(snap.write(0, 0, b"x"), EPERM);
    snap.leave();
    // In use, it stays; with force its clients are sent away.
    let told = world.zfs("destroy -r tank/v").fails();
    assert!(told.contains("dataset is busy"), "{told}");
    let told = world.zpool("export tank").fails();
    assert!(told.contains("busy"), "{told}");
    assert!(nbd.read(0, 50_000) == noise(1, 50_000));
    world.zpool("export -f tank").ok();
    assert!(nbd.try_ask(READ, 0, 0, 512, b"").is_none_or(|(error, _)| error != 0));
    pool.import();
    world.zfs("set volmode=none tank/v").ok();
    assert!(Nbd::connect(&world, "tank/v").is_none());
    world.zfs("destroy -r tank/v").ok();
    pool.judge();
}

#[test]
fn volumes_have_openzfs_s_properties_and_complaints() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &[]);
    let get = |name: &str| world.zfs(&format!("get -Hp -o value {name} tank/v")).ok();
    world.zfs("create -V 6m tank/v").ok();
    assert_eq!(get("refreservation"), "8388608\n");
    world.zfs("set volsize=32m tank/v").ok();
    // 32M in 2,048 blocks: two indirect ones and one above, seven of the meta-dnode, twice.
    assert_eq!(get("refreservation"), format!("{}\n", (32 << 20) + 10 * 2 * (128 << 10)));
    world.zfs("set refreservation=none tank/v").ok();
    world.zfs("set volsize=6m tank/v").ok();
    assert_eq!(get("refreservation"), "0\n");
    world.zfs("set refreservation=auto tank/v").ok();
    assert_eq!(get("refreservation"), "8388608\n");
    assert_eq!(world.zfs("list -H -o name,volsize -t volume").ok(), "tank/v\t6M\n");
    for (words, complaint) in [
        ("set volsize=0 tank/v", "cannot set property for 'tank/v': 'volsize' cannot be zero"),
        ("set volsize=1000 tank/v", "'volsize' must be a multiple of volume block size (16K)"),
        ("set refreservation=7m tank/v", "'refreservation' is greater than current volume size"),
        ("set volblocksize=8k tank/v", "'volblocksize' is readonly"),
        ("set volsize=1g tank", "'volsize' does not apply to datasets of this type"),
        ("create -V 0 tank/w", "cannot create 'tank/w': volume size cannot be zero"),
        ("create -V 8m -b 1000 tank/w", "'volblocksize' must be power of 2 from 512B to 16M"),
        ("create -V 1g tank/w", "cannot create 'tank/w': out of space"),
        ("create tank/v/below", "parent is not a filesystem"),
    ] {
        let told = world.zfs(words).fails();
        assert!(told.contains(complaint), "{words}: {told}");
    }
    pool.judge();
}

#[test]
fn volumes_are_files_where_that_is_wanted() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &[]);
    world.zfs("create tank/a").ok();
    world.zfs("create -s -V 8m tank/a/v").ok();
    let dir = world.run("zilla", &["zvol", "files"]).ok();
    let path = std::path::Path::new(dir.trim()).join("tank/a/v");
    assert_eq!(path.metadata().expect("file").len(), 8 << 20);
    let names = |p: &std::path::Path| {
        std::fs::read_dir(p).expect("folder").map(|e| e.expect("entry").file_name()).collect::<Vec<_>>()
    };
    assert_eq!(names(path.parent().expect("folder")), ["v"]);
    let file = OpenOptions::new().read(true).write(true).open(&path).expect("open");
    let data = noise(4, 3 << 20);
    file.write_all_at(&data, 1 << 20).expect("write");
    file.sync_all().expect("fsync");
    let mut nbd = Nbd::connect(&world, "tank/a/v").expect("an export");
    assert!(nbd.read(1 << 20, 3 << 20) == data, "both see the same");
    assert_eq!(nbd.write(0, (1 << 20) + 100, b"over nbd"), 0);
    let mut back = vec![0; 8];
    file.read_exact_at(&mut back, (1 << 20) + 100).expect("read");
    assert_eq!(back, b"over nbd");
    nbd.leave();
    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 2 << 20, 1 << 20)
        .expect("punch");
    let mut back = vec![1; 1 << 20];
    file.read_exact_at(&mut back, 2 << 20).expect("read");
    assert!(back.iter().all(|b| *b == 0));
    assert!(file.write_at(b"x", 8 << 20).is_err(), "a volume does not grow by writing");
    assert!(file.set_len(1 << 20).is_err());
    assert!(std::fs::remove_file(&path).is_err() && std::fs::write(path.with_file_name("w"), "x").is_err());
    let told = world.zfs("destroy tank/a/v").fails();
    assert!(told.contains("busy"), "{told}");
    drop(file);
    world.kill();
    world.zpool("list").ok();
    let dir = world.run("zilla", &["zvol", "files"]).ok();
    let read = std::fs::read(std::path::Path::new(dir.trim()).join("tank/a/v")).expect("read");
    assert!(read[4 << 20..].iter().all(|b| *b == 0) && read[1 << 20..(1 << 20) + 100] == data[..100]);
    world.zfs("destroy tank/a/v").ok();
    assert!(!path.exists());
    pool.judge();
}
