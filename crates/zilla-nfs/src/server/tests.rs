//! Connections that keep to the protocol, and some that do not, to a file system in memory.

mod again;
mod alone;
mod told;

use super::*;
use crate::xdr::{In, Out};
use crate::{Export, ExportId, Options};
use std::sync::OnceLock;
use zilla::{Filesystem, FsProps, NoSnapshots, Time};
use zilla_core::dmu::{DbufCache, Objset};
use zilla_core::txg::TxgState;
use zilla_core::types::Txg;
use zilla_core::zpl::{Unlimited, Zfs, ZplProps, create_fs};
use zilla_env::{Env, block_on, real_env};
use zilla_testkit::memory::{MemStore, keep_synced, props};

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

fn shared(options: &str) -> One {
    shared_of(options).0
}

/// And its pool's txgs.
fn shared_of(options: &str) -> (One, Arc<TxgState>) {
    let env = ENV.get_or_init(|| real_env(1));
    let store = Arc::new(MemStore::default());
    let objset = Objset::create(1, 2, store.clone(), DbufCache::new(16 << 20), props());
    let txgs = TxgState::new(env.clone(), Txg(9));
    {
        let tx = block_on(txgs.assign()).unwrap();
        block_on(create_fs(&objset, &tx, &ZplProps::new(0, 0, Time::default()))).unwrap();
    }
    env.spawn(keep_synced(objset.clone(), store, txgs.clone()));
    let zfs = Zfs::open(env.clone(), objset, Some(txgs.clone()), Arc::new(Unlimited), FsProps::default());
    let fs = Filesystem::new(block_on(zfs).unwrap(), Arc::new(NoSnapshots));
    let export = Export {
        id: ExportId { pool: 1, dataset: 2 },
        path: "/tank".to_owned(),
        fs,
        options: Options::parse(options).unwrap().unwrap(),
        verifier: 3,
        kernel: None,
    };
    (One(Arc::new(export)), txgs)
}

fn peer(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn call(program: u32, procedure: u32, args: &Out) -> Bytes {
    call_of(1, program, procedure, args)
}

fn call_of(xid: u32, program: u32, procedure: u32, args: &Out) -> Bytes {
    call_by(0, xid, program, procedure, args)
}

fn call_by(uid: u32, xid: u32, program: u32, procedure: u32, args: &Out) -> Bytes {
    let mut out = Out::default();
    out.u32(xid).u32(0).u32(2).u32(program).u32(3).u32(procedure);
    out.u32(1).u32(20).u32(0).u32(0).u32(uid).u32(0).u32(0);
    out.u32(0).u32(0);
    out.0.extend_from_slice(&args.0);
    out.0.into()
}

/// What follows the words of RPC.
fn done(exports: &One, program: u32, procedure: u32, args: &Out) -> In {
    done_by(0, exports, program, procedure, args)
}

fn done_by(uid: u32, exports: &One, program: u32, procedure: u32, args: &Out) -> In {
    let call = call_by(uid, 1, program, procedure, args);
    let reply = block_on(answer(exports, peer(700), call)).unwrap();
    let mut reply = In(reply.into());
    let head: Vec<u32> = (0..6).map(|_| reply.u32().unwrap()).collect();
    assert_eq!(head, [1, 1, 0, 0, 0, 0]);
    reply
}

fn root_of(exports: &One) -> Bytes {
    let mut path = Out::default();
    path.opaque(b"/tank");
    let mut reply = done(exports, MOUNT, 1, &path);
    assert_eq!(reply.u32(), Ok(0));
    reply.opaque(64).unwrap()
}

fn record_of(bytes: &[u8], last: bool) -> Vec<u8> {
    let mut out = (bytes.len() as u32 | if last { LAST } else { 0 }).to_be_bytes().to_vec();
    out.extend_from_slice(bytes);
    out
}

/// What a connection gives for these bytes, and how it ends.
fn converse(exports: One, peer: SocketAddr, bytes: Vec<u8>) -> (Vec<u8>, io::Result<()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async move {
        let (mut near, far) = tokio::io::duplex(1 << 16);
        let served = tokio::spawn(client(far, peer, Shared::new(Arc::new(exports))));
        let _ = near.write_all(&bytes).await;
        let _ = near.shutdown().await;
        let mut out = Vec::new();
        let _ = near.read_to_end(&mut out).await;
        (out, served.await.unwrap())
    })
}

