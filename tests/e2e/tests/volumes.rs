//! Volumes as people use them: over NBD, as files, as block devices, under kills, resizes,
//! rollbacks and destroys.

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
    // So does what is received into it.
    let stream = world.path().join("stream");
    let send = |words: &str| {
        let out = std::fs::File::create(&stream).expect("stream");
        let mut send = world.command("zfs");
        assert!(send.arg("send").args(words.split(' ')).stdout(out).status().expect("zfs").success());
    };
    let receive = || {
        let from = std::fs::File::open(&stream).expect("stream");
        let mut receive = world.command("zfs");
        assert!(receive.args(["receive", "-F", "tank/w"]).stdin(from).status().expect("zfs").success());
    };
    send("tank/v@s");
    receive();
    let mut copy = Nbd::connect(&world, "tank/w").expect("an export");
    assert!(copy.read(0, 50_000) == noise(1, 50_000));
    assert_eq!(nbd.write(0, 0, &noise(3, 50_000)), 0);
    world.zfs("snapshot tank/v@later").ok();
    send("-i @s tank/v@later");
    receive();
    assert!(copy.read(0, 50_000) == noise(3, 50_000));
    assert_eq!(copy.write(0, 0, &noise(4, 512)), 0);
    // What it inherits in another place counts at once.
    world.zfs("create -o readonly=on tank/ro").ok();
    world.zfs("rename tank/w tank/ro/w").ok();
    assert_eq!(copy.write(0, 0, &noise(5, 512)), EPERM);
    assert!(copy.read(0, 512) == noise(4, 512));
    copy.leave();
    world.zfs("rollback -r tank/v@s").ok();
    assert!(nbd.read(0, 50_000) == noise(1, 50_000));
    // Snapshots are there for those who are to see them.
    assert!(Nbd::connect(&world, "tank/v@s").is_none());
    world.zfs("set snapdev=visible tank/v").ok();
    let mut snap = Nbd::connect(&world, "tank/v@s").expect("an export");
    assert!(snap.readonly && snap.read(0, 50_000) == noise(1, 50_000));
    assert_eq!(snap.write(0, 0, b"x"), EPERM);
    snap.leave();
    // What a rollback would destroy stays, too, while it is in use.
    world.zfs("snapshot tank/v@used").ok();
    let used = Nbd::connect(&world, "tank/v@used").expect("an export");
    let told = world.zfs("rollback -r tank/v@s").fails();
    assert!(told.contains("dataset is busy"), "{told}");
    used.leave();
    world.zfs("rollback -r tank/v@s").ok();
    world.zfs("list tank/v@used").fails();
    // In use, it stays; with force its clients are sent away.
    let told = world.zfs("destroy -r tank/v").fails();
    assert!(told.contains("dataset is busy"), "{told}");
    assert_eq!(world.zpool("export tank").fails(), "cannot export 'tank': pool is busy\n");
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
    // It may be more than the volume has: parity and metadata take room, too.
    for name in ["reservation", "refreservation"] {
        world.zfs(&format!("set {name}=9m tank/v")).ok();
        assert_eq!(get(name), "9437184\n");
    }
    world.zfs("set reservation=none tank/v").ok();
    world.zfs("set refreservation=auto tank/v").ok();
    assert_eq!(get("refreservation"), "8388608\n");
    assert_eq!(world.zfs("list -H -o name,volsize -t volume").ok(), "tank/v\t6M\n");
    for (words, complaint) in [
        ("set volsize=0 tank/v", "cannot set property for 'tank/v': 'volsize' cannot be zero"),
        ("set volsize=1000 tank/v", "'volsize' must be a multiple of volume block size (16K)"),
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

/// In the order in which it was said, and with what OpenZFS 2.3.9 adds.
#[test]
fn what_a_volume_would_be_is_told_with_its_reservation() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &["-o", "ashift=9"]);
    for (words, told) in [
        ("-V 10M", "volsize=10485760 refreservation=12582912"),
        ("-s -V 10M", "volsize=10485760"),
        ("-b 8k -V 10M", "volsize=10485760 volblocksize=8192 refreservation=13107200"),
        (
            "-b 64k -V 10M -o user:x=y -o compression=lz4",
            "volsize=10485760 user:x=y compression=lz4 volblocksize=65536 refreservation=12582912",
        ),
        ("-V 10M -o refreservation=5M", "volsize=10485760 refreservation=5M"),
        ("-V 10000000", "volsize=10010624 refreservation=12107776"),
        ("-b 64k -V 10000000", "volblocksize=65536 volsize=10027008 refreservation=12124160"),
    ] {
        let lines: Vec<String> = told.split(' ').map(|l| format!("\t{l}\n")).collect();
        let said = world.zfs(&format!("create -nv {words} tank/v")).ok();
        assert_eq!(said, format!("would create tank/v\n{}", lines.concat()), "{words}");
    }
    assert_eq!(
        world.zfs("create -P -V 10M tank/v").ok(),
        "create\ttank/v\nproperty\tvolsize\t10485760\nproperty\trefreservation\t12582912\n"
    );
    assert_eq!(world.zfs("get -Hp -o value refreservation,volblocksize tank/v").ok(), "12582912\n16384\n");
    pool.judge();
    // Rows of eight data sectors of 4K.
    let disks = world.images("draid", 10, 128 << 20);
    let disks: Vec<String> = disks.iter().map(|d| d.display().to_string()).collect();
    let create = format!("create -o ashift=12 -m none wide draid2:8d {}", disks.join(" "));
    world.zpool(&create).ok();
    let said = world.zfs("create -nv -s -V 100000 wide/v").ok();
    assert_eq!(said, "would create wide/v\n\tvolblocksize=32768\n\tvolsize=131072\n");
    let said = world.zfs("create -nv -s -b 16K -V 1M wide/v").stderr;
    assert!(said.contains("unit (32768), which wastes at least 50% of space"), "{said}");
    world.zfs("create -s -V 1M wide/v").ok();
    assert_eq!(world.zfs("get -Hp -o value volblocksize wide/v").ok(), "32768\n");
    world.zpool("destroy wide").ok();
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
    world.zfs("create -s -V 8m tank/a/w").ok();
    assert_eq!(names(path.parent().expect("folder")), ["v", "w"]);
    world.zfs("destroy tank/a/w").ok();
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

