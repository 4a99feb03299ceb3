//! Any bytes as records of NFS's clients, to a file system in memory: each is answered or ends the
//! connection.
//!
//! The input is a list of records, each behind its length in two bytes. Most begin as calls do, so
//! that procedures and their arguments are reached: a first byte below 100 stands for an honest
//! header and its procedure, and the next says whether the root's handle follows.
#![no_main]
use libfuzzer_sys::fuzz_target;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use zilla_core::zpl::{Unlimited, Zfs, ZplProps, create_fs};
use zilla::{Filesystem, FsProps, NoSnapshots, Time};
use zilla_testkit::memory::{MemStore, keep_synced, props};
use zilla_core::dmu::{DbufCache, Objset};
use zilla_core::txg::TxgState;
use zilla_core::types::Txg;
use zilla_env::{Env, block_on, real_env};
use zilla_nfs::{Export, ExportId, Exports, Options, answer};

static ENV: OnceLock<Env> = OnceLock::new();

struct One(Arc<Export>);

impl Exports for One {
    fn find(&self, id: ExportId) -> Option<Arc<Export>> {
        (id == self.0.id).then(|| self.0.clone())
    }
    fn all(&self) -> Vec<Arc<Export>> {
        vec![self.0.clone()]
    }
}

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

fn word(out: &mut Vec<u8>, n: u32) {
    out.extend_from_slice(&n.to_be_bytes());
}

/// The header of an honest call of root's.
fn header(procedure: u32) -> Vec<u8> {
    let mut out = Vec::new();
    let (program, procedure) = if procedure < 50 { (100_003, procedure) } else { (100_005, procedure - 50) };
    for n in [1, 0, 2, program, 3, procedure, 1, 20, 0, 0, 0, 0, 0, 0, 0] {
        word(&mut out, n);
    }
    out
}

fuzz_target!(|data: &[u8]| {
    let env = ENV.get_or_init(|| real_env(1));
    let options = Options::parse("rw,no_root_squash").expect("words").expect("a share");
    let exports = One(Arc::new(Export {
        id: ExportId { pool: 1, dataset: 2 },
        path: "/tank".to_owned(),
        fs: file_system(env),
        options,
        verifier: 3,
        kernel: None,
    }));
    let peer = SocketAddr::from(([127, 0, 0, 1], 700));
    let mut mount = header(51);
    word(&mut mount, 5);
    mount.extend_from_slice(b"/tank\0\0\0");
    let mounted = block_on(answer(&exports, peer, mount.into())).expect("a reply");
    // Behind the words of RPC and the status: the length of the handle, and it.
    let root = mounted.get(28..76).expect("a handle").to_vec();
    let mut rest = data;
    for _ in 0..64 {
        let Some((len, behind)) = rest.split_first_chunk() else { break };
        let len = usize::from(u16::from_le_bytes(*len));
        let (record, later) = behind.split_at(len.min(behind.len()));
        rest = later;
        let record = match record {
            [procedure @ 0..100, at_root, args @ ..] => {
                let mut call = header(u32::from(*procedure));
                if at_root % 2 == 0 {
                    call.extend_from_slice(&root);
                }
                call.extend_from_slice(args);
                call
            }
            raw => raw.to_vec(),
        };
        block_on(answer(&exports, peer, record.into()));
    }
});
