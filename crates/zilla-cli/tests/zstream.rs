//! `zstream` on streams that OpenZFS made, beside OpenZFS's own where that is installed: the same
//! to the letter where both do the same.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const THEIRS: &str = "/usr/sbin/zstream";
const OURS: &str = env!("CARGO_BIN_EXE_zstream");

struct Done {
    code: i32,
    out: Vec<u8>,
    err: String,
}

fn run(program: &str, args: &[&str], input: Stdio) -> Done {
    let done = Command::new(program).args(args).stdin(input).output().expect("zstream");
    let err = String::from_utf8_lossy(&done.stderr).into_owned();
    Done { code: done.status.code().unwrap_or(-1), out: done.stdout, err }
}

/// Asks ours, and theirs where there is one: the same code and words.
fn both(args: &[&str], input: Option<&Path>) -> Done {
    let stdin = || input.map_or(Stdio::null(), |p| File::open(p).expect("stream").into());
    let ours = run(OURS, args, stdin());
    if Path::new(THEIRS).exists() {
        let theirs = run(THEIRS, args, stdin());
        assert_eq!((ours.code, &ours.err), (theirs.code, &theirs.err), "{args:?} {input:?}");
        assert!(
            ours.out == theirs.out,
            "{args:?} {input:?}: {} and {} bytes",
            ours.out.len(),
            theirs.out.len()
        );
    } else {
        assert!(std::env::var_os("CI").is_none(), "{THEIRS} is missing");
    }
    ours
}

struct Streams(tempfile::TempDir);

impl Streams {
    fn new() -> Streams {
        let dir = tempfile::tempdir().expect("folder");
        let archive =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/interop/corpus/streams.tar.zst");
        let status =
            Command::new("tar").arg("--zstd").arg("-xf").arg(archive).arg("-C").arg(dir.path()).status();
        assert!(status.expect("tar").success());
        Streams(dir)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join("streams/streams").join(format!("{name}.zsend"))
    }

    /// A changed copy.
    fn changed(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) -> PathBuf {
        let mut bytes = std::fs::read(self.file(name)).expect("stream");
        change(&mut bytes);
        let path = self.0.path().join("changed");
        std::fs::write(&path, bytes).expect("write");
        path
    }
}

const NAMES: [&str; 9] = [
    "full-compressed",
    "full-props",
    "full",
    "incr-all-s1-s3",
    "incr-s1-s2",
    "replication-incr",
    "replication",
    "vol-incr",
    "vol",
];

#[test]
fn a_dump_is_openzfs_s() {
    let s = Streams::new();
    for name in NAMES {
        for option in ["-C", "-v", "-vv"] {
            assert_eq!(both(&["dump", option, s.file(name).to_str().unwrap()], None).code, 0, "{name}");
        }
        assert_eq!(both(&["dump"], Some(&s.file(name))).code, 0, "{name}");
    }
    both(&["dump", "-d", s.file("vol-incr").to_str().unwrap()], None);
}

#[test]
fn a_dump_of_what_is_damaged_is_openzfs_s() {
    let s = Streams::new();
    type Damage = fn(&mut Vec<u8>);
    let cases: [(&str, Damage); 6] = [
        ("a flipped bit", |b| b[5000] ^= 1),
        ("an unknown kind", |b| b[312] = 77),
        ("a bad magic number", |b| b[8] = 0),
        ("cut within a head", |b| b.truncate(700)),
        ("cut within a payload", |b| b.truncate(20_000)),
        ("nothing", Vec::clear),
    ];
    for (what, change) in cases {
        let file = s.changed("vol-incr", change);
        let done = both(&["dump", "-C", "-v", file.to_str().unwrap()], None);
        both(&["dump", "-v", file.to_str().unwrap()], None);
        assert!(done.code <= 1, "{what}");
    }
    // The first WRITE announces more than any block has: its compressed size.
    let file = s.changed("vol-incr", |b| b[3 * 312 + 96..3 * 312 + 104].fill(0x7f));
    let done = run(OURS, &["dump", "-C", "-v", file.to_str().unwrap()], Stdio::null());
    assert!(done.code == 1 && done.err.contains("longer than any block"), "{}", done.err);
}