/// A world whose daemon makes block devices, with links in a folder of its own.
struct Devices {
    world: World,
    links: std::path::PathBuf,
    daemon: std::process::Child,
}

impl Devices {
    fn start() -> Devices {
        let world = World::new();
        let links = world.path().join("dev");
        let daemon = Devices::daemon(&world, &links);
        Devices { world, links, daemon }
    }

    fn daemon(world: &World, links: &std::path::Path) -> std::process::Child {
        // (What a killed daemon left says nothing of this one.)
        let _ = std::fs::remove_file(world.state().join("zillad.sock"));
        let mut command = world.command("zillad");
        command.env("ZILLA_ZVOL_DEVICES", links).stdout(std::process::Stdio::null());
        command.stderr(std::process::Stdio::null());
        let child = command.spawn().expect("zillad");
        let begun = std::time::Instant::now();
        while !world.state().join("zillad.sock").exists() {
            assert!(begun.elapsed() < Duration::from_secs(10), "the daemon does not come up");
            std::thread::sleep(Duration::from_millis(20));
        }
        child
    }

    /// What a volume's link leads to.
    fn device(&self, name: &str) -> Option<std::path::PathBuf> {
        let device = std::fs::read_link(self.links.join(name)).ok()?;
        let sys = format!("/sys/block/{}/loop/backing_file", device.file_name()?.to_str()?);
        let below = std::fs::read_to_string(sys).expect("attached");
        assert!(below.contains("/zvol/"), "{below}");
        Some(device)
    }

    fn is_readonly(&self, name: &str) -> bool {
        let device = self.device(name).expect("a device");
        let sys = format!("/sys/block/{}/ro", device.file_name().expect("name").display());
        std::fs::read_to_string(sys).expect("sysfs").trim() == "1"
    }

    /// The kernel's loop devices on files of this world.
    fn attached(&self) -> Vec<String> {
        let ours = self.world.path().to_string_lossy().into_owned();
        let entries = std::fs::read_dir("/sys/block").expect("sysfs").flatten();
        let files = entries.filter_map(|e| std::fs::read_to_string(e.path().join("loop/backing_file")).ok());
        files.filter(|f| f.starts_with(&ours)).collect()
    }

    /// Kills the process that attaches devices for the daemon.
    fn kill_keeper(&self) {
        let word = b"--keep-volume-devices";
        let ours = self.links.to_string_lossy().into_owned();
        for entry in std::fs::read_dir("/proc").expect("proc").flatten() {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let mut words = line.split(|b| *b == 0);
            if words.any(|w| w == word) && words.next() == Some(ours.as_bytes()) {
                let pid = entry.file_name().to_string_lossy().parse().ok();
                let pid = pid.and_then(rustix::process::Pid::from_raw).expect("pid");
                return rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("kill");
            }
        }
        panic!("the daemon has no keeper");
    }

