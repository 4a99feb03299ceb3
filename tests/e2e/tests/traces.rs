//! `zilla trace record` and `zilla advise` by the commands: a file of its user's, with what was
//! read in it; who may have one and when; and what is made of files that are no traces.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use zilla_e2e::{Done, Kind, Need, Pool, Random, World, can};

const SIZE: u64 = 128 << 20;

fn zilla(world: &World, words: &[&str]) -> Done {
    world.run("zilla", words)
}

#[track_caller]
fn told(text: &str, words: &str) {
    assert!(text.contains(words), "wanted '{words}', got: {text}");
}

fn path(p: &Path) -> String {
    p.to_string_lossy().into_owned()
}

/// A pool with some files, imported afresh: nothing of them is in memory.
fn cold<'a>(world: &'a World, name: &str) -> Pool<'a> {
    let pool = Pool::create(world, name, Kind::Mirror, SIZE, &[]);
    let mut random = Random::new(5);
    for i in 0..40 {
        fs::write(pool.root().join(format!("f{i}")), random.bytes(200_000)).expect("write");
    }
    pool.sync();
    pool.export();
    pool.import();
    pool
}

fn read_all(pool: &Pool<'_>) {
    for i in 0..40 {
        assert_eq!(fs::read(pool.root().join(format!("f{i}"))).expect("read").len(), 200_000);
    }
}

/// The number before a word.
fn before(text: &str, word: &str) -> u64 {
    let words: Vec<&str> = text.split_whitespace().collect();
    let at = words.iter().position(|w| *w == word).unwrap_or_else(|| panic!("no '{word}' in {text}"));
    words[at - 1].parse().unwrap_or_else(|_| panic!("no number before '{word}' in {text}"))
}

#[test]
fn what_is_read_is_recorded_for_its_user_alone_and_advised_upon() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = cold(&world, "tank");
    let file = world.path().join("t.trace");
    let mut command = world.command("zilla");
    command.args(["trace", "record", "-t", "8", "tank", &path(&file)]);
    let recorder = command.stderr(Stdio::piped()).spawn().expect("zilla");
    let begun = Instant::now();
    while fs::metadata(&file).map_or(0, |m| m.len()) == 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "nothing is recorded");
        std::thread::sleep(Duration::from_millis(20));
    }
    // One at a time.
    let other = path(&world.path().join("other"));
    told(&zilla(&world, &["trace", "record", "-t", "1", "tank", &other]).fails(), "is being recorded");
    assert!(!Path::new(&other).exists(), "an empty file was left");
    // The first half of a recording only fills the sampled cache.
    std::thread::sleep(Duration::from_secs(5).saturating_sub(begun.elapsed()));
    read_all(&pool);
    let synced = fs::File::create(pool.root().join("new")).expect("create");
    // The first fsync after an import waits for its txg, which begins the log.
    synced.sync_all().expect("fsync");
    synced.set_len(1).expect("truncate");
    synced.sync_all().expect("fsync");
    drop(synced);
    let done = recorder.wait_with_output().expect("zilla");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{said}");
    // 40 files of 200 kB are 80 records and what leads to them.
    assert!(before(&said, "events") > 80, "{said}");
    assert_eq!(fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o600);
    told(&zilla(&world, &["trace", "record", "-t", "1", "tank", &path(&file)]).fails(), "-f writes over it");

    let text = zilla(&world, &["advise", "--trace", &path(&file)]).ok();
    for words in [
        "pool tank:",
        "confidence: low",
        "a cache device behind the ARC",
        "DWPD",
        "nvme",
        "note: the trace is short",
    ] {
        told(&text, words);
    }
    told(&text, "commits/s take");
    let svg = world.path().join("a.svg");
    let json =
        zilla(&world, &["advise", "--json", "--svg", &path(&svg), "-c", "64M", "-T", &path(&file)]).ok();
    told(&json, "\"pool\":\"tank\"");
    told(&json, "\"bytes\":67108864");
    let picture = fs::read_to_string(&svg).expect("svg");
    assert!(
        picture.starts_with("<svg ") && picture.ends_with("</svg>\n") && picture.contains("hit rate (%)")
    );

    let summary = zilla(&world, &["arcsummary", "tank"]).ok();
    for words in ["ZFS Subsystem Report", "Current size:", "Total hits:", "L2ARC not detected"] {
        told(&summary, words);
    }
    assert!(!zilla(&world, &["arcsummary", "-s", "arc"]).ok().contains("Total hits:"));
    told(&zilla(&world, &["arcsummary", "-r"]).ok(), "c_max ");

    // A pool as it runs; nobody stays behind that records.
    let live = zilla(&world, &["advise", "-t", "1", "tank"]).ok();
    told(&live, "pool tank:");
    pool.judge();
}

