//! Space in pools that OpenZFS made: its space maps, logs and references agree as we read them,
//! before and after we write.
//!
//! Looks for unpacked sets (`<set>/d1.img`, ...) in the folder `ZILLA_CORPUS` names, and passes
//! without it: the images are too large to be kept here.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use zilla_core::error::Errno;
use zilla_core::metaslab::SpaceClass;
use zilla_core::spa::{OpenOpts, Spa, discover};
use zilla_env::{Env, real_env};
use zilla_ondisk::enums::{PoolState, ScanState};
use zilla_testkit::zdb;

fn sets() -> Vec<PathBuf> {
    let Ok(dir) = std::env::var("ZILLA_CORPUS") else { return Vec::new() };
    let mut out: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().flatten().map(|e| e.path()).collect();
    out.retain(|p| p.is_dir());
    out.sort();
    out
}

async fn open(env: &Env, dir: &Path, readonly: bool) -> Option<Arc<Spa>> {
    let found = discover(env, &[dir.to_owned()]).await.unwrap();
    let pool = found.first()?;
    let opts =
        OpenOpts { readonly, force: true, dbuf_cache: 64 << 20, arc_max: 128 << 20, ..OpenOpts::default() };
    match Spa::open(env, pool, opts).await {
        Ok(spa) => Some(spa),
        Err(e) if e.is(Errno::NotSup) => {
            println!("{}: {e}", dir.display());
            None
        }
        Err(e) => panic!("{}: {e}", dir.display()),
    }
}

/// What `zdb -b` says is allocated.
fn zdb_allocated(dir: &Path, name: &str) -> Option<u64> {
    let out = zdb()?.args(["-e", "-p"]).arg(dir).args(["-b", name]).output().ok()?;
    let text = String::from_utf8_lossy(&out.stdout);
    let line = text.lines().find(|l| l.trim_start().starts_with("bp allocated:"))?;
    line.split_whitespace().nth(2)?.parse().ok()
}

#[test]
fn what_is_allocated_is_what_is_referred_to() {
    let env = real_env(2);
    for dir in sets() {
        env.block_on(async {
            let Some(spa) = open(&env, &dir, true).await else { return };
            let report = spa.check_space().await.unwrap();
            println!("{}: {} blocks, {} bytes", dir.display(), report.blocks, report.referenced);
            assert!(report.is_clean(), "{}: {:#?}", dir.display(), report.problems);
            assert_eq!(report.allocated, spa.allocated() + spa.metaslabs.class_stat(SpaceClass::Log).alloc);
            if let Some(theirs) = zdb_allocated(&dir, &spa.name()) {
                assert_eq!(report.allocated, theirs, "{}", dir.display());
            }
            spa.close(None).await.unwrap();
        });
    }
}

/// Copies a set, since this writes to it.
fn copy(dir: &Path) -> PathBuf {
    let to = std::env::temp_dir().join(format!("zilla-corpus-{}", std::process::id()));
    drop(std::fs::remove_dir_all(&to));
    std::fs::create_dir_all(&to).unwrap();
    let status = Command::new("cp").arg("--sparse=always").arg("-r").arg(dir).arg(&to).status().unwrap();
    assert!(status.success());
    to.join(dir.file_name().unwrap())
}

#[test]
fn they_scrub_clean_and_stay_whole_when_written() {
    let env = real_env(2);
    for dir in sets() {
        let dir = copy(&dir);
        let name = env.block_on(async {
            let spa = open(&env, &dir, false).await?;
            let scan = spa.scan().unwrap();
            scan.start().await.unwrap();
            scan.wait().await;
            let s = scan.status();
            assert_eq!(
                (s.state, s.errors, s.processed),
                (ScanState::Finished as u64, 0, 0),
                "{}",
                dir.display()
            );
            let report = spa.check_space().await.unwrap();
            assert!(report.is_clean(), "{}: {:#?}", dir.display(), report.problems);
            let name = spa.name();
            spa.close(Some(PoolState::Exported)).await.unwrap();
            Some(name)
        });
        if let Some(name) = name
            && let Some(mut zdb) = zdb()
            && let Ok(out) = zdb.args(["-e", "-p"]).arg(&dir).args(["-bcc", &name]).output()
        {
            let (text, why) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
            // It does not look into partitions of images.
            let ok = text.contains("No leaks") || why.contains("can't open");
            assert!(ok, "{}: {text}{why}", dir.display());
        }
        std::fs::remove_dir_all(dir.parent().unwrap()).unwrap();
    }
}