    fn wait_until_detached(&self) {
        for _ in 0..500 {
            if self.attached().is_empty() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("still attached: {:?}", self.attached());
    }
}

fn has_ended(daemon: &mut std::process::Child) {
    for _ in 0..1000 {
        if daemon.try_wait().expect("wait").is_some() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("the daemon does not end");
}

#[test]
fn volumes_are_block_devices_where_root_s_daemon_makes_them() {
    if !can(&[Need::Fuse, Need::Root]) || !std::path::Path::new("/dev/loop-control").exists() {
        return;
    }
    let mut devices = Devices::start();
    let pool = Pool::create(&devices.world, "tank", Kind::Single, 256 << 20, &[]);
    let zfs = |line: &str| devices.world.zfs(line).ok();
    zfs("create tank/a");
    zfs("create -s -V 8m tank/a/v");
    let device = devices.device("tank/a/v").expect("a device");
    let data = noise(5, 3 << 20);
    let write = |at: u64, data: &[u8]| {
        let file = OpenOptions::new().write(true).open(devices.links.join("tank/a/v")).expect("open");
        file.write_all_at(data, at).expect("write");
    };
    let read = |name: &str, len: usize| {
        let mut back = vec![0; len];
        std::fs::File::open(devices.links.join(name)).expect("open").read_exact(&mut back).expect("read");
        back
    };
    // The last close writes out what the kernel cached: the snapshot has it.
    write(0, &data);
    zfs("snapshot tank/a/v@s");
    assert_eq!(devices.device("tank/a/v@s"), None);
    zfs("set snapdev=visible tank/a");
    assert!(read("tank/a/v@s", 3 << 20) == data);
    assert!(devices.is_readonly("tank/a/v@s") && !devices.is_readonly("tank/a/v"));
    zfs("snapshot tank/a/v@t");
    assert!(devices.device("tank/a/v@t").is_some());
    write(0, &[7; 4096]);
    zfs("rollback -r tank/a/v@s");
    assert!(read("tank/a/v", 3 << 20) == data && devices.device("tank/a/v@t").is_none());
    zfs("set snapdev=hidden tank/a");
    assert_eq!(devices.device("tank/a/v@s"), None);
    zfs("set volsize=16m tank/a/v");
    let size = std::fs::read_to_string(format!("/sys/block/{}/size", device.file_name().unwrap().display()));
    assert_eq!(size.expect("size").trim(), (16 << 20 >> 9).to_string());
    zfs("clone tank/a/v@s tank/c");
    assert!(read("tank/c", 3 << 20) == data);
    // Read-only volumes have read-only devices.
    zfs("set readonly=on tank/c");
    assert!(devices.is_readonly("tank/c"));
    zfs("inherit readonly tank/c");
    assert!(!devices.is_readonly("tank/c"));
    zfs("set volmode=none tank/c");
    assert_eq!(devices.device("tank/c"), None);
    zfs("set volmode=dev tank/c");
    assert!(devices.device("tank/c").is_some());
    zfs("rename tank/a tank/b");
    assert_eq!(devices.device("tank/a/v"), None);
    assert!(read("tank/b/v", 3 << 20) == data && !devices.links.join("tank/a").exists());
    // What is in use is not destroyed, and not exported.
    let file = std::fs::File::open(devices.links.join("tank/c")).expect("open");
    let told = devices.world.zfs("destroy tank/c").fails();
    assert!(told.contains("dataset is busy"), "{told}");
    devices.world.zpool("export tank").fails();
    // A new name is for what is in use, too.
    zfs("rename tank/c tank/d");
    assert!(devices.device("tank/d").is_some() && devices.device("tank/c").is_none());
    drop(file);
    zfs("destroy tank/d");
    assert_eq!(devices.device("tank/d"), None);
    devices.world.zpool("export tank").ok();
    assert!(devices.device("tank/b/v").is_none() && devices.attached().is_empty());
    devices.world.zpool(&format!("import -d {} tank", devices.world.disks().display())).ok();
    assert!(read("tank/b/v", 3 << 20) == data);
    // A killed daemon dies though a device is in use and has something to write; what it left goes.
    let file = OpenOptions::new().write(true).open(devices.links.join("tank/b/v")).expect("open");
    file.write_all_at(&[3; 1 << 20], 0).expect("write");
    devices.daemon.kill().expect("kill");
    has_ended(&mut devices.daemon);
    drop(file);
    devices.wait_until_detached();
    assert!(!devices.links.join("tank/b/v").is_symlink());
    devices.daemon = Devices::daemon(&devices.world, &devices.links);
    assert!(devices.device("tank/b/v").is_some());
    // If its keeper is killed with it the device stays, dead, until the next daemon comes.
    let left = devices.device("tank/b/v").expect("a device");
    devices.kill_keeper();
    devices.daemon.kill().expect("kill");
    has_ended(&mut devices.daemon);
    assert!(devices.links.join("tank/b/v").is_symlink());
    devices.daemon = Devices::daemon(&devices.world, &devices.links);
    assert!(read("tank/b/v", 4096) == data[..4096]);
    let below = format!("/sys/block/{}/loop/backing_file", left.file_name().expect("name").display());
    let dead = std::fs::read_to_string(below).is_ok_and(|f| f.starts_with("/tank/b/v"));
    assert!(!dead, "{} is left", left.display());
    // An orderly end writes out what is cached.
    let file = OpenOptions::new().write(true).open(devices.links.join("tank/b/v")).expect("open");
    file.write_all_at(&[9; 4096], 4096).expect("write");
    drop(file);
    devices.world.run("zilla", &["stop"]).ok();
    has_ended(&mut devices.daemon);
    devices.wait_until_detached();
    devices.daemon = Devices::daemon(&devices.world, &devices.links);
    let mut back = [0; 4096];
    let file = std::fs::File::open(devices.links.join("tank/b/v")).expect("open");
    file.read_exact_at(&mut back, 4096).expect("read");
    assert_eq!(back, [9; 4096]);
    drop(file);
    devices.world.zfs("destroy -r tank/b").ok();
    assert!(devices.attached().is_empty());
    devices.world.run("zilla", &["stop"]).ok();
    has_ended(&mut devices.daemon);
    pool.judge();
}

/// A sparse volume on a pool that has no room for it: its clients are told, what was acknowledged
/// stays, and what they give back can be used again.
#[test]
fn a_full_pool_under_a_sparse_volume_is_an_error_of_its_clients() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    world.zfs("create -s -V 1g tank/v").ok();
    world.zfs("create -V 8m tank/reserved").ok();
    let mut nbd = Nbd::connect(&world, "tank/v").expect("an export");
    let piece = 1u64 << 20;
    let mut written = 0;
    let refused = loop {
        assert!(written < 128, "more was written than the pool has");
        match nbd.write(FUA, written * piece, &noise(written, piece as usize)) {
            0 => written += 1,
            error => break error,
        }
    };
    assert_eq!(refused, ENOSPC);
    // Half of so small a pool is kept back, as in OpenZFS.
    assert!(written > 32, "only {written} MiB found room");
    // The connection goes on, and so do others; what is reserved is there.
    for i in (0..written).step_by(7) {
        assert!(nbd.read(i * piece, piece as u32) == noise(i, piece as usize), "piece {i}");
    }
    assert_eq!(nbd.ask(FLUSH, 0, 0, 0, b"").0, 0);
    let mut reserved = Nbd::connect(&world, "tank/reserved").expect("an export");
    for i in 0..8 {
        assert_eq!(reserved.write(FUA, i * piece, &noise(i + 1000, piece as usize)), 0, "reserved {i}");
    }
    reserved.leave();
    // What is given back is free for others when its txg and those after it are on disk.
    for i in 0..written / 2 {
        assert_eq!(nbd.ask(TRIM, FUA, i * piece, piece as u32, b"").0, 0);
    }
    for _ in 0..4 {
        world.zpool("sync tank").ok();
    }
    assert_eq!(nbd.write(FUA, 512 * piece, &noise(7, piece as usize)), 0);
    world.kill();
    world.zpool("list").ok();
    let mut nbd = Nbd::connect(&world, "tank/v").expect("an export");
    assert!(nbd.read(512 * piece, piece as u32) == noise(7, piece as usize));
    for i in written / 2..written {
        assert!(nbd.read(i * piece, piece as u32) == noise(i, piece as usize), "piece {i}");
    }
    nbd.leave();
    pool.judge();
}

/// A daemon that is stopped has written all that it answered, though nobody asked for a flush, and
/// its clients are sent away.
#[test]
fn an_orderly_end_keeps_what_was_answered() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    world.zfs("create -s -V 64m tank/v").ok();
    let mut nbd = Nbd::connect(&world, "tank/v").expect("an export");
    let piece = 64usize << 10;
    let writer = std::thread::spawn(move || {
        let mut answered = 0u64;
        while answered < 1 << 20 {
            let (at, data) = (answered % 1024 * piece as u64, noise(answered, piece));
            match nbd.try_ask(WRITE, 0, at, piece as u32, &data) {
                Some((0, _)) => answered += 1,
                // It ends: the request may be refused before the connection is closed.
                _ => break,
            }
        }
        answered
    });
    std::thread::sleep(Duration::from_millis(700));
    world.run("zilla", &["stop"]).ok();
    let answered = writer.join().expect("writer");
    assert!(answered > 10, "{answered}");
    world.zpool("list").ok();
    let mut nbd = Nbd::connect(&world, "tank/v").expect("an export");
    // The one that was not answered may be there or not.
    let unsure = answered % 1024;
    for slot in (0..answered.min(1024)).filter(|slot| *slot != unsure) {
        let last = (answered - 1 - slot) / 1024 * 1024 + slot;
        assert!(nbd.read(slot * piece as u64, piece as u32) == noise(last, piece), "write {last} is gone");
    }
    nbd.leave();
    pool.judge();
}
