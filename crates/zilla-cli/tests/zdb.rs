//! `zdb` on pools that OpenZFS made, beside OpenZFS's own where that is installed.
//!
//! The pools are the corpus kept under `tests/interop`. What scripts look at must be the same to
//! the letter; where OpenZFS's zdb is missing its answers are missing, and what is true of every
//! pool is checked all the same. OpenZFS's is asked for by its whole path: ours has the same name.

use std::fs::OpenOptions;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use zilla_testkit::{ZDB as THEIRS, zdb};

const OURS: &str = env!("CARGO_BIN_EXE_zdb");
/// Where a block pointer's offset 0 is on a device.
const DATA: u64 = 4 << 20;

struct Done {
    code: i32,
    out: String,
    err: String,
}

fn run(program: &str, args: &[&str]) -> Done {
    let mut zdb = match program {
        THEIRS => zdb().expect("OpenZFS's zdb"),
        ours => Command::new(ours),
    };
    let done = zdb.args(args).env("TZ", "UTC").output().expect("zdb");
    let text = |raw: Vec<u8>| String::from_utf8_lossy(&raw).into_owned();
    Done { code: done.status.code().unwrap_or(-1), out: text(done.stdout), err: text(done.stderr) }
}

/// A set's images in a folder of their own.
struct Set {
    dir: TempDir,
    name: &'static str,
}

impl Set {
    fn new(name: &'static str) -> Set {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/interop/corpus");
        let dir = tempfile::tempdir().expect("folder");
        let archive = corpus.join(format!("{name}.tar.zst"));
        let status =
            Command::new("tar").arg("--zstd").arg("-xf").arg(archive).arg("-C").arg(dir.path()).status();
        assert!(status.expect("tar").success(), "{name}");
        Set { dir, name }
    }

    fn folder(&self) -> PathBuf {
        self.dir.path().join(self.name)
    }

    fn image(&self) -> String {
        self.folder().join("d1.img").to_string_lossy().into_owned()
    }

    fn ask(&self, program: &str, args: &[&str]) -> Done {
        let folder = self.folder();
        let folder = folder.to_string_lossy();
        let mut all = vec!["-e", "-p", &folder];
        all.extend(args);
        run(program, &all)
    }

    fn ours(&self, args: &[&str]) -> Done {
        self.ask(OURS, args)
    }

    /// Our answer, which must be theirs where they are there to be asked, but for lines they alone
    /// have.
    #[track_caller]
    fn same(&self, args: &[&str], only_theirs: &[&str]) -> Done {
        let ours = self.ours(args);
        assert_eq!(ours.code, 0, "{} {args:?}: {}{}", self.name, ours.out, ours.err);
        if Path::new(THEIRS).exists() {
            let theirs = self.ask(THEIRS, args);
            let kept = |text: &str| -> Vec<String> {
                let lines = text.lines().filter(|l| !only_theirs.iter().any(|o| l.contains(o)));
                // Empty lines go with what stands between them.
                let lines = lines.filter(|l| only_theirs.is_empty() || !l.is_empty());
                lines.map(str::to_owned).collect()
            };
            assert_eq!(kept(&ours.out), kept(&theirs.out), "{} {args:?}", self.name);
        }
        ours
    }

    /// Writes over a place of the first image.
    fn spoil(&self, offset: u64) {
        let mut file = OpenOptions::new().read(true).write(true).open(self.image()).expect("image");
        let mut old = [0; 16];
        file.seek(SeekFrom::Start(offset)).expect("seek");
        file.read_exact(&mut old).expect("read");
        old.iter_mut().for_each(|b| *b ^= 0x5a);
        file.seek(SeekFrom::Start(offset)).expect("seek");
        file.write_all(&old).expect("write");
    }
}