#[test]
fn an_interrupted_recording_is_worth_what_was_written() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = cold(&world, "tank");
    let file = world.path().join("t.trace");
    let mut recorder =
        world.command("zilla").args(["trace", "record", "tank", &path(&file)]).spawn().expect("zilla");
    std::thread::sleep(Duration::from_millis(500));
    read_all(&pool);
    std::thread::sleep(Duration::from_millis(500));
    recorder.kill().expect("kill");
    recorder.wait().expect("wait");
    let done = zilla(&world, &["advise", "-T", &path(&file)]);
    told(&done.stderr, "is cut off: what is there is used");
    told(&done.ok(), "pool tank:");
    // The daemon notices that he is gone, and somebody else may record.
    let again = path(&world.path().join("again"));
    let begun = Instant::now();
    while zilla(&world, &["trace", "record", "-f", "-t", "1", "tank", &again]).code != 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "the pool is still being recorded");
    }
    // A pool that goes away ends its trace.
    let file = world.path().join("gone.trace");
    let mut recorder =
        world.command("zilla").args(["trace", "record", "tank", &path(&file)]).spawn().expect("zilla");
    std::thread::sleep(Duration::from_millis(500));
    pool.export();
    assert!(recorder.wait().expect("wait").success());
    assert!(!zilla(&world, &["advise", "-T", &path(&file)]).stderr.contains("cut off"));
}

#[test]
fn wrong_lines_and_files_that_are_no_traces_are_refused() {
    let world = World::new();
    let file = world.path().join("x");
    fs::write(&file, "#!/bin/sh\necho this is no trace at all\n").expect("write");
    told(&zilla(&world, &["advise", "-T", &path(&file)]).fails(), "not a trace");
    let mut other = b"ZILTRACE".to_vec();
    other.extend(9u32.to_le_bytes());
    other.extend([0; 52]);
    fs::write(&file, &other).expect("write");
    told(&zilla(&world, &["advise", "-T", &path(&file)]).fails(), "version");
    fs::write(&file, "").expect("write");
    told(&zilla(&world, &["advise", "-T", &path(&file)]).fails(), "not a trace");
    told(&zilla(&world, &["advise", "-T", "/nonexistent"]).fails(), "cannot read");
    for (words, why) in [
        (&["advise"][..], "missing pool argument"),
        (&["advise", "-t", "0", "tank"], "invalid time"),
        (&["advise", "-c", "1", "tank"], "invalid size"),
        (&["advise", "-d", "floppy", "tank"], "unknown kind of disk"),
        (&["advise", "-T", "x", "tank"], "either a pool or a trace"),
        (&["advise", "-x"], "invalid option"),
        (&["trace"], "missing command"),
        (&["trace", "play"], "unrecognized command"),
        (&["trace", "record", "tank"], "missing file argument"),
        (&["trace", "record", "-t", "99999999999", "tank", "f"], "invalid time"),
    ] {
        let done = zilla(&world, words);
        assert_eq!(done.code, 2, "{words:?}");
        told(&done.stderr, why);
    }
    told(
        &zilla(&world, &["trace", "record", "-t", "1", "nopool", &path(&world.path().join("y"))]).fails(),
        "no such pool",
    );
    assert!(!world.path().join("y").exists());
}
