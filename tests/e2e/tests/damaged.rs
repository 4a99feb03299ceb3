//! Damage on disks as people see it: what redundancy covers is mended and counted where it was;
//! what it does not is named by path, snapshots included, at once, and nothing else is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use zilla_e2e::random::Random;
use zilla_e2e::{Kind, Need, Pool, World, can};

const SIZE: u64 = 96 << 20;
const RECORD: usize = 128 << 10;
const SECTOR: usize = 512;
/// Labels and the boot area lie outside of this.
const INNER: std::ops::Range<u64> = 5 << 20..SIZE - (2 << 20);

/// Where sectors of a file's contents lie on an image, and which.
fn sectors_of(image: &Path, contents: &[u8]) -> BTreeMap<u64, Vec<u8>> {
    let wanted: BTreeSet<&[u8]> = contents.chunks_exact(SECTOR).collect();
    let raw = fs::read(image).expect("image");
    let at =
        |(i, sector): (usize, &[u8])| wanted.contains(sector).then(|| ((i * SECTOR) as u64, sector.to_vec()));
    raw.chunks_exact(SECTOR).enumerate().filter_map(at).collect()
}

fn overwrite(image: &Path, at: u64, len: usize) {
    let file = File::options().write(true).open(image).expect("image");
    file.write_all_at(&Random::new(at ^ 77).bytes(len), at).expect("write");
    file.sync_all().expect("sync");
}

/// The checksum errors of each leaf, in their order.
fn counted(world: &World, pool: &Pool) -> Vec<u64> {
    let status = world.zpool(&format!("status -p {}", pool.name)).ok();
    let of = |disk: &Path| {
        let name = disk.to_string_lossy().into_owned();
        let line = status.lines().find(|l| l.split_whitespace().next() == Some(&name));
        let words: Vec<_> = line.unwrap_or_else(|| panic!("{name} in {status}")).split_whitespace().collect();
        // Ten checksum errors in ten minutes degrade a leaf, as OpenZFS's diagnosis has it.
        let states = [["ONLINE", "0", "0"], ["DEGRADED", "0", "0"]];
        assert!(states.iter().any(|s| words[1..4] == *s), "{status}");
        words[4].parse().expect("a count")
    };
    pool.disks.iter().map(|d| of(d)).collect()
}

fn only_at(counts: &[u64], leaf: usize) -> bool {
    counts.iter().enumerate().all(|(i, n)| (*n > 0) == (i == leaf))
}

#[test]
fn what_redundancy_covers_is_mended_and_counted_on_the_leaf_that_lied() {
    if !can(&[Need::Fuse]) {
        return;
    }
    for kind in [Kind::Mirror, Kind::Raidz1, Kind::Raidz2] {
        let world = World::new();
        let pool = Pool::create(&world, "tank", kind, SIZE, &[]);
        let contents = Random::new(kind as u64).bytes(8 * RECORD);
        fs::write(pool.root().join("f"), &contents).expect("write");
        let mut leaves_with_data = 0;
        for leaf in 0..pool.disks.len() {
            // Found by whoever reads.
            pool.export();
            let image = &pool.disks[leaf];
            let lie: Vec<_> = sectors_of(image, &contents).into_iter().step_by(200).take(3).collect();
            lie.iter().for_each(|(at, _)| overwrite(image, *at, SECTOR));
            pool.import();
            assert!(fs::read(pool.root().join("f")).expect("read") == contents, "{kind:?}, leaf {leaf}");
            let status = world.zpool("status -v tank").ok();
            assert!(status.contains("errors: No known data errors"), "{status}");
            if !lie.is_empty() {
                leaves_with_data += 1;
                let counts = counted(&world, &pool);
                // A mirror reads one side of each block, which may have been the right one.
                if kind != Kind::Mirror {
                    assert!(only_at(&counts, leaf), "{kind:?}, leaf {leaf}: {counts:?}");
                    assert!(status.contains("Applications are unaffected."), "{status}");
                }
                world.zpool("scrub -w tank").ok();
                assert!(only_at(&counted(&world, &pool), leaf), "{kind:?}, leaf {leaf}");
            }
            world.zpool("clear tank").ok();
            pool.scrub();
            assert!(counted(&world, &pool).iter().all(|n| *n == 0));
            pool.export();
            for (at, right) in &lie {
                let mut now = vec![0; SECTOR];
                File::open(image).and_then(|f| f.read_exact_at(&mut now, *at)).expect("image");
                assert!(now == *right, "{kind:?}, leaf {leaf}: {at:#x} is not mended");
            }
            // Found by a scrub: all that lies on the leaf, parity and metadata too.
            overwrite(image, INNER.start, (INNER.end - INNER.start) as usize);
            pool.import();
            pool.scrub();
            let counts = counted(&world, &pool);
            assert!(only_at(&counts, leaf), "{kind:?}, leaf {leaf}: {counts:?}");
            let status = world.zpool("status tank").ok();
            assert!(!status.contains("scrub repaired 0B"), "{status}");
            world.zpool("clear tank").ok();
        }
        assert!(leaves_with_data > 1, "{kind:?}: {leaves_with_data}");
        pool.judge();
    }
}