#[test]
fn a_record_may_come_in_fragments() {
    let whole = call(NFS, 0, &Out::default());
    let mut bytes = Vec::new();
    bytes.extend(record_of(&whole[..7], false));
    bytes.extend(record_of(&whole[7..8], false));
    bytes.extend(record_of(&whole[8..], true));
    bytes.extend(record_of(&whole, true));
    let (out, ended) = converse(shared("rw"), peer(700), bytes);
    ended.unwrap();
    assert_eq!(out.len(), 2 * (4 + 24), "two replies");
    assert_eq!(out[..8], [0x80, 0, 0, 24, 0, 0, 0, 1]);
}

#[test]
fn what_breaks_the_framing_ends_the_connection() {
    let long = |len: u32| [&(len | LAST).to_be_bytes()[..], &[0; 64]].concat();
    let ends = |port, bytes| converse(shared("rw"), peer(port), bytes).1.is_err();
    assert!(ends(700, long(MAX_RECORD as u32 + 1)));
    assert!(ends(700, long(u32::MAX)));
    assert!(ends(700, vec![0; 64]), "fragments of nothing");
    assert!(ends(700, record_of(b"abc", true)), "no call");
    // Who may not come in sends no large records.
    let large = record_of(&[&call(NFS, 0, &Out::default())[..], &[0; 8192]].concat(), true);
    assert!(!ends(700, large.clone()));
    assert!(ends(2000, large));
}

/// Makes a file, and gives its handle.
fn made(exports: &One) -> Bytes {
    let mut args = Out::default();
    args.opaque(&root_of(exports)).opaque(b"f").u32(0).u32(1).u32(0o600);
    (0..5).for_each(|_| {
        args.u32(0);
    });
    let mut made = done(exports, NFS, 8, &args);
    assert_eq!((made.u32(), made.u32()), (Ok(0), Ok(1)));
    made.opaque(64).unwrap()
}

#[test]
fn large_writes_come_back() {
    let exports = shared("rw,no_root_squash");
    let file = made(&exports);
    let data: Vec<u8> = (0..MAX_IO).map(|i| ((i * 7) >> 3) as u8).collect();
    let mut args = Out::default();
    args.opaque(&file).u64(1).u32(data.len() as u32).u32(2).opaque(&data);
    assert_eq!(done(&exports, NFS, 7, &args).u32(), Ok(0));
    let mut args = Out::default();
    args.opaque(&file).u64(1).u32(u32::MAX);
    let mut reply = done(&exports, NFS, 6, &args);
    assert_eq!((reply.u32(), reply.u32()), (Ok(0), Ok(1)));
    reply.fixed(crate::attr::LEN).unwrap();
    assert_eq!((reply.u32(), reply.bool()), (Ok(MAX_IO as u32), Ok(true)));
    assert_eq!(reply.opaque(MAX_IO).unwrap(), data);
    // Beyond what a file may be.
    let mut args = Out::default();
    args.opaque(&file).u64(u64::MAX).u32(4).u32(0).opaque(b"abcd");
    assert_eq!(done(&exports, NFS, 7, &args).u32(), Ok(27));
    let mut args = Out::default();
    args.opaque(&file).u64(u64::MAX).u32(4);
    assert_eq!(done(&exports, NFS, 6, &args).u32(), Ok(0));
}

