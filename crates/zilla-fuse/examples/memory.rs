//! Mounts a file system on a store in memory: what the FUSE server and the file layer cost without
//! disks.
//!
//! `memory MOUNTPOINT [writeback] [posixacl]`, until it is unmounted.

use std::path::PathBuf;
use std::sync::Arc;
use zilla::{Filesystem, FsProps, NoSnapshots};
use zilla_core::dmu::{DbufCache, Objset};
use zilla_core::txg::TxgState;
use zilla_core::types::Txg;
use zilla_core::zpl::{Unlimited, Zfs, ZplProps, create_fs};
use zilla_env::{block_on, real_env};
use zilla_fuse::Options;
use zilla_testkit::memory::{MemStore, keep_synced, props};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mountpoint = PathBuf::from(args.first().ok_or("which directory?")?);
    let has = |word: &str| args.iter().any(|a| a == word);
    let env = real_env(2);
    let store = Arc::new(MemStore::default());
    let objset = Objset::create(1, 2, store.clone(), DbufCache::new(256 << 20), props());
    let txgs = TxgState::new(env.clone(), Txg(9));
    {
        let tx = block_on(txgs.assign())?;
        let zpl = ZplProps::new(0, 0, zilla::Time::default());
        block_on(create_fs(&objset, &tx, &zpl))?;
    }
    env.spawn(keep_synced(objset.clone(), store, txgs.clone()));
    let fs_props = FsProps { posix_acl: has("posixacl"), ..FsProps::default() };
    let zfs = block_on(Zfs::open(env.clone(), objset, Some(txgs), Arc::new(Unlimited), fs_props))?;
    let fs = Filesystem::new(zfs, Arc::new(NoSnapshots));
    let opts = Options { writeback: has("writeback"), ..Options::new("memory") };
    let mount = zilla_fuse::mount(fs, env, &mountpoint, &opts)?;
    block_on(mount.gone());
    Ok(())
}