/// What `status -v` lists, sorted.
fn named(world: &World) -> Vec<String> {
    let status = world.zpool("status -v tank").ok();
    let Some((_, list)) = status.split_once("Permanent errors have been detected in the following files:")
    else {
        assert!(status.contains("errors: No known data errors"), "{status}");
        return Vec::new();
    };
    let mut names: Vec<_> = list.lines().map(|l| l.trim().to_owned()).filter(|l| !l.is_empty()).collect();
    names.sort();
    names
}

#[test]
fn what_redundancy_does_not_cover_is_named_and_nothing_else_is() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, SIZE, &[]);
    world.zfs("create tank/c").ok();
    fs::create_dir(pool.root().join("d")).expect("mkdir");
    let mut random = Random::new(5);
    let mut make = |path: &str| {
        let contents = random.bytes(3 * RECORD);
        fs::write(pool.root().join(path), &contents).expect("write");
        contents
    };
    let (both, gone, child, whole) = (make("d/both"), make("gone"), make("c/child"), make("whole"));
    world.zfs("snapshot tank@s").ok();
    fs::remove_file(pool.root().join("gone")).expect("rm");
    let new = make("new");
    pool.export();
    for contents in [&both, &gone, &child, &new] {
        let (at, _) =
            sectors_of(&pool.disks[0], contents).into_iter().nth(RECORD / SECTOR + 7).expect("found");
        overwrite(&pool.disks[0], at, SECTOR);
    }
    pool.import();
    assert!(named(&world).is_empty(), "nobody has read anything");
    let refused = |path: &str| {
        let e = fs::read(pool.root().join(path)).expect_err(path);
        assert_eq!(e.raw_os_error(), Some(5), "{path}: {e}");
    };
    let shown = |path: &str| pool.root().join(path).display().to_string();
    refused("d/both");
    let mut wanted = vec![shown("d/both"), "tank@s:/d/both".to_owned()];
    assert_eq!(named(&world), wanted);
    refused("new");
    wanted.push(shown("new"));
    refused("c/child");
    wanted.push(shown("c/child"));
    refused(".zfs/snapshot/s/gone");
    wanted.push("tank@s:/gone".to_owned());
    wanted.sort();
    let now = named(&world);
    // A snapshot that is looked into is mounted, and named by its place as all that is.
    let places = |names: &[String]| {
        let plain = |n: &String| n.replace(&shown(".zfs/snapshot/s"), "tank@s:");
        names.iter().map(plain).collect::<BTreeSet<_>>()
    };
    assert_eq!(places(&now), places(&wanted));
    assert!(fs::read(pool.root().join("whole")).expect("read") == whole);
    // What can be read of a damaged file is.
    let mut first = vec![0; RECORD];
    File::open(pool.root().join("d/both")).and_then(|f| f.read_exact_at(&mut first, 0)).expect("read");
    assert!(first == both[..RECORD]);
    world.zpool("scrub -w tank").ok();
    assert_eq!(places(&named(&world)), places(&wanted), "a scrub finds the same");
    // Written anew or gone, they are named no more.
    fs::write(pool.root().join("d/both"), &both).expect("write");
    fs::remove_file(pool.root().join("new")).expect("rm");
    fs::remove_file(pool.root().join("c/child")).expect("rm");
    world.zfs("destroy tank@s").ok();
    world.zpool("sync tank").ok();
    world.zpool("scrub -w tank").ok();
    world.zpool("scrub -w tank").ok();
    assert!(named(&world).is_empty());
    pool.judge();
}

