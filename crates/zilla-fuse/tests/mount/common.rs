//! A file system on a store in memory, mounted. Where /dev/fuse is not to be had there is none.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use zilla::{Filesystem, FsProps, NoSnapshots, Time};
use zilla_core::dmu::{DbufCache, Objset};
use zilla_core::txg::TxgState;
use zilla_core::types::Txg;
use zilla_core::zpl::{Unlimited, Zfs, ZplProps, create_fs};
use zilla_env::{Env, block_on, real_env};
use zilla_fuse::{Mount, Options};
use zilla_testkit::memory::{MemStore, keep_synced, props};

/// A new file system and what runs it.
pub fn in_memory(props_of_fs: FsProps) -> (Arc<Filesystem>, Env) {
    let env = real_env(2);
    let store = Arc::new(MemStore::default());
    let objset = Objset::create(1, 2, store.clone(), DbufCache::new(64 << 20), props());
    let txgs = TxgState::new(env.clone(), Txg(9));
    {
        let tx = block_on(txgs.assign()).unwrap();
        let me = fs::metadata("/proc/self").unwrap();
        let zpl = ZplProps::new(me.uid(), me.gid(), Time::default());
        block_on(create_fs(&objset, &tx, &zpl)).unwrap();
    }
    env.spawn(keep_synced(objset.clone(), store, txgs.clone()));
    let zfs = block_on(Zfs::open(env.clone(), objset, Some(txgs), Arc::new(Unlimited), props_of_fs)).unwrap();
    (Filesystem::new(zfs, Arc::new(NoSnapshots)), env)
}

pub struct Mounted {
    mount: Mount,
    dir: tempfile::TempDir,
}

impl Mounted {
    pub fn new(props_of_fs: FsProps) -> Option<Mounted> {
        let (fs, env) = in_memory(props_of_fs);
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

    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.mount.unmount(true).unwrap();
        block_on(self.mount.gone());
    }
}
