//! Any bytes as requests of the kernel's FUSE protocol, to a file system in memory: each is
//! answered, and none takes long or much memory.
//!
//! The input is a list of requests, each behind its length in two bytes; what the header says of
//! its own length is put right most of the time.
#![no_main]
use libfuzzer_sys::fuzz_target;
use std::sync::{Arc, OnceLock};
use zilla_core::zpl::{Unlimited, Zfs, ZplProps, create_fs};
use zilla::{Filesystem, FsProps, NoSnapshots, Time};
use zilla_testkit::memory::{MemStore, keep_synced, props};
use zilla_core::dmu::{DbufCache, Objset};
use zilla_core::txg::TxgState;
use zilla_core::types::Txg;
use zilla_env::{Env, block_on, real_env};
use zilla_fuse::Loopback;

static ENV: OnceLock<Env> = OnceLock::new();

fn file_system(env: &Env) -> Arc<Filesystem> {
    let store = Arc::new(MemStore::default());
    let objset = Objset::create(1, 2, store.clone(), DbufCache::new(16 << 20), props());
    let txgs = TxgState::new(env.clone(), Txg(9));
    {
        let tx = block_on(txgs.assign()).expect("a txg");
        block_on(create_fs(&objset, &tx, &ZplProps::new(0, 0, Time::default()))).expect("a file system");
    }
    env.spawn(keep_synced(objset.clone(), store, txgs.clone()));
    let zfs = Zfs::open(env.clone(), objset, Some(txgs), Arc::new(Unlimited), FsProps::default());
    Filesystem::new(block_on(zfs).expect("just made"), Arc::new(NoSnapshots))
}

fuzz_target!(|data: &[u8]| {
    let env = ENV.get_or_init(|| real_env(1));
    let mut kernel = Loopback::new(file_system(env), env.clone()).expect("/dev/null");
    let mut rest = data;
    for _ in 0..64 {
        let Some((len, behind)) = rest.split_first_chunk() else { break };
        let len = usize::from(u16::from_le_bytes(*len));
        let (request, later) = behind.split_at(len.min(behind.len()));
        rest = later;
        let mut request = request.to_vec();
        let honest = (request.len() as u32).to_ne_bytes();
        if let Some(said) = request.first_chunk_mut::<4>().filter(|said| said[3] != 0xee) {
            *said = honest;
        }
        block_on(kernel.answer(&request));
    }
});