/// A block that cannot be read is told of every dataset that has it, whichever it was read in; also
/// after a promotion and of those who lost it again, and in a log from before the feature.
#[test]
fn a_damaged_block_is_named_in_all_that_share_it() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, SIZE, &["-o", "feature@head_errlog=disabled"]);
    world.zfs("create tank/fs").ok();
    let contents = Random::new(9).bytes(3 * RECORD);
    fs::write(pool.root().join("fs/f"), &contents).expect("write");
    for words in [
        "snapshot tank/fs@s1",
        "clone tank/fs@s1 tank/c1",
        "snapshot tank/c1@s2",
        "clone tank/c1@s2 tank/c2",
        "snapshot tank/c2@s3",
        "clone tank/c2@s3 tank/c3",
    ] {
        world.zfs(words).ok();
    }
    pool.export();
    let (at, _) = sectors_of(&pool.disks[0], &contents).into_iter().nth(RECORD / SECTOR + 7).expect("found");
    overwrite(&pool.disks[0], at, SECTOR);
    pool.import();
    let shown = |path: &str| pool.root().join(path).display().to_string();
    let all = |places: &[&str]| -> Vec<String> {
        let one = |p: &&str| if p.contains('@') { (*p).to_owned() } else { shown(p) };
        let mut names: Vec<_> = places.iter().map(one).collect();
        names.sort();
        names
    };
    fs::read(pool.root().join("c2/f")).expect_err("it is damaged");
    world.zpool("sync tank").ok();
    assert_eq!(named(&world), all(&["c2/f"]), "without the feature nothing more is known");
    world.zpool("set feature@head_errlog=enabled tank").ok();
    let everywhere = ["fs/f", "tank/fs@s1:/f", "c1/f", "tank/c1@s2:/f", "c2/f", "tank/c2@s3:/f", "c3/f"];
    assert_eq!(named(&world), all(&everywhere));
    world.zpool("scrub -w tank").ok();
    assert_eq!(named(&world), all(&everywhere), "a scrub finds the same");
    for path in ["fs/f", "c2/f"] {
        fs::remove_file(pool.root().join(path)).expect("rm");
    }
    world.zfs("snapshot tank/c2@late").ok();
    world.zfs("clone tank/c2@late tank/late").ok();
    let left = ["tank/fs@s1:/f", "c1/f", "tank/c1@s2:/f", "tank/c2@s3:/f", "c3/f"];
    assert_eq!(named(&world), all(&left));
    world.zfs("promote tank/c1").ok();
    let promoted = ["tank/c1@s1:/f", "c1/f", "tank/c1@s2:/f", "tank/c2@s3:/f", "c3/f"];
    assert_eq!(named(&world), all(&promoted));
    // What the clone took over is not forgotten with the dataset that it came from.
    world.zfs("destroy tank/fs").ok();
    assert_eq!(named(&world), all(&promoted));
    pool.export();
    pool.import();
    fs::remove_file(pool.root().join("c1/f")).expect("rm");
    world.zfs("destroy -R tank/c1@s2").ok();
    world.zfs("destroy tank/c1@s1").ok();
    world.zpool("sync tank").ok();
    assert!(named(&world).is_empty());
    pool.judge();
}

