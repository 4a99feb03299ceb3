//! A rewritten file is the same in new blocks.

use super::super::*;
use super::world::{CRED, World};
use crate::dmu::resident;
use crate::types::ObjectId;
use zilla_env::block_on;

const RECORD: u64 = 4096;

#[test]
fn a_rewritten_file_is_the_same_in_new_blocks() {
    let mut w = World::new(5, FsProps { recordsize: RECORD as u32, ..FsProps::default() });
    let new = NewFile::new(S_IFREG | 0o600, CRED);
    let (held, _) = block_on(w.zfs.create(w.zfs.root(), b"f", new)).unwrap();
    let id = held.id();
    let data: Vec<u8> = (0..3 * RECORD).map(|i| (i % 251) as u8).collect();
    block_on(w.zfs.write(id, 0, &data.clone().into(), false)).unwrap();
    // And behind a hole some more, up to within a record.
    block_on(w.zfs.write(id, 300 * RECORD, &data[..5000].to_vec().into(), false)).unwrap();
    w.sync();
    let births = |w: &World| {
        let dn = block_on(resident(|| w.objset.hold(ObjectId(id)))).unwrap();
        [0, 1, 2, 3, 299, 300, 301, 302].map(|blkid| {
            let bp = block_on(resident(|| dn.block_pointer(blkid))).unwrap();
            bp.filter(|bp| !bp.is_hole()).map_or(0, |bp| bp.birth())
        })
    };
    let read = |w: &World| block_on(w.zfs.read(id, 0, 400 * RECORD as usize)).unwrap().concat();
    let (before, attr, contents) = (births(&w), block_on(w.zfs.getattr(id)).unwrap(), read(&w));
    assert!(
        before[0] > 0 && before[3] == 0 && before[4] == 0 && before[6] > 0 && before[7] == 0,
        "{before:?}"
    );
    block_on(w.zfs.rewrite(id, RECORD, RECORD)).unwrap();
    w.sync();
    let one = births(&w);
    assert!(one[1] > before[1], "{before:?} {one:?}");
    assert_eq!((one[0], &one[2..]), (before[0], &before[2..]));
    block_on(w.zfs.rewrite(id, 0, 0)).unwrap();
    w.sync();
    let all = births(&w);
    for (was, is) in one.iter().zip(all) {
        assert!(if *was == 0 { is == 0 } else { is > *was }, "{one:?} {all:?}");
    }
    assert_eq!(read(&w), contents);
    let after = block_on(w.zfs.getattr(id)).unwrap();
    assert_eq!((after.size, after.mtime, after.ctime), (attr.size, attr.mtime, attr.ctime));
    // Beyond its end there is nothing, and a directory is none.
    block_on(w.zfs.rewrite(id, 1 << 40, 0)).unwrap();
    assert!(block_on(w.zfs.rewrite(w.zfs.root(), 0, 0)).unwrap_err().is(crate::error::Errno::IsDir));
}
