//! Every file of pools that OpenZFS made, against the lists OpenZFS's kernel gave of them.
//!
//! Looks for unpacked sets in the folder `ZILLA_CORPUS_UNPACKED` names (`<set>/d1.img`,
//! `<set>/desc/manifest/...`) and passes without it: this is the quick form, without daemon and
//! mounts, of what `tests/interop` does with them.

use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use zilla::{Attr, Filesystem, NodeId, Time, Whence};
use zilla_core::check::{CheckOpts, check_pool};
use zilla_core::spa::{OpenOpts, Spa, discover};
use zilla_env::{Env, real_env};
use zilla_ondisk::enums::PoolState;
use zilla_testkit::zdb;

fn sets() -> Vec<PathBuf> {
    let Ok(dir) = std::env::var("ZILLA_CORPUS_UNPACKED") else { return Vec::new() };
    let mut out: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    // Encrypted datasets are a later issue's.
    out.retain(|p| p.join("desc/manifest").is_dir() && !p.ends_with("crypt"));
    out.sort();
    out
}

/// Was the pool left by a crash? Then its description is of after the replay of its intent logs.
fn crashed(set: &Path) -> bool {
    std::fs::read_to_string(set.join("spec.sh")).is_ok_and(|s| s.lines().any(|l| l.starts_with("#: crash")))
}

fn time(t: Time) -> String {
    format!("{}.{:09}", t.sec, t.nsec)
}

fn kind(a: &Attr) -> &'static str {
    match a.mode >> 12 {
        1 => "p",
        2 => "c",
        4 => "d",
        6 => "b",
        8 => "f",
        10 => "l",
        12 => "s",
        _ => "?",
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// What the manifest says of a file, as far as it does not depend on the reader.
async fn describe(fs: &Filesystem, node: NodeId, path: &str, want: &Value) -> BTreeMap<String, Value> {
    let a = fs.getattr(node).await.unwrap();
    let mut out: BTreeMap<String, Value> = BTreeMap::new();
    let mut put = |k: &str, v: Value| drop(out.insert(k.to_owned(), v));
    put("path", path.into());
    put("type", kind(&a).into());
    put("mode", format!("{:04o}", a.mode & 0o7777).into());
    put("uid", a.uid.into());
    put("gid", a.gid.into());
    put("size", a.size.into());
    put("nlink", a.nlink.into());
    put("ino", a.ino.into());
    put("blocks", a.blocks.into());
    put("mtime", time(a.mtime).into());
    put("atime", time(a.atime).into());
    put("ctime", time(a.ctime).into());
    put("btime", time(a.crtime).into());
    if want.get("rdev").is_some() {
        let (major, minor) = (a.rdev >> 8 & 0xfff, a.rdev & 0xff | a.rdev >> 12 & 0xf_ff00);
        put("rdev", format!("{major}:{minor}").into());
    }
    if a.is_symlink() {
        put("target", String::from_utf8_lossy(&fs.readlink(node).await.unwrap()).into());
    }
    if a.is_file() {
        let (mut sum, mut at) = (Sha256::new(), 0);
        while at < a.size {
            let parts = fs.read(node, at, 1 << 20).await.unwrap_or_else(|e| panic!("{path} at {at}: {e}"));
            for p in parts {
                at += p.len() as u64;
                sum.update(&p);
            }
        }
        put("sha256", hex(&sum.finalize()).into());
        let (mut ranges, mut at) = (Vec::new(), 0);
        while let Ok(start) = fs.seek(node, at, Whence::Data).await {
            at = fs.seek(node, start, Whence::Hole).await.unwrap();
            ranges.push(Value::from(vec![start, at]));
        }
        put("data", ranges.into());
    }
    let mut xattrs = serde_json::Map::new();
    for name in fs.listxattr(node).await.unwrap() {
        let value = fs.getxattr(node, &name).await.unwrap();
        xattrs.insert(String::from_utf8_lossy(&name).into_owned(), hex(&value).into());
    }
    if !xattrs.is_empty() {
        put("xattr", xattrs.into());
    }
    out
}

/// A path as the manifests write it: bytes other than plain letters as `%xx`.
fn unescape(path: &str) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), path.as_bytes());
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first == b'%' {
            let digits = std::str::from_utf8(&tail[..2]).unwrap();
            out.push(u8::from_str_radix(digits, 16).unwrap());
            rest = &tail[2..];
        } else {
            out.push(*first);
        }
    }
    out
}

/// All files below the root, by path.
async fn walk(fs: &Filesystem) -> BTreeMap<Vec<u8>, NodeId> {
    let mut out = BTreeMap::new();
    let mut todo = vec![(fs.root(), Vec::new())];
    while let Some((node, path)) = todo.pop() {
        out.insert(path.clone(), node);
        if !fs.getattr(node).await.unwrap().is_dir() {
            continue;
        }
        let mut at = 0;
        loop {
            let batch = fs.readdir(node, at).await.unwrap();
            let Some(last) = batch.last() else { break };
            at = last.cookie;
            for e in batch.iter().filter(|e| !matches!(&e.name[..], b"." | b"..")) {
                let full = if path.is_empty() { e.name.clone() } else { [&path[..], &e.name].join(&b'/') };
                let found = fs.lookup(node, &e.name).await.unwrap_or_else(|err| panic!("{full:?}: {err}"));
                assert_eq!(found.attr.ino, e.ino, "{full:?}");
                todo.push((found.node, full));
            }
        }
    }
    out
}