/// Offsets of the copies that a line of a listing gives (`0:21c400:400 0:1059400:400 ...`).
fn places(line: &str) -> Vec<u64> {
    let dvas = line.split_whitespace().filter(|w| w.starts_with("0:") && w.matches(':').count() == 2);
    dvas.filter_map(|w| u64::from_str_radix(w.split(':').nth(1)?, 16).ok()).collect()
}

const SETS: [&str; 6] = ["single", "raidz1", "mirror-log-cache", "snapshots", "v28", "crash"];

#[test]
fn labels_configuration_and_uberblock_are_openzfs_s() {
    for name in SETS {
        let set = Set::new(name);
        for option in ["-l", "-lu", "-luu", "-luuu"] {
            let ours = run(OURS, &[option, &set.image()]);
            assert_eq!(ours.code, 0, "{name}: {}", ours.err);
            assert!(ours.out.contains("    labels = 0 1 2 3 \n"), "{name}: {}", ours.out);
            if Path::new(THEIRS).exists() {
                assert_eq!(ours.out, run(THEIRS, &[option, &set.image()]).out, "{name} {option}");
            }
        }
        set.same(&["-C", "tank"], &[]);
        set.same(&["-u", "tank"], &[]);
        set.same(&["-h", "tank"], &[]);
        set.same(&["-m", "tank"], &["Obsolete Entry", "valid entries"]);
    }
}

#[test]
fn every_block_is_accounted_for() {
    for name in SETS {
        let set = Set::new(name);
        let done = set.same(&["-bbbcc", "tank"], &[]);
        assert!(done.out.contains("\n\tNo leaks (block sum matches space maps exactly)\n"), "{}", done.out);
        set.same(&["-b", "tank"], &[]);
        set.same(&["-S", "tank"], &[]);
    }
}

#[test]
fn objects_are_openzfs_s() {
    let set = Set::new("snapshots");
    let list = set.ours(&["-d", "tank"]);
    assert_eq!(list.code, 0, "{}", list.err);
    let names: Vec<&str> =
        list.out.lines().filter_map(|l| l.strip_prefix("Dataset ")?.split(' ').next()).collect();
    assert!(names.len() > 3 && names.contains(&"tank") && names.iter().any(|n| n.contains('@')), "{names:?}");
    for level in ["-dd", "-dddd", "-dddddd"] {
        for dataset in names.iter().filter(|n| n.contains(['/', '@'])) {
            set.same(&[level, dataset, "1", "2:12", "0"], &[]);
        }
        // Objects of the pool itself: datasets, lists, ZAPs.
        set.same(&[level, "tank", "1", "32:60"], &[]);
    }
    let by_number = set.ours(&["-d", "tank/54"]);
    assert!(by_number.out.starts_with("Dataset tank [ZPL], ID 54,"), "{}", by_number.out);
    let old = Set::new("v28");
    old.same(&["-ddddd", "tank/a", "1:12"], &[]);
    let log = Set::new("crash");
    log.same(&["-ii", "tank/a"], &[]);
}

#[test]
fn files_are_copied_out_and_blocks_shown() {
    let set = Set::new("single");
    let to = set.dir.path().join("out");
    let to = to.to_string_lossy();
    let done = set.ours(&["-r", "tank/a/b", "/rand40k", &to]);
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
    let copied = std::fs::read(&*to).expect("copy");
    assert_eq!(copied.len(), 40960);
    let listing = set.ours(&["-ddddd", "tank/a/b", "6"]).out;
    assert!(listing.contains("\tpath\t/rand40k\n"), "{listing}");
    let line = listing.lines().find(|l| l.contains(" L0 0:")).expect("block");
    let place = format!("0:{:x}:200:r", places(line)[0]);
    let done = Command::new(OURS)
        .args(["-R", "-e", "-p"])
        .arg(set.folder())
        .args(["tank", &place])
        .output()
        .expect("zdb");
    assert_eq!(done.stdout, &copied[..512], "random data is not compressed");
    assert_eq!(set.ours(&["-r", "tank/a/b", "/nothing", &to]).code, 1);
    assert_eq!(set.ours(&["-r", "tank/a/b", "/d", &to]).code, 1, "a directory is no file");
}