#[test]
fn a_stream_of_the_same_snapshot_mends_what_has_no_other_copy() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, SIZE, &[]);
    world.zfs("create tank/a").ok();
    let contents = Random::new(5).bytes(8 * RECORD);
    fs::write(pool.root().join("a/f"), &contents).expect("write");
    world.zfs("snapshot tank/a@one").ok();
    fs::write(pool.root().join("a/g"), &contents[..RECORD]).expect("write");
    world.zfs("snapshot tank/a@two").ok();
    let send = |words: &str| {
        let path = world.path().join(words.replace(['/', ' '], "_"));
        let out = File::create(&path).expect("stream");
        let status = world.command("zfs").arg("send").args(words.split(' ')).stdout(out).status();
        assert!(status.expect("zfs").success(), "zfs send {words}");
        path
    };
    let receive = |words: &str, stream: &Path| {
        let mut command = world.command("zfs");
        command.arg("receive").args(words.split(' ')).stdin(File::open(stream).expect("stream"));
        let done = command.output().expect("zfs");
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        let said = text(&done.stdout) + &text(&done.stderr);
        if done.status.success() { Ok(said) } else { Err(said) }
    };
    let (one, two) = (send("-c tank/a@one"), send("tank/a@two"));
    pool.export();
    let image = &pool.disks[0];
    let lie: Vec<_> = sectors_of(image, &contents).into_iter().step_by(300).take(5).collect();
    assert!(lie.len() == 5);
    lie.iter().for_each(|(at, _)| overwrite(image, *at, SECTOR));
    pool.import();
    world.zpool("scrub -w tank").ok();
    assert!(named(&world).iter().any(|n| n.ends_with("/f")), "{:?}", named(&world));
    fs::read(pool.root().join("a/f")).expect_err("it is damaged");
    let refused = |words: &str, stream: &Path, what: &str| {
        let said = receive(words, stream).expect_err(words);
        assert!(said.contains(what), "{words}: {said}");
    };
    for flag in ["-h", "-F", "-s", "-u", "-d", "-e"] {
        let what = "cannot receive: corrective recv can not be used when combined with this flag";
        refused(&format!("{flag} -c tank/a@one"), &one, what);
    }
    refused("-c tank/a@two", &one, "local snapshot doesn't match the snapshot in the provided stream");
    refused("-c tank/a@three", &one, "corrective recv must specify an existing snapshot to heal");
    refused("-c tank/b@one", &one, "corrective recv must specify an existing snapshot to heal");
    let said = receive("-n -v -c tank/a@one", &one).expect("a dry run");
    assert_eq!(said, "would receive corrective full stream of tank/a@one into tank/a@one\n");
    fs::read(pool.root().join("a/f")).expect_err("it is damaged");
    // The head and later snapshots have the same blocks; nobody is unmounted.
    let open = File::open(pool.root().join("a/g")).expect("open");
    let said = receive("-v -c tank/a", &one).expect("mended");
    assert!(said.contains("receiving corrective full stream of tank/a@one into tank/a@one"), "{said}");
    assert!(fs::read(pool.root().join("a/f")).expect("read") == contents);
    drop(open);
    world.zpool("clear tank").ok();
    pool.scrub();
    assert_eq!(named(&world), Vec::<String>::new());
    receive("-c tank/a@two", &two).expect("there is nothing to mend");
    pool.export();
    for (at, right) in &lie {
        let mut now = vec![0; SECTOR];
        File::open(image).and_then(|f| f.read_exact_at(&mut now, *at)).expect("image");
        assert!(now == *right, "{at:#x} is not mended");
    }
    pool.import();
    pool.judge();
}