async fn compare(fs: &Filesystem, manifest: &Path, replayed: bool, faults: &mut Vec<String>) -> usize {
    let name = manifest.file_stem().unwrap().to_string_lossy().into_owned();
    let text = std::fs::read_to_string(manifest).unwrap();
    let nodes = walk(fs).await;
    let mut seen = 0;
    for line in text.lines().filter(|l| !l.is_empty()) {
        let want: Value = serde_json::from_str(line).unwrap();
        let path = want["path"].as_str().unwrap();
        seen += 1;
        let Some(&node) = nodes.get(&unescape(path)) else {
            faults.push(format!("{name}: {path:?} is missing"));
            continue;
        };
        let got = describe(fs, node, path, &want).await;
        for (key, value) in want.as_object().unwrap() {
            // What the kernel says of the mount, not of the file; and how it calls a mounted
            // snapshot's root.
            let mount = key == "attributes" || (key == "ino" && path.is_empty());
            // Times that are not logged are those of the replay; and blocks that were written anew
            // may lie otherwise.
            let late = replayed && matches!(&key[..], "mtime" | "atime" | "ctime" | "blocks");
            if !mount && !late && got.get(key) != Some(value) {
                faults.push(format!("{name}: {path:?} {key}: {:?}, should be {value}", got.get(key)));
            }
        }
        if got.contains_key("xattr") && want.get("xattr").is_none() {
            faults.push(format!("{name}: {path:?} has attributes it should not have: {:?}", got["xattr"]));
        }
    }
    if seen != nodes.len() {
        faults.push(format!("{name}: {} files, should be {seen}", nodes.len()));
    }
    seen
}

async fn check_set(env: &Env, set: &Path, replay: bool, faults: &mut Vec<String>) -> usize {
    let label = set.file_name().unwrap().to_string_lossy().into_owned();
    let pools = discover(env, &[set.to_path_buf()]).await.unwrap();
    let Some(found) = pools.first() else {
        faults.push(format!("{label}: no pool found"));
        return 0;
    };
    let opts = OpenOpts {
        readonly: !replay,
        force: true,
        dbuf_cache: 64 << 20,
        arc_max: 128 << 20,
        ..OpenOpts::default()
    };
    let spa = match Spa::open(env, found, opts).await {
        Ok(spa) => spa,
        Err(e) => {
            faults.push(format!("{label}: cannot be imported: {e}"));
            return 0;
        }
    };
    let mut manifests: Vec<PathBuf> =
        std::fs::read_dir(set.join("desc/manifest")).unwrap().map(|e| e.unwrap().path()).collect();
    manifests.sort();
    let mut files = 0;
    for m in manifests {
        let dataset = m.file_stem().unwrap().to_string_lossy().replace("%2f", "/");
        match zilla::engine::open_filesystem(env, &spa.dsl, &dataset, !replay).await {
            Ok(fs) => files += compare(&fs, &m, replay, faults).await,
            Err(e) => faults.push(format!("{label}: {dataset} cannot be opened: {e}")),
        }
    }
    if replay {
        spa.sync().await.unwrap();
        spa.sync().await.unwrap();
        let report = check_pool(&spa, CheckOpts { every_copy: true }).await.unwrap();
        faults.extend(report.findings.iter().map(|f| format!("{label}: {f}")));
    }
    spa.close(replay.then_some(PoolState::Exported)).await.unwrap();
    files
}

/// OpenZFS's own check of a pool that is not imported.
fn zdb_clean(set: &Path, faults: &mut Vec<String>) {
    let Some(mut zdb) = zdb() else { return };
    let out = zdb.args(["-bcc", "-e", "-p"]).arg(set).arg("tank").output().expect("zdb");
    let text = String::from_utf8_lossy(&out.stdout);
    if !out.status.success() || !text.contains("No leaks") {
        faults.push(format!("zdb: {text}{}", String::from_utf8_lossy(&out.stderr)));
    }
}

#[test]
fn every_file_is_as_openzfs_wrote_it() {
    let env = real_env(2);
    let mut faults = Vec::new();
    for set in sets().iter().filter(|s| !crashed(s)) {
        let before = faults.len();
        let run = env.clone();
        let files = env.block_on(check_set(&run, set, false, &mut faults));
        println!("{}: {files} files, {} faults", set.display(), faults.len() - before);
    }
    faults.iter().take(60).for_each(|f| println!("{f}"));
    assert!(faults.is_empty(), "{} differences", faults.len());
}

#[test]
fn pools_that_crashed_are_replayed_to_what_openzfs_makes_of_them() {
    let env = real_env(2);
    let mut faults = Vec::new();
    for set in sets().iter().filter(|s| crashed(s)) {
        let copy = std::env::temp_dir().join(format!("zilla-crashed-{}", std::process::id()));
        let status =
            std::process::Command::new("cp").args(["-r", "--sparse=always"]).arg(set).arg(&copy).status();
        assert!(status.unwrap().success());
        let run = env.clone();
        let files = env.block_on(check_set(&run, &copy, true, &mut faults));
        zdb_clean(&copy, &mut faults);
        println!("{}: {files} files", set.display());
        std::fs::remove_dir_all(&copy).unwrap();
    }
    faults.iter().take(60).for_each(|f| println!("{f}"));
    assert!(faults.is_empty(), "{} differences", faults.len());
}
