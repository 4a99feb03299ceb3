//! Holds of snapshots, and when they end.

use super::*;
use zilla_ondisk::dsl::DMU_POOL_TMP_USERREFS;
use zilla_ondisk::object_type::DMU_OT_USERREFS;

#[test]
fn holds_keep_snapshots() {
    let mut p = Pool::new();
    p.create("tank/a");
    p.snapshot("tank/a@s");
    p.task(async |p, tx| p.hold_snapshot(tx, "tank/a@s", "mine").await).unwrap();
    for odd in ["x\ntank/b@s\tkeep", "x\ty", "\x1b[2J", "\u{85}"] {
        let refused = p.task(async |p, tx| p.hold_snapshot(tx, "tank/a@s", odd).await);
        assert!(refused.unwrap_err().is(Errno::Inval), "{odd:?}");
    }
    p.reopen();
    let held = p.task(async |p, tx| p.destroy_snapshots(tx, &["tank/a@s".into()], false).await);
    assert!(held.unwrap_err().is(Errno::Busy));
    p.task(async |p, tx| p.destroy_snapshots(tx, &["tank/a@s".into()], true).await).unwrap();
    // Who sends it reads what is freed with it.
    let sender = block_on(p.dsl.by_name("tank/a@s")).unwrap().hold();
    let one = ["tank/a@s".to_owned()];
    let used = p.task(async |p, tx| p.release_snapshots(tx, &one, "mine").await);
    assert!(used.unwrap_err().is(Errno::Busy));
    drop(sender);
    p.snapshot("tank/a@t");
    p.task(async |p, tx| p.hold_snapshot(tx, "tank/a@t", "other").await).unwrap();
    let both = ["tank/a@s".to_owned(), "tank/a@t".to_owned()];
    assert!(p.task(async |p, tx| p.release_snapshots(tx, &both, "mine").await).unwrap_err().is(Errno::NoEnt));
    p.task(async |p, tx| p.release_snapshots(tx, &one, "mine").await).unwrap();
    assert!(block_on(p.dsl.by_name("tank/a@s")).is_err());
    p.check();
}

/// OpenZFS's senders hold snapshots for as long as the pool stays imported.
#[test]
fn temporary_holds_end_with_the_next_import() {
    let mut p = Pool::new();
    p.create("tank/a");
    for name in ["tank/a@s", "tank/a@t"] {
        p.snapshot(name);
        p.task(async |p, tx| p.hold_snapshot(tx, name, ".send-7-1").await).unwrap();
    }
    p.task(async |p, tx| p.hold_snapshot(tx, "tank/a@t", "mine").await).unwrap();
    p.task(async |p, tx| p.destroy_snapshots(tx, &["tank/a@s".into()], true).await).unwrap();
    let (s, t) = (p.ds("tank/a@s").id(), p.ds("tank/a@t").id());
    p.task(async |p, tx| {
        let zap = Zap::make(p.mos(), tx, DMU_OT_USERREFS, &CreateOpts::default()).await?;
        p.directory().await?.insert_u64(tx, DMU_POOL_TMP_USERREFS, zap.id()).await?;
        // Of the last two one was released, and the other's snapshot is gone.
        for (id, tag) in [(s, ".send-7-1"), (t, ".send-7-1"), (t, "released"), (0xffff, "gone")] {
            zap.insert_u64(tx, &format!("{id:x}-{tag}"), 1).await?;
        }
        Ok(())
    })
    .unwrap();
    p.sync();
    p.reopen();
    let all = block_on(p.dsl.temporary_holds()).unwrap();
    assert_eq!(all.len(), 4);
    for one in all {
        p.task(async |p, tx| p.release_temporary_hold(tx, &one).await).unwrap();
    }
    assert!(block_on(p.dsl.by_name("tank/a@s")).is_err());
    let left = block_on(p.dsl.holds(&p.ds("tank/a@t"))).unwrap();
    assert_eq!(left.iter().map(|h| &*h.0).collect::<Vec<_>>(), ["mine"]);
    assert!(block_on(p.dsl.temporary_holds()).unwrap().is_empty());
    p.check();
}
