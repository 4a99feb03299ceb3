//! Wrapping keys in memory that are not those on disk: nothing comes to be wrapped under them.

use super::*;
use crate::crypt::{KeyFormat, WrappingKey};
use crate::types::Bookmark;
use crate::zio::WriteReq;
use zilla_codec::checksum::Checksum;
use zilla_codec::compress::CompressSpec;
use zilla_codec::crypt::Suite;
use zilla_ondisk::object_type::DMU_OT_INTENT_LOG;

fn key(byte: u8) -> Arc<WrappingKey> {
    Arc::new(WrappingKey::raw(KeyFormat::Raw, &[byte; 32]).unwrap())
}

fn pool() -> Pool {
    let mut p = Pool::with(&[FEATURES, &["encryption"]].concat());
    for (name, byte) in [("tank/a", 1), ("tank/a/own", 2)] {
        let suite = NewSuite::Of(Suite::Aes256Gcm);
        make(&mut p, name, NewCrypt { suite, key: Some(key(byte)), location: None }).unwrap();
    }
    p
}

fn make(p: &mut Pool, name: &str, crypt: NewCrypt) -> Result<()> {
    p.task(async |p, tx| p.create_fs_with(tx, name, ObjsetType::Other, 0, &crypt).await.map(drop))
}

fn root(p: &Pool, name: &str) -> Arc<DslDir> {
    block_on(p.dsl.dir_by_name(name)).unwrap()
}

#[test]
fn a_child_is_not_wrapped_under_a_key_that_does_not_open_its_root() {
    let mut p = pool();
    let a = root(&p, "tank/a").id;
    make(&mut p, "tank/a/b", NewCrypt::default()).unwrap();
    p.dsl.keys.insert(a, key(9));
    assert!(make(&mut p, "tank/a/c", NewCrypt::default()).unwrap_err().is(Errno::Access));
    let inherit = p.task(async |p, tx| p.rekey(tx, "tank/a/own", &Rekey::Inherit).await);
    assert!(inherit.unwrap_err().is(Errno::Access));
    p.dsl.keys.insert(a, key(1));
    make(&mut p, "tank/a/c", NewCrypt::default()).unwrap();
    p.task(async |p, tx| p.rekey(tx, "tank/a/own", &Rekey::Inherit).await).unwrap();
    p.sync();
    p.reopen();
    for name in ["tank/a/b", "tank/a/c", "tank/a/own"] {
        p.dsl.keys.insert(a, key(1));
        assert!(block_on(p.dsl.data_key(&root(&p, name))).unwrap().is_some(), "{name}");
    }
}

/// A key that cannot be unloaded comes back, but not over one that has come meanwhile.
#[test]
fn a_key_that_stays_is_the_one_on_disk() {
    let mut p = pool();
    let dir = root(&p, "tank/a");
    let a = dir.id;
    let old = p.dsl.keys.wrapping(a).unwrap();
    let new = key(3);
    block_on(p.dsl.put_back(&dir, old.clone()));
    assert!(Arc::ptr_eq(&p.dsl.keys.wrapping(a).unwrap(), &old));
    let change = Rekey::New { key: new.clone(), location: None };
    p.task(async |p, tx| p.rekey(tx, "tank/a", &change).await).unwrap();
    block_on(p.dsl.put_back(&dir, old.clone()));
    assert!(Arc::ptr_eq(&p.dsl.keys.wrapping(a).unwrap(), &new), "it was changed meanwhile");
    p.dsl.keys.remove(a);
    block_on(p.dsl.put_back(&dir, old));
    assert!(p.dsl.keys.wrapping(a).is_none(), "the key on disk is another by now");
    block_on(p.dsl.put_back(&dir, new.clone()));
    assert!(Arc::ptr_eq(&p.dsl.keys.wrapping(a).unwrap(), &new));
}

