//! A pool whose disks take no writes, as people meet it: the host's file system is full. Commands
//! say so at once, and when there is room `zpool clear` has everything go on, with nothing lost.

use std::fs;
use std::io::Write;
use std::time::{Duration, Instant};
use zilla_e2e::{Need, Random, World, can, pool, tree};

const FILES: usize = 60;

#[test]
fn a_full_host_suspends_a_pool_and_clear_resumes_it() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let world = World::new();
    let small = world.path().join("small");
    fs::create_dir(&small).expect("folder");
    let mount = |words: &str| {
        let words = words.split(' ').map(std::ffi::OsStr::new).chain([small.as_os_str()]);
        tree::host("mount", &words.collect::<Vec<_>>())
    };
    mount("-t tmpfs -o size=40m tmpfs");
    let image = small.join("d.img");
    fs::File::create(&image).and_then(|f| f.set_len(256 << 20)).expect("image");
    let root = world.mnt().join("tank");
    world.zpool(&format!("create -O compression=off -m {} tank {}", root.display(), image.display())).ok();
    world.zfs("create -o atime=on -o relatime=off tank/read").ok();
    let read = root.join("read/f");
    fs::write(&read, "text").expect("file");
    world.zpool("sync tank").ok();
    // From now on a time of reading waits to be written.
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(fs::read_to_string(&read).expect("file"), "text");
    let chunk = |i: usize| Random::new(i as u64).bytes(1 << 20);
    let writer = {
        let root = root.clone();
        std::thread::spawn(move || {
            for i in 0..FILES {
                let mut file = fs::File::create(root.join(format!("f{i}"))).expect("create");
                file.write_all(&chunk(i)).expect("write");
                if i % 3 == 0 {
                    file.sync_all().expect("fsync");
                }
            }
        })
    };
    let health = || world.zpool("list -H -o health tank").ok().trim().to_owned();
    let begin = Instant::now();
    while health() != "SUSPENDED" {
        assert!(begin.elapsed() < Duration::from_secs(60), "never suspended: {}", health());
        std::thread::sleep(Duration::from_millis(100));
    }
    // What OpenZFS refuses is refused, and does not wait.
    let refused = |program: &str, words: &str, code: i32| {
        let begin = Instant::now();
        let args: Vec<&str> = words.split(' ').collect();
        let done = world.run(program, &args);
        assert_eq!(done.code, code, "{program} {words}");
        let said = done.fails();
        assert!(said.contains("pool I/O is currently suspended"), "{program} {words}: {said}");
        assert!(begin.elapsed() < Duration::from_secs(10), "{program} {words} waited");
    };
    for words in ["sync tank", "scrub tank", "reopen tank", "set comment=x tank"] {
        refused("zpool", words, 1);
    }
    refused("zfs", "set atime=off tank", 255);
    for words in ["snapshot tank@a", "create tank/b", "destroy tank@a", "inherit atime tank"] {
        refused("zfs", words, 1);
    }
    // What is to be written before is refused, and what is taken by force is.
    refused("zfs", "unmount tank/read", 1);
    let begin = Instant::now();
    world.zfs("unmount -f tank/read").ok();
    assert!(begin.elapsed() < Duration::from_secs(40), "unmount -f waited");
    assert!(!read.exists());
    // The device shows what it did.
    let status = world.zpool("status -p tank").ok();
    let line = status.lines().find(|l| l.contains("d.img")).expect("the device");
    let errors: u64 = line.split_whitespace().nth(3).and_then(|n| n.parse().ok()).expect("a number");
    assert!(errors > 0, "{status}");
    assert!(status.contains("SUSPENDED") && status.contains("zpool clear"), "{status}");
    // Nothing has changed yet.
    world.zpool("clear tank").fails();
    assert_eq!(health(), "SUSPENDED");
    mount("-o remount,size=400m");
    world.zpool("clear tank").ok();
    writer.join().expect("the writer goes on");
    assert_eq!(health(), "ONLINE");
    world.zpool("sync tank").ok();
    world.zfs("mount tank/read").ok();
    assert_eq!(fs::read_to_string(&read).expect("file"), "text");
    for i in 0..FILES {
        assert!(fs::read(root.join(format!("f{i}"))).expect("read") == chunk(i), "f{i}");
    }
    // After a crash as well.
    world.kill();
    if world.zpool("list -H -o name tank").code != 0 {
        world.zpool(&format!("import -d {} tank", small.display())).ok();
    }
    for i in 0..FILES {
        assert!(fs::read(root.join(format!("f{i}"))).expect("read") == chunk(i), "f{i} after a crash");
    }
    pool::scrub(&world, "tank");
    world.zpool("export tank").ok();
    pool::zdb_clean(&small, "tank");
    world.stop();
}
