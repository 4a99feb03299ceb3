//! Many threads on one small tree, while txgs are synced: nothing hangs, and what is left is a
//! tree.

use super::super::*;
use super::world::{CRED, World};
use crate::dmu::resident;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use zilla_env::block_on;

const THREADS: usize = 4;
const OPS: usize = 4000;

/// Marsaglia's xorshift: the same operations in every run, as far as threads allow that.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

fn one(zfs: &Arc<Zfs>, rng: &mut Rng, dirs: &[u64]) -> crate::error::Result<()> {
    let dir = dirs[rng.below(dirs.len() as u64) as usize];
    let other = dirs[rng.below(dirs.len() as u64) as usize];
    let name = [b'a' + rng.below(6) as u8];
    let new = [b'a' + rng.below(6) as u8];
    let find = |n: &[u8]| block_on(zfs.lookup(dir, n)).map(|(held, _)| held);
    match rng.below(12) {
        0 | 1 => block_on(zfs.create(dir, &name, NewFile::new(S_IFREG | 0o644, CRED))).map(drop),
        2 => block_on(zfs.create(dir, &name, NewFile::new(S_IFDIR | 0o755, CRED))).map(drop),
        3 => block_on(zfs.unlink(dir, &name)),
        4 => block_on(zfs.rmdir(dir, &name)),
        5 => block_on(zfs.link(find(&name)?.id(), other, &new)).map(drop),
        6 | 7 => {
            let flags = RenameFlags { exchange: rng.below(3) == 0, ..RenameFlags::default() };
            block_on(zfs.rename(dir, &name, other, &new, flags, CRED))
        }
        8 => {
            let held = find(&name)?;
            let data = Bytes::from(vec![7; rng.below(30_000) as usize + 1]);
            block_on(zfs.write(held.id(), rng.below(100_000), &data, false)).map(drop)
        }
        9 => {
            let set = SetAttr { uid: Some(rng.below(5) as u32), mode: Some(0o600), ..SetAttr::default() };
            block_on(zfs.setattr(find(&name)?.id(), set)).map(drop)
        }
        10 => {
            let value = vec![1; if rng.below(2) == 0 { 20 } else { 40_000 }];
            block_on(zfs.setxattr(find(&name)?.id(), b"user.x", &value, XattrMode::Any))
        }
        _ => block_on(zfs.removexattr(find(&name)?.id(), b"user.x")),
    }
}

#[test]
fn a_tree_survives_many_threads() {
    let mut w = World::new(5, FsProps { recordsize: 8192, ..FsProps::default() });
    let root = w.zfs.root();
    let mut dirs = vec![root];
    for name in [b"1", b"2"] {
        dirs.push(block_on(w.zfs.create(root, name, NewFile::new(S_IFDIR | 0o755, CRED))).unwrap().0.id());
    }
    let running = AtomicUsize::new(THREADS);
    std::thread::scope(|s| {
        for t in 0..THREADS as u64 {
            let (zfs, dirs, running) = (w.zfs.clone(), dirs.clone(), &running);
            s.spawn(move || {
                let mut rng = Rng(0x9E37_79B9_7F4A_7C15 ^ (t + 1));
                for _ in 0..OPS {
                    if let Err(e) = one(&zfs, &mut rng, &dirs) {
                        assert!(e.errno() != Errno::Io, "{e}");
                    }
                }
                running.fetch_sub(1, Ordering::Release);
            });
        }
        while running.load(Ordering::Acquire) > 0 {
            w.start_sync();
            w.finish_sync();
        }
    });
    w.sync();
    w.crash();
    block_on(w.zfs.drain_unlinked()).unwrap();
    w.sync();
    check_tree(&w, root);
}

/// Link counts, sizes and parents agree with the entries, and no object is left over.
fn check_tree(w: &World, root: u64) {
    let mut links: BTreeMap<u64, u32> = BTreeMap::new();
    let mut known = BTreeSet::from([root]);
    let mut todo = vec![root];
    while let Some(dir) = todo.pop() {
        let entries = w.names(dir);
        let mut subdirs = 0;
        for e in &entries {
            let a = block_on(w.zfs.getattr(e.ino)).unwrap();
            if a.is_dir() {
                subdirs += 1;
                assert!(known.insert(e.ino), "directory {} has two names", e.ino);
                assert_eq!(block_on(w.zfs.lookup(e.ino, b"..")).unwrap().0.id(), dir);
                todo.push(e.ino);
            } else {
                known.insert(e.ino);
                *links.entry(e.ino).or_default() += 1;
            }
        }
        let a = block_on(w.zfs.getattr(dir)).unwrap();
        assert_eq!((a.size, a.nlink), (entries.len() as u64 + 2, subdirs + 2), "directory {dir}");
    }
    for (id, n) in links {
        assert_eq!(block_on(w.zfs.getattr(id)).unwrap().nlink, n, "file {id}");
    }
    for id in known.clone() {
        let xattr_dir = block_on(resident(|| w.zfs.znode(id))).unwrap().state.lock().attrs.xattr_obj;
        if xattr_dir != 0 {
            known.insert(xattr_dir);
            known.extend(w.names(xattr_dir).iter().map(|e| e.ino));
        }
    }
    let extra: Vec<u64> = w.objects().difference(&known).copied().collect();
    assert_eq!(extra.len(), 5, "objects {extra:?} beside the files");
}