#[test]
fn damage_is_found() {
    let set = Set::new("single");
    let listing = set.ours(&["-dddddd", "tank/a/b", "5"]).out;
    let data = listing.lines().find(|l| l.contains("  L0 0:")).expect("data");
    set.spoil(DATA + places(data)[0]);
    let done = set.ours(&["-bcc", "tank"]);
    assert_eq!(done.code, 1);
    assert!(done.out.contains("Got error 52 reading") && done.out.contains("Error counts:"), "{}", done.out);
    // Its place is known all the same.
    assert!(done.out.contains("No leaks (block sum matches space maps exactly)"), "{}", done.out);
    assert_eq!(set.ours(&["-b", "tank"]).code, 0, "data is not read");
    // Without the block of pointers nobody has what it points to.
    let pointers = listing.lines().find(|l| l.contains(" L1 ")).expect("pointers");
    places(pointers).into_iter().for_each(|at| set.spoil(DATA + at));
    let done = set.ours(&["-b", "tank"]);
    assert_eq!(done.code, 1);
    assert!(
        done.out.contains("leaked space: vdev 0, offset") && !done.out.contains("No leaks"),
        "{}",
        done.out
    );
    if Path::new(THEIRS).exists() {
        let theirs = set.ask(THEIRS, &["-b", "tank"]);
        let leaks = |text: &str| -> Vec<String> {
            text.lines().filter(|l| l.starts_with("block traversal size")).map(str::to_owned).collect()
        };
        assert_eq!(leaks(&done.out), leaks(&theirs.out));
    }
    // A mirror has the block a second time.
    let mirror = Set::new("mirror-log-cache");
    let root = mirror.ours(&["-u", "tank"]).out;
    let bp = root.lines().find(|l| l.contains("DVA[0]")).expect("root");
    let at = bp.split("<0:").nth(1).and_then(|w| w.split(':').next()).expect("place");
    mirror.spoil(DATA + u64::from_str_radix(at, 16).expect("place"));
    let done = mirror.ours(&["-bcc", "tank"]);
    assert_eq!(done.code, 1, "{}", done.out);
    assert!(done.out.contains("covered by redundancy: 1 "), "{}", done.out);
}

#[test]
fn what_is_no_pool_is_refused_in_words() {
    let dir = tempfile::tempdir().expect("folder");
    let file = dir.path().join("junk.img");
    std::fs::write(&file, vec![0xa5; 70 << 20]).expect("file");
    let junk = file.to_string_lossy();
    assert_eq!(run(OURS, &["-l", &junk]).code, 2);
    assert_eq!(run(OURS, &["-l", "/nowhere/at/all"]).code, 1);
    let folder = dir.path().to_string_lossy();
    let done = run(OURS, &["-e", "-p", &folder, "-b", "tank"]);
    assert!(done.code == 1 && done.err.contains("can't open 'tank': no such pool"), "{}", done.err);
    let done = run(OURS, &["-e", "-p", "/nowhere", "-b", "tank"]);
    assert!(done.code == 1 && done.err.contains("can't open 'tank': no such pool"), "{}", done.err);
    std::fs::write(dir.path().join("cache"), b"no cache file").expect("file");
    let cache = dir.path().join("cache");
    let done = run(OURS, &["-U", &cache.to_string_lossy(), "-b", "tank"]);
    assert!(done.code == 1 && done.err.contains("is no cache file"), "{}", done.err);
    for (args, named) in [(&["-K", "x", "tank"][..], "--key"), (&["-bbbbb", "tank"], "-bbbbb")] {
        let done = run(OURS, args);
        assert!(done.code == 2 && done.err.contains(named), "{args:?}: {}", done.err);
    }
    assert_eq!(run(OURS, &["-Q", "tank"]).code, 2);
}
