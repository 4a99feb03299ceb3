//! Renames beside others of the next txg, and what the flags of directories forbid.

use super::super::rename::Names;
use super::super::*;
use super::world::{CRED, World};
use crate::dmu::{Need, Stop};
use futures_util::FutureExt;
use zilla_env::block_on;

fn make(w: &World, dir: u64, name: &[u8], kind: u32) -> u64 {
    block_on(w.zfs.create(dir, name, NewFile::new(kind | 0o755, CRED))).unwrap().0.id()
}

/// On disk, and in the log, the earlier txg would have directories in a loop.
#[test]
fn a_rename_does_not_come_before_the_move_that_allows_it() {
    let mut w = World::new(5, FsProps::default());
    let root = w.zfs.root();
    let [q, r, x, y] = [b"q", b"r", b"x", b"y"]
        .into_iter()
        .fold((root, Vec::new()), |(dir, mut all), name| {
            let made = make(&w, dir, name, S_IFDIR);
            all.push(made);
            (made, all)
        })
        .1
        .try_into()
        .unwrap();
    let d = make(&w, root, b"d", S_IFDIR);
    w.sync();
    let earlier = block_on(w.txgs.assign()).unwrap();
    let txgs = w.txgs.clone();
    let mut closing = async move { txgs.quiesce().await }.boxed();
    assert!(closing.as_mut().now_or_never().is_none(), "somebody is in the txg");
    let flags = RenameFlags::default;
    block_on(w.zfs.rename(r, b"x", d, b"x", flags(), CRED)).unwrap();
    let [from, to] = [root, y].map(|id| w.zfs.znode(id).unwrap());
    let names = Names { from: &from, old: b"q", to: &to, new: b"q", judged: None };
    let done = w.zfs.rename_now(&earlier, &names, flags(), CRED, None);
    assert!(matches!(done, Err(Stop::Need(Need::LaterTxg))));
    drop(earlier);
    w.txgs.done(block_on(closing));
    block_on(w.zfs.rename(root, b"q", y, b"q", flags(), CRED)).unwrap();
    assert_eq!(block_on(w.zfs.lookup(y, b"q")).unwrap().0.id(), q);
    assert_eq!(block_on(w.zfs.lookup(d, b"x")).unwrap().0.id(), x);
}

/// An exchange takes a name away on both sides.
#[test]
fn what_may_not_lose_a_name_is_not_exchanged() {
    for (flag, of_dir) in [(ZFS_APPENDONLY, true), (ZFS_NOUNLINK, false)] {
        let w = World::new(5, FsProps::default());
        let root = w.zfs.root();
        let [mine, logs] = [b"mine", b"logs"].map(|name| make(&w, root, name, S_IFDIR));
        make(&w, mine, b"x", S_IFREG);
        let y = make(&w, logs, b"y", S_IFREG);
        let set = SetAttr { flags: Some((flag, 0)), ..SetAttr::default() };
        block_on(w.zfs.setattr(if of_dir { logs } else { y }, set)).unwrap();
        let flags = || RenameFlags { exchange: true, ..RenameFlags::default() };
        let refused = [
            block_on(w.zfs.rename(mine, b"x", logs, b"y", flags(), CRED)),
            block_on(w.zfs.rename(logs, b"y", mine, b"x", flags(), CRED)),
        ];
        assert!(refused.iter().all(|done| done.as_ref().is_err_and(|e| e.is(Errno::Perm))), "{refused:?}");
        assert_eq!(block_on(w.zfs.lookup(logs, b"y")).unwrap().0.id(), y);
    }
}
