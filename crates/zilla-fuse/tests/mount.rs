//! A mounted file system on a store in memory, used as programs use one. Where /dev/fuse is not to be had there is nothing to test.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use zilla::zpl::{Unlimited, Zfs, ZplProps, create_fs};
use zilla::{Filesystem, FsProps, NoSnapshots, Time};
use zilla_core::dmu::testing::{MemStore, props};
use zilla_core::dmu::{DbufCache, Objset};
use zilla_core::spa::txg::TxgState;
use zilla_core::types::Txg;
use zilla_env::{block_on, real_env};
use zilla_fuse::{Mount, Options};

struct Mounted {
    mount: Mount,
    dir: tempfile::TempDir,
}

impl Mounted {
    fn new(props_of_fs: FsProps) -> Option<Mounted> {
        let env = real_env(2);
        let objset = Objset::create(1, 2, Arc::new(MemStore::default()), DbufCache::new(64 << 20), props());
        let txgs = TxgState::new(env.clone(), Txg(9));
        {
            let tx = block_on(txgs.assign()).unwrap();
            let me = fs::metadata("/proc/self").unwrap();
            let zpl = ZplProps::new(me.uid(), me.gid(), Time::default());
            block_on(create_fs(&objset, &tx, &zpl)).unwrap();
        }
        let zfs =
            block_on(Zfs::open(env.clone(), objset, Some(txgs), Arc::new(Unlimited), props_of_fs)).unwrap();
        let fs = Filesystem::new(zfs, Arc::new(NoSnapshots));
        let dir = tempfile::tempdir().unwrap();
        match zilla_fuse::mount(fs, env, dir.path(), &Options::new("tank/test")) {
            Ok(mount) => Some(Mounted { mount, dir }),
            Err(e) => {
                assert!(std::env::var_os("CI").is_none(), "cannot mount here: {e}");
                eprintln!("cannot mount here, nothing tested: {e}");
                None
            }
        }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.mount.unmount(true).unwrap();
        block_on(self.mount.gone());
    }
}

#[test]
fn a_tree_of_files() {
    let Some(m) = Mounted::new(FsProps::default()) else { return };
    let p = m.path();
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let line = mounts.lines().find(|l| l.contains(p.to_str().unwrap())).unwrap();
    assert!(line.starts_with("tank/test ") && line.contains(" fuse.zfs "), "{line}");

    fs::create_dir(p.join("d")).unwrap();
    for i in 0..500 {
        fs::write(p.join(format!("d/{i}")), format!("file {i}")).unwrap();
    }
    let mut names: Vec<_> = fs::read_dir(p.join("d")).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names.len(), 500);
    for i in 0..500 {
        assert_eq!(fs::read_to_string(p.join(format!("d/{i}"))).unwrap(), format!("file {i}"));
    }
    assert!(fs::remove_dir(p.join("d")).is_err());
    fs::rename(p.join("d/7"), p.join("seven")).unwrap();
    fs::hard_link(p.join("seven"), p.join("sept")).unwrap();
    assert_eq!(fs::metadata(p.join("sept")).unwrap().nlink(), 2);
    symlink("sept", p.join("sieben")).unwrap();
    assert_eq!(fs::read_to_string(p.join("sieben")).unwrap(), "file 7");
    fs::set_permissions(p.join("seven"), Permissions::from_mode(0o640)).unwrap();
    assert_eq!(fs::metadata(p.join("sept")).unwrap().mode(), 0o100640);
    fs::remove_dir_all(p.join("d")).unwrap();
    assert!(!p.join("d").exists());
    assert_eq!(fs::metadata(p).unwrap().nlink(), 2);
}

#[test]
fn contents_large_and_small() {
    let Some(m) = Mounted::new(FsProps::default()) else { return };
    let path = m.path().join("f");
    let data: Vec<u8> = (0..9_000_001u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut f = OpenOptions::new().create_new(true).read(true).write(true).open(&path).unwrap();
    f.write_all(&data).unwrap();
    f.write_all_at(b"patched", 1_000_003).unwrap();
    let mut want = data;
    want[1_000_003..1_000_010].copy_from_slice(b"patched");
    let mut got = Vec::new();
    f.seek(SeekFrom::Start(0)).unwrap();
    f.read_to_end(&mut got).unwrap();
    assert!(got == want);
    // Not from the page cache.
    let other = m.path().join("g");
    fs::copy(&path, &other).unwrap();
    assert!(fs::read(&other).unwrap() == want);
    f.set_len(10).unwrap();
    f.set_len(300_000).unwrap();
    want.truncate(10);
    want.resize(300_000, 0);
    assert!(fs::read(&path).unwrap() == want);
    // Appending, and unlinked but open.
    let mut a = OpenOptions::new().append(true).open(&path).unwrap();
    a.write_all(b"the end").unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(a.metadata().unwrap().len(), 300_007);
    let mut tail = [0; 7];
    f.read_exact_at(&mut tail, 300_000).unwrap();
    assert_eq!(&tail, b"the end");
    assert!(File::open(&path).is_err());
}
