//! Who may use how much: what is reserved, what moves, and what is let in though there is no room.

use super::*;
use crate::dsl::recv::RecvOpts;
use crate::zap::ZAP_MAXNAMELEN;
use futures_util::future::poll_immediate;
use std::sync::atomic::Ordering;
use zilla_codec::compress::Compress;
use zilla_ondisk::bpobj::BpobjPhys;
use zilla_ondisk::stream::Begin;

impl Pool {
    fn set_one(&mut self, name: &str, prop: &str, value: u64) {
        let all = vec![(prop.to_owned(), Setting::Local(Value::u64(value)))];
        let ds = self.ds(name);
        self.task(async |p, tx| p.set_props(tx, &ds, &all).await).unwrap();
    }

    /// The pool is as large as what is used, and so much larger.
    fn leave(&self, bytes: u64) {
        let used = self.dsl.root_dir().phys().used_bytes;
        self.dsl.set_pool_space(PoolSpace { dspace: used + bytes, ..PoolSpace::default() });
    }

    fn rename(&mut self, old: &str, new: &str) -> Result<()> {
        self.task(async |p, tx| p.rename(tx, old, new).await)
    }
}

const MIB: u64 = 1 << 20;

#[test]
fn a_dir_goes_only_where_there_is_room_for_it() {
    let mut p = Pool::new();
    for fs in ["tank/a", "tank/a/c", "tank/b"] {
        p.create(fs);
    }
    p.write("tank/a/c", 1, 0, 500, 1);
    p.sync();
    p.set_one("tank/b", "quota", MIB);
    assert!(p.rename("tank/a/c", "tank/b/c").unwrap_err().is(Errno::NoSpc));
    p.set_one("tank/b", "quota", 0);
    // Where it was all stays reserved: the pool then uses more.
    p.set_one("tank/a", "reservation", 64 * MIB);
    p.leave(MIB);
    assert!(p.rename("tank/a/c", "tank/b/c").unwrap_err().is(Errno::NoSpc));
    p.leave(4 * MIB);
    p.rename("tank/a/c", "tank/b/c").unwrap();
    assert!(p.dsl.root_dir().phys().used_bytes > 65 * MIB);
    // What is reserved there has room for it.
    p.leave(600 << 10);
    p.rename("tank/b/c", "tank/a/c").unwrap();
    // Nothing of what is above both changes.
    p.set_one("tank/a", "reservation", 0);
    p.leave(600 << 10);
    p.rename("tank/a/c", "tank/b/c").unwrap();
    p.check();
}

#[test]
fn a_promotion_stays_within_the_quotas_above_the_clone() {
    let mut p = Pool::new();
    for fs in ["tank/o", "tank/q"] {
        p.create(fs);
    }
    p.write("tank/o", 1, 0, 500, 1);
    p.snapshot("tank/o@s");
    p.task(async |p, tx| p.clone_ds(tx, "tank/q/c", "tank/o@s").await).unwrap();
    p.set_one("tank/q", "quota", MIB);
    let beyond = p.task(async |p, tx| p.promote(tx, "tank/q/c").await);
    assert!(beyond.unwrap_err().is(Errno::NoSpc));
    p.set_one("tank/q", "quota", 4 * MIB);
    p.leave(600 << 10);
    p.task(async |p, tx| p.promote(tx, "tank/q/c").await).unwrap();
    p.check();
}