/// Who can change the disk cannot have what is written later lie there in the clear.
#[test]
fn an_encrypted_dataset_s_root_is_sealed() {
    let mut p = pool();
    p.create("tank/plain");
    p.sync();
    let plain = block_on(p.dsl.by_name("tank/plain")).unwrap().phys().bp;
    let ds = block_on(p.dsl.by_name("tank/a")).unwrap();
    p.task(async |_, tx| {
        ds.change(tx, |d| d.bp = plain);
        Ok(())
    })
    .unwrap();
    ds.drop_objset();
    for opened in [block_on(p.dsl.objset(&ds)), block_on(p.dsl.sealed_objset(&ds))] {
        assert!(matches!(opened, Err(Error::Corrupt(_))));
    }
}

/// What was being opened while a key was unloaded, or while others' contents took its place, is not
/// what others get.
#[test]
fn an_objset_that_was_let_go_of_is_not_shared() {
    let mut p = pool();
    p.create("tank/plain");
    p.sync();
    let ds = block_on(p.dsl.by_name("tank/plain")).unwrap();
    let (bp, os) = (ds.phys().bp, block_on(p.dsl.objset(&ds)).unwrap());
    ds.drop_objset();
    let Err(turn) = ds.objset_or_turn() else { panic!("open") };
    ds.drop_objset();
    assert!(ds.share_objset(turn, &bp, os.clone()).is_none(), "let go of meanwhile");
    let Err(turn) = ds.objset_or_turn() else { panic!("open") };
    let other = block_on(p.dsl.by_name("tank")).unwrap().phys().bp;
    assert!(ds.share_objset(turn, &other, os.clone()).is_none(), "it has other contents");
    assert!(ds.share_objset(turn, &bp, os.clone()).is_some_and(|s| Arc::ptr_eq(&s, &os)));
}

/// A data key does not outlive the key that opened it.
#[test]
fn no_data_key_without_its_root_s() {
    let p = pool();
    let dir = root(&p, "tank/a");
    assert!(block_on(p.dsl.data_key(&dir)).unwrap().is_some());
    let old = p.dsl.keys.remove(dir.id).unwrap();
    assert!(block_on(p.dsl.data_key(&dir)).unwrap().is_none());
    p.dsl.keys.insert(dir.id, old);
    assert!(block_on(p.dsl.data_key(&dir)).unwrap().is_some());
}

/// A block that nothing refers to yet, as a log's first.
fn lone_block(p: &Pool) -> BlkPtr {
    let req = WriteReq {
        data: vec![1; 4096].into(),
        bookmark: Bookmark::root(1),
        otype: DMU_OT_INTENT_LOG,
        level: 0,
        checksum: Checksum::Zilog2,
        compress: CompressSpec::OFF,
        copies: 1,
        fill: 0,
        prev: BlkPtr::ZERO,
        may_embed: false,
        special_upto: 0,
        dedup: None,
        may_stay: false,
        packed: None,
    };
    block_on(p.store.write(p.txg, vec![req])).unwrap()[0]
}

/// What a dataset's log has is freed with it, also where its key does not open it.
#[test]
fn what_its_key_does_not_open_is_destroyed_with_its_log() {
    let mut p = pool();
    make(&mut p, "tank/a/b", NewCrypt::default()).unwrap();
    let (ds, log) = (p.ds("tank/a/b"), lone_block(&p));
    p.task(async |d, _| {
        d.objset(&ds).await?.with_phys(|o| o.zil_header.log = log);
        d.rewrite_root(&ds);
        Ok(())
    })
    .unwrap();
    // (The store in memory encrypts nothing.)
    p.task(async |_, tx| {
        ds.change(tx, |d| d.bp.set_crypt(true));
        Ok(())
    })
    .unwrap();
    ds.drop_objset();
    p.dsl.keys.insert(root(&p, "tank/a").id, key(9));
    p.dsl.keys.forget(block_on(p.dsl.key_object(&ds.dir())).unwrap().unwrap());
    assert!(block_on(p.dsl.objset(&ds)).is_err_and(|e| e.is(Errno::Access)));
    p.destroy("tank/a/b");
    p.check();
}