#[test]
fn what_is_passed_on_is_the_same_stream() {
    let s = Streams::new();
    for name in NAMES {
        let whole = std::fs::read(s.file(name)).expect("stream");
        let done = both(&["redup", s.file(name).to_str().unwrap()], None);
        // A package's first END gets a checksum that OpenZFS's senders leave out.
        let package = ["full-props", "incr-all-s1-s3", "replication", "replication-incr"].contains(&name);
        assert!(done.code == 0 && (package || done.out == whole), "{name}: {}", done.err);
    }
    for name in ["vol", "full", "incr-s1-s2"] {
        let whole = std::fs::read(s.file(name)).expect("stream");
        let done = both(&["decompress", "7777,0"], Some(&s.file(name)));
        assert!(done.code == 0 && done.out == whole, "{name}: {}", done.err);
    }
}

/// Sizes and checks aside, a stream that was recompressed and then made plain is the plain one.
#[test]
fn recompressing_there_and_back_changes_nothing() {
    let s = Streams::new();
    let input = |p: &Path| Stdio::from(File::open(p).expect("stream"));
    let plain = both(&["recompress", "off"], Some(&s.file("full-compressed"))).out;
    for algorithm in ["lz4", "zstd-5", "gzip-2", "lzjb", "zle"] {
        let there = run(OURS, &["recompress", algorithm], input(&s.file("full-compressed")));
        assert!(there.code == 0 && there.out.len() < plain.len(), "{algorithm}: {}", there.err);
        let path = s.0.path().join("there");
        std::fs::write(&path, &there.out).expect("write");
        let shown = both(&["dump", path.to_str().unwrap()], None);
        assert_eq!(shown.code, 0, "OpenZFS reads the checksums");
        assert!(!String::from_utf8_lossy(&shown.out).contains("Expected"), "{algorithm}");
        assert!(both(&["recompress", "off"], Some(&path)).out == plain, "{algorithm}");
    }
    let level = run(OURS, &["recompress", "-l", "19", "zstd"], input(&s.file("vol")));
    let fast = run(OURS, &["recompress", "zstd-fast-100"], input(&s.file("vol")));
    assert!(level.out.len() < fast.out.len());
    for (args, code) in [(["-l", "99", "zstd"], 1), (["-l", "3", "lz4"], 1), (["-l", "3", "nothing"], 2)] {
        let done = run(OURS, &[&["recompress"], &args[..]].concat(), input(&s.file("vol")));
        assert!(done.code == code && done.out.is_empty(), "{args:?}: {}", done.err);
    }
}

#[test]
fn a_damaged_stream_is_not_made_to_look_whole() {
    let s = Streams::new();
    let flip: fn(&mut Vec<u8>) = |b| b[5000] ^= 1;
    let cut: fn(&mut Vec<u8>) = |b| b.truncate(20_000);
    for change in [flip, cut] {
        let file = s.changed("vol-incr", change);
        for args in [&["recompress", "lz4"][..], &["decompress"]] {
            assert_eq!(run(OURS, args, File::open(&file).unwrap().into()).code, 1, "{args:?}");
        }
        assert_eq!(run(OURS, &["redup", file.to_str().unwrap()], Stdio::null()).code, 1);
    }
}

#[test]
fn wrong_words_are_answered_as_openzfs_answers_them() {
    let s = Streams::new();
    let vol = s.file("vol");
    for args in [
        &[][..],
        &["dump", "-x"],
        &["dump", "/nonexistent"],
        &["nothing"],
        &["redup"],
        &["redup", "/nonexistent"],
        &["recompress"],
        &["recompress", "lz9"],
        &["decompress", "1"],
        &["decompress", "a,0"],
        &["decompress", "1,b"],
        &["decompress", "1,0,lz9"],
        &["decompress", "-x"],
        &["recompress", "-l"],
        &["token"],
    ] {
        assert!(both(args, Some(&vol)).code > 0, "{args:?}");
    }
    let done = both(&["decompress", "-v", "1,0", "1,0x8000,off"], Some(&vol));
    assert!(done.err.contains("ino 1 offset 0"), "{}", done.err);
}

#[test]
fn a_token_is_shown() {
    // Of a receive of tank/a@b that stopped in object 7.
    let shown = run(OURS, &["token", "1-0-0-"], Stdio::null());
    assert_eq!((shown.code, shown.out.len()), (1, 0));
    assert!(shown.err.starts_with("Unable to parse resume token: resume token is corrupt"), "{}", shown.err);
}
