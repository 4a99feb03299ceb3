//! Heads as streams, which nobody changes meanwhile; and what old keys and snapshots leave of an
//! encrypted dataset.

use super::raw::raw;
use super::*;
use zilla_core::zap::Zap;
use zilla_ondisk::dsl::{DD_FIELD_CRYPTO_KEY_OBJ, DS_FIELD_IVSET_GUID, DSL_CRYPTO_KEY_VERSION};

#[test]
fn a_head_is_sent_as_it_is_while_it_is_held_alone() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        p.create_fs("tank/a").await;
        p.fill("tank/a", 0, 20, 1).await;
        p.snapshot("tank/a@one").await;
        p.fill("tank/a", 10, 20, 2).await;
        let head = p.dsl().by_name("tank/a").await.unwrap();
        let used = head.hold();
        assert!(head.hold_alone().is_none() && !head.is_held_alone());
        drop(used);
        let alone = head.hold_alone().unwrap();
        assert!(head.hold_alone().is_none() && head.is_held_alone() && head.is_long_held());
        let back: Op<()> =
            Box::new(|dsl, tx| Box::pin(async move { dsl.rollback(&tx, "tank/a", None).await }));
        assert!(p.task(back).await.is_err_and(|e| e.is(Errno::Busy)));
        let gone: Op<()> = Box::new(|dsl, _| {
            Box::pin(async move { dsl.destroy_head_check(&dsl.by_name("tank/a").await?).await })
        });
        assert!(p.task(gone).await.is_err_and(|e| e.is(Errno::Busy)));
        let full = p.send("tank/a", &SendOpts::default()).await;
        let from = p.from("tank/a@one").await;
        let step = p.send("tank/a", &SendOpts { from, ..SendOpts::default() }).await;
        drop(alone);
        assert!(!head.is_long_held() && !head.is_held_alone());
        p.snapshot("tank/a@two").await;
        let want = p.plain("tank/a@two").await;
        p.receive(&full, to("tank/b", "head")).await.unwrap();
        same(&want, &p.plain("tank/b@head").await, "whole");
        p.receive(&p.plain("tank/a@one").await, to("tank/c", "one")).await.unwrap();
        p.receive(&step, to("tank/c", "head")).await.unwrap();
        same(&want, &p.plain("tank/c@head").await, "an increment");
        p.export().await;
    });
}

#[test]
fn errata_of_old_encrypted_pools_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        p.create_crypt("tank/e", 8, raw::KEY).await;
        p.fill("tank/e", 0, 5, 1).await;
        p.snapshot("tank/e@s").await;
        assert_eq!(p.dsl().errata(), 0);
        // As it was before sets of IVs had numbers.
        let unnumbered: Op<()> = Box::new(|dsl, tx| {
            Box::pin(async move {
                let snap = dsl.by_name("tank/e@s").await?;
                snap.zap().unwrap().delete(&tx, DS_FIELD_IVSET_GUID).await
            })
        });
        p.task(unnumbered).await.unwrap();
        p.export().await;
        let p = Pool::open(&env, dir.path()).await;
        let snap = p.dsl().by_name("tank/e@s").await.unwrap();
        assert_eq!(p.dsl().errata(), 4);
        // A key of the first version does not say its own.
        let old: Op<()> = Box::new(|dsl, tx| {
            Box::pin(async move {
                let dir = dsl.dir_by_name("tank/e").await?;
                let key = dir.zap().unwrap().get_u64(DD_FIELD_CRYPTO_KEY_OBJ).await?;
                Zap::open(dsl.mos(), key).await?.delete(&tx, DSL_CRYPTO_KEY_VERSION).await
            })
        });
        p.task(old).await.unwrap();
        assert!(p.dsl().has_old_key(&snap.dir()).await.unwrap());
        assert_eq!(p.dsl().errata(), 3);
        let refused = send(p.dsl(), &snap, &raw(), &mut Vec::<u8>::new()).await;
        assert!(refused.is_err_and(|e| e.is(Errno::NotSup)), "no raw stream is made of it");
        p.export().await;
    });
}