#[test]
fn a_handle_of_another_file_is_stale() {
    let exports = shared("rw,no_root_squash");
    let root = root_of(&exports);
    let status = |handle: &[u8]| {
        let mut args = Out::default();
        args.opaque(handle);
        done(&exports, NFS, 1, &args).u32().unwrap()
    };
    assert_eq!(status(&root), 0);
    for at in [4, 12, 20, 30, 40] {
        let mut other = root.to_vec();
        other[at] ^= 1;
        assert_eq!(status(&other), 70, "byte {at}");
    }
    // The master node is no file, whatever a handle says.
    let mut other = root.to_vec();
    other[28..36].copy_from_slice(&1u64.to_be_bytes());
    assert_eq!(status(&other), 70);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(48))]
    #[test]
    fn any_arguments_are_answered(
        calls in proptest::collection::vec(
            (0u32..24, proptest::bool::ANY, proptest::collection::vec(0u8..9, 0..120)), 1..8)
    ) {
        let exports = shared("rw,no_root_squash");
        let root = root_of(&exports);
        for (procedure, at_root, bytes) in calls {
            let mut args = Out::default();
            if at_root {
                args.opaque(&root);
            }
            args.0.extend_from_slice(&bytes);
            for program in [NFS, MOUNT] {
                let reply = block_on(answer(&exports, peer(700), call(program, procedure, &args)));
                proptest::prop_assert!(reply.is_some_and(|r| r.len() >= 24 && r.len() % 4 == 0));
            }
        }
    }
}

#[test]
fn who_does_not_take_his_refusals_keeps_no_room_from_others() {
    let exports = shared("on");
    let mut bad = Out::default();
    bad.opaque(b"no handle").u64(0).u32(1 << 20);
    let read = record_of(&call(NFS, 6, &bad), true);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async move {
        let shared = Shared::new(Arc::new(exports));
        let mut strangers = Vec::new();
        for _ in 0..STRANGERS {
            // So small that no reply is taken off the server's hands.
            let (mut near, far) = tokio::io::duplex(16);
            tokio::spawn(client(far, peer(2000), shared.clone()));
            let read = read.clone();
            strangers.push(tokio::spawn(async move {
                for _ in 0..UNDER_WAY {
                    near.write_all(&read).await.unwrap();
                }
                near
            }));
        }
        let mut open = Vec::new();
        for stranger in strangers {
            open.push(stranger.await.unwrap());
        }
        // All their calls are under way or done: what they hold is what their replies need.
        let most = STRANGERS * UNDER_WAY;
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        while shared.replies.available_permits() < ROOM / UNIT - most {
            assert!(tokio::time::Instant::now() < deadline, "strangers hold the room for replies");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
}

/// As many shares of one file system.
struct Many(One, usize);

impl Exports for Many {
    fn find(&self, id: ExportId) -> Option<Arc<Export>> {
        self.0.find(id)
    }
    fn all(&self) -> Vec<Arc<Export>> {
        vec![self.0.0.clone(); self.1]
    }
}

#[test]
fn who_asks_for_all_shares_and_does_not_take_them_has_only_his_part() {
    let exports = Many(shared("on"), 4000);
    let list = call(MOUNT, mountd::EXPORT, &Out::default());
    let length = block_on(answer(&exports, peer(700), list.clone())).unwrap().len();
    let list = record_of(&list, true);
    assert!(length > 16 * UNIT, "{length}");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async move {
        let shared = Shared::new(Arc::new(exports));
        // So small that no reply is taken off the server's hands.
        let (mut near, far) = tokio::io::duplex(16);
        tokio::spawn(client(far, peer(700), shared.clone()));
        for _ in 0..UNDER_WAY {
            near.write_all(&list).await.unwrap();
        }
        let most = ROOM / UNIT - UNDER_WAY * (length / UNIT);
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        while shared.replies.available_permits() > most {
            assert!(tokio::time::Instant::now() < deadline, "nobody counts what he does not take");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
}