#[test]
fn what_is_received_is_held_against_what_is_reserved() {
    let mut p = Pool::new();
    let b = Begin { objset_type: ObjsetType::Zfs.number() as u32, toguid: 77, ..Begin::default() };
    let reserve = ("refreservation".to_owned(), Setting::Local(Value::u64(8 * MIB)));
    let o =
        RecvOpts { fs: "tank/r".into(), snap: "s".into(), settings: vec![reserve], ..RecvOpts::default() };
    let t = p.task(async |p, tx| p.recv_begin(tx, &b, &o).await).unwrap();
    p.write("tank/r", 1, 0, 500, 1);
    p.sync();
    let used = p.dsl.root_dir().phys().used_bytes;
    // The snapshot takes two of the eight, which are then reserved again.
    p.leave(MIB);
    let full = p.task(async |p, tx| p.recv_end(tx, &t, &b, &o).await);
    assert!(full.is_err_and(|e| e.is(Errno::NoSpc)));
    assert!(block_on(p.dsl.by_name("tank/r@s")).is_err());
    p.leave(4 * MIB);
    p.task(async |p, tx| p.recv_end(tx, &t, &b, &o).await).unwrap();
    assert!(p.dsl.root_dir().phys().used_bytes > used + MIB);
}

/// A quota may be overrun a little by what one txg writes; what the pool owes to others may not.
#[test]
fn what_is_reserved_for_others_is_not_written_over() {
    let mut p = Pool::new();
    for fs in ["tank/a", "tank/b"] {
        p.create(fs);
    }
    p.set_one("tank/b", "reservation", 960 * MIB);
    p.leave(16 * MIB);
    let (ds, tx) = (p.ds("tank/a"), block_on(p.dsl.ctx().txgs.assign()).unwrap());
    let reserve = || p.dsl.reserve(&ds, &tx, MIB, false);
    let let_in = (0..64).take_while(|_| reserve().is_ok()).count();
    assert!((15..=17).contains(&let_in), "{let_in} MiB");
    assert!(reserve().unwrap_err().is(Errno::Again), "the next txg knows");
}

#[test]
fn what_frees_is_let_in_though_more_is_used_than_there_is() {
    let mut p = Pool::new();
    p.create("tank/a");
    p.write("tank/a", 1, 0, 500, 1);
    p.sync();
    let ds = p.ds("tank/a");
    p.dsl.set_pool_space(PoolSpace { dspace: MIB, ..PoolSpace::default() });
    let tx = block_on(p.dsl.ctx().txgs.assign()).unwrap();
    assert!(p.dsl.reserve(&ds, &tx, 4096, false).unwrap_err().is(Errno::NoSpc));
    p.dsl.reserve(&ds, &tx, 0, true).unwrap();
}

/// Without a snapshot it gives space back.
#[test]
fn what_frees_is_refused_only_where_a_snapshot_may_hold_it() {
    let mut p = Pool::new();
    p.create("tank/a");
    p.write("tank/a", 1, 0, 500, 1);
    p.sync();
    for held in [false, true] {
        if held {
            p.snapshot("tank/a@s");
        }
        let ds = p.ds("tank/a");
        let tx = block_on(p.dsl.ctx().txgs.assign()).unwrap();
        p.store.full.store(true, Ordering::Relaxed);
        let frees = p.dsl.reserve(&ds, &tx, 0, true);
        assert_eq!(frees.is_err_and(|e| e.is(Errno::NoSpc)), held);
        p.store.full.store(false, Ordering::Relaxed);
    }
}

#[test]
fn many_snapshots_at_once_need_room_for_each() {
    let mut p = Pool::new();
    let names: Vec<String> = (0..12).map(|i| format!("tank/{i}")).collect();
    names.iter().for_each(|n| p.create(n));
    p.leave(MIB);
    let snaps: Vec<String> = names.iter().map(|n| format!("{n}@s")).collect();
    let all = p.task(async |p, tx| p.snapshot(tx, &snaps).await);
    assert!(all.is_err_and(|e| e.is(Errno::NoSpc)));
    p.task(async |p, tx| p.snapshot(tx, &snaps[..3]).await).unwrap();
    p.check();
}

#[test]
fn a_list_that_is_said_to_have_more_sub_lists_than_there_are_objects_is_refused() {
    let mut p = Pool::new();
    let read = p.task(async |d, tx| {
        let id = d.bpobj_alloc(tx).await?;
        let dn = d.mos().hold_wait(ObjectId(id)).await?;
        let lies = BpobjPhys { subobjs: 1, num_subobjs: u64::MAX / 8, ..BpobjPhys::default() };
        dn.set_bonus(tx, &lies.to_bonus(dn.bonus().len()));
        d.bpobj_open(id).await?.phys()
    });
    let e = read.unwrap_err();
    assert!(matches!(e, Error::Corrupt(_)) && e.to_string().contains("sub-lists"), "{e}");
}

#[test]
fn of_many_that_are_destroyed_a_txg_takes_as_many_as_it_has_room_for() {
    let p = Pool::new();
    let most = |p: &Pool| (0..10_000).take_while(|done| p.dsl.may_destroy_more(*done)).count();
    assert_eq!(most(&p), 10_000);
    p.store.room.store(MIB, std::sync::atomic::Ordering::Relaxed);
    let some = most(&p);
    assert!((2..8).contains(&some), "{some}");
    p.store.full.store(true, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(most(&p), 1, "what frees is not refused");
}

#[test]
fn a_full_pool_is_freed_bit_by_bit() {
    let mut p = Pool::new();
    p.create("tank/a");
    p.write("tank/a", 1, 0, 2500, 1);
    p.sync();
    p.destroy("tank/a");
    p.store.full.store(true, std::sync::atomic::Ordering::Relaxed);
    let left = |p: &Pool| block_on(p.dsl.freeing()).unwrap().used;
    let before = left(&p);
    p.sync();
    let after = left(&p);
    assert!(after > 1400 * 4096 && after < before, "{before} {after}");
    p.store.full.store(false, std::sync::atomic::Ordering::Relaxed);
    p.sync();
    assert_eq!(left(&p), 0);
    p.check();
}

/// What a stream says of compression is kept, and not done, where the pool has no such feature.
#[test]
fn a_stream_from_a_pool_with_more_features_is_received() {
    let mut p = Pool::new();
    let zstd = ("compression".to_owned(), Setting::Received(Value::u64(Compress::Zstd as u64)));
    let b = Begin { objset_type: ObjsetType::Zfs.number() as u32, toguid: 77, ..Begin::default() };
    let long = ("x".repeat(ZAP_MAXNAMELEN - 3), Setting::Received(Value::string("y")));
    let mut o =
        RecvOpts { fs: "tank/r".into(), snap: "s".into(), settings: vec![zstd, long], ..RecvOpts::default() };
    let refused = p.task(async |p, tx| p.recv_begin(tx, &b, &o).await);
    assert!(refused.is_err_and(|e| e.is(Errno::NameTooLong)));
    assert!(block_on(p.dsl.by_name("tank/r")).is_err());
    o.settings.pop();
    let t = p.task(async |p, tx| p.recv_begin(tx, &b, &o).await).unwrap();
    p.task(async |p, tx| p.recv_end(tx, &t, &b, &o).await).unwrap();
    assert_eq!(block_on(p.dsl.received_names(&p.ds("tank/r"))).unwrap(), ["compression"]);
    p.check();
}

/// What is given up is held alone until it is gone: who would go on with it meanwhile is refused.
#[test]
fn a_receive_that_is_given_up_is_held_alone() {
    let mut p = Pool::new();
    let b = Begin { objset_type: ObjsetType::Zfs.number() as u32, toguid: 77, ..Begin::default() };
    let o = RecvOpts { fs: "tank/r".into(), snap: "s".into(), resumable: true, ..RecvOpts::default() };
    p.task(async |p, tx| p.recv_begin(tx, &b, &o).await.map(drop)).unwrap();
    p.sync();
    p.reopen();
    let ds = p.ds("tank/r");
    let mut held = false;
    p.task(async |d, tx| {
        let mut abort = std::pin::pin!(d.recv_abort(tx, &ds));
        loop {
            if let Some(done) = poll_immediate(&mut abort).await {
                return done;
            }
            held |= ds.is_held_alone();
            zilla_env::yield_now().await;
        }
    })
    .unwrap();
    assert!(held && ds.is_gone());
    assert!(block_on(p.dsl.recv_resume(&b, &o)).is_err());
    p.check();
}
